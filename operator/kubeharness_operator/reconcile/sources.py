"""ModelProviders and ToolServers: compiled to see whether they are sound, their checks asked for, their status told."""

from collections.abc import Callable
from datetime import datetime

from kubeharness.core.errors import Unavailable
from kubeharness.kinds.checks import TOOLS, checks_for
from kubeharness.kinds.compiler import compile_provider, compile_tool_server
from kubeharness.kinds.conditions import Reason
from kubeharness.kinds.problems import Problems
from kubeharness_operator.conditions import Fact, SourceFacts, source_status
from kubeharness_operator.objects import PROVIDERS, Key, Objects, Seen
from kubeharness_operator.reconcile.checks import Checks
from kubeharness_operator.reconcile.reports import Reports


class Sources:
    """The use case for what Agents stand on."""

    def __init__(
        self,
        *,
        objects: Objects,
        checks: Checks,
        reports: Reports,
        rouse_naming: Callable[[Key], None],
        now: Callable[[], datetime],
    ) -> None:
        self._objects = objects
        self._rouse_naming = rouse_naming
        self._checks = checks
        self._reports = reports
        self._now = now
        self._known: dict[Key, tuple[str, int]] = {}

    async def work(self, key: Key) -> bool:
        """Handle one key; False if something is left to do once the database answers."""
        seen = self._objects.get(key)
        if self._changed(key, seen):
            self._rouse_naming(key)  # first of all: what fails below is tried again, and is no change any more
        specs = checks_for(seen.document) if seen is not None else []
        try:
            await self._checks.ask(key, specs)
            done = True
        except Unavailable:
            done = False
        if seen is not None:
            await self._report(seen)
        return done

    def _changed(self, key: Key, seen: Seen | None) -> bool:
        """Whether the spec is another one than last time."""
        before = self._known.pop(key, None)
        if seen is None:
            return before is not None
        self._known[key] = (seen.uid, seen.generation)
        return self._known[key] != before

    async def _report(self, seen: Seen) -> None:
        provider = seen.key.plural == PROVIDERS
        compiled = compile_provider(seen.document) if provider else compile_tool_server(seen.document)
        invalid = None
        if isinstance(compiled, Problems):
            invalid = Fact(Reason.INVALID_SPEC, compiled.message())
        specs = checks_for(seen.document)
        facts = SourceFacts(
            generation=seen.generation,
            invalid=invalid,
            secrets=self._checks.answers(spec for spec in specs if spec.kind != TOOLS),
            tools=None if provider else self._checks.answers(spec for spec in specs if spec.kind == TOOLS),
        )
        await self._reports.report(seen, source_status(facts, seen.status, self._now()))
