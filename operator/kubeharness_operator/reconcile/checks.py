"""The questions that only workers may answer, and what they answered: put once, kept as long as somebody needs them."""

import logging
from collections.abc import Callable, Iterable, Sequence

from kubeharness.core.revision import AgentRevision
from kubeharness.kinds.checks import SECRET, TOOLS, CheckSpec, checks_of
from kubeharness.kinds.conditions import Reason
from kubeharness_operator.conditions import Answers, Fact
from kubeharness_operator.objects import Key
from kubeharness_operator.ports import CheckPut, CheckResult, RevisionPublisher
from kubeharness_operator.references import References

CheckKey = tuple[str, str, str]
"""Kind, namespace, name."""

log = logging.getLogger(__name__)


class Checks:
    """What is asked, by whom, and the last answers. Raises Unavailable where it has to write and cannot."""

    def __init__(self, publisher: RevisionPublisher, rouse: Callable[[Key], None]) -> None:
        self._publisher = publisher
        self._rouse = rouse
        self._needed: References[Key, CheckKey] = References()
        self._results: dict[CheckKey, CheckResult] = {}
        self._clock = 0
        self.known = False
        """Whether the database has told the answers at least once."""

    async def refresh(self) -> None:
        """Read the answers that changed, and rouse who needs them."""
        for result in await self._publisher.check_results(after=self._clock):
            key = (result.kind, result.namespace, result.name)
            self._results[key] = result
            self._clock = max(self._clock, result.version)
            for by in self._needed.naming(key):
                self._rouse(by)
        self.known = True

    async def ask(self, by: Key, specs: Sequence[CheckSpec]) -> None:
        """Have these questions asked for `by` and no others; writes only what is not asked already."""
        await self.need(by, [spec.key for spec in specs])
        new = [spec for spec in specs if not self._asked(spec)]
        if new:
            await self._publisher.check_put([_put(spec) for spec in new])
            log.info("asked for %s: %s", by, ", ".join(_question(spec.key) for spec in new))
            await self.refresh()

    async def need(self, by: Key, keys: Iterable[CheckKey]) -> None:
        """Say which answers `by` depends on; a question that nobody needs any more is dropped."""
        orphans = self._needed.put(by, keys)
        await self._drop([key for key in orphans if key in self._results])

    async def drop_orphans(self) -> None:
        """Drop questions that nobody needs: those of objects that went while no operator ran."""
        await self._drop([key for key in self._results if key not in self._needed])

    def answers(self, specs: Iterable[CheckSpec]) -> Answers:
        """What the answers to these very questions say."""
        failing: list[Fact] = []
        waiting: list[str] = []
        for spec in specs:
            result = self._results.get(spec.key)
            if result is None or not result.done or not _same(spec, result):
                waiting.append(_question(spec.key))
            elif not result.ok:
                failing.append(_fact(result))
        return Answers(failing=tuple(failing), waiting=tuple(dict.fromkeys(waiting)), known=self.known)

    def keeps_from_running(self, revision: AgentRevision, namespace: str) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
        """Which checks fail, and which are not answered, without whose answer a run of this revision has to wait.

        A tool server that does not answer now is none of them as long as its last good list of tools is there.
        """
        optional = {grant.server.name for grant in revision.tools if grant.server and not grant.server.required}
        failing: list[Fact] = []
        waiting: list[str] = []
        for key in checks_of(revision, namespace):
            kind, _, name = key
            result = self._results.get(key)
            if kind == TOOLS and (name in optional or (result is not None and result.result is not None)):
                continue
            if result is None or not result.done:
                waiting.append(_question(key))
            elif not result.ok:
                failing.append(_fact(result))
        return tuple(failing), tuple(waiting)

    def discovered(self, namespace: str, tool_server: str) -> bool:
        """Whether the tools of a server are known, from whenever."""
        result = self._results.get((TOOLS, namespace, tool_server))
        return result is not None and result.result is not None

    def not_offered(self, revision: AgentRevision, namespace: str) -> tuple[Fact, ...]:
        """Tools that a revision is granted by name and that their servers did not list last. Unlisted: unknown."""
        missing: list[Fact] = []
        for grant in revision.tools:
            if grant.server is None or not grant.include:
                continue
            result = self._results.get((TOOLS, namespace, grant.server.name))
            listed = result.result if result is not None else None
            if not isinstance(listed, dict) or not isinstance(tools := listed.get("tools"), list):
                continue
            offered = {tool.get("name") for tool in tools if isinstance(tool, dict)}
            where = f"ToolServer {namespace}/{grant.server.name}"
            missing += [
                Fact(Reason.TOOL_NOT_FOUND, f"{where} offers no tool {name!r}")
                for name in grant.include
                if name not in offered
            ]
        return tuple(missing)

    def _asked(self, spec: CheckSpec) -> bool:
        result = self._results.get(spec.key)
        return result is not None and _same(spec, result)

    async def _drop(self, keys: Sequence[CheckKey]) -> None:
        if not keys:
            return
        await self._publisher.check_drop(keys)
        for key in keys:
            self._results.pop(key, None)
        log.info("dropped: %s", ", ".join(map(_question, keys)))


def _same(spec: CheckSpec, result: CheckResult) -> bool:
    return (spec.uid, spec.digest) == (result.uid, result.digest)


def _put(spec: CheckSpec) -> CheckPut:
    return CheckPut(
        kind=spec.kind,
        namespace=spec.namespace,
        name=spec.name,
        uid=spec.uid,
        digest=spec.digest,
        payload=spec.payload,
        interval_ms=spec.interval_seconds * 1000,
    )


def _question(key: CheckKey) -> str:
    kind, namespace, name = key
    if kind == SECRET:
        secret, _, data_key = name.partition("/")
        return f"Secret {namespace}/{secret} key {data_key!r}"
    return f"the tools of ToolServer {namespace}/{name}"


def _fact(result: CheckResult) -> Fact:
    otherwise = Reason.SECRET_NOT_FOUND if result.kind == SECRET else Reason.DISCOVERY_FAILED
    question = _question((result.kind, result.namespace, result.name))
    return Fact(result.reason or otherwise, result.message or f"{question}: the check failed")
