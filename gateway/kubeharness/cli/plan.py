"""`kubeharness plan -f PATH…`: what applying manifests would change, agent by agent; nothing is written anywhere."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.settings import Settings

if TYPE_CHECKING:
    from kubeharness.kinds.manifests import Loaded
    from kubeharness.kinds.planning import AgentPlan, Base, Trouble

SAME, PROBLEMS, CHANGES = 0, 1, 2
"""The exit codes of `terraform plan -detailed-exitcode`, so that a pipeline knows them."""


class Output(StrEnum):
    """For whom it is printed."""

    TEXT = "text"
    JSON = "json"


class PlanCommand(TyperCommand):
    """A command line that is wrong must not look like changes: it exits 1."""

    def make_context(self, *arguments: Any, **more: Any) -> Any:
        """As any command's."""
        try:
            return super().make_context(*arguments, **more)
        except Exception as error:
            if getattr(error, "exit_code", 0) == CHANGES:
                error.exit_code = PROBLEMS  # type: ignore[attr-defined]  # a UsageError's
            raise


@dataclass(frozen=True, slots=True)
class Where:
    """Which base was asked for."""

    kubeconfig: Path | None
    context: str | None
    against: list[Path] | None
    offline: bool

    @property
    def named(self) -> bool:
        """A cluster was named."""
        return self.kubeconfig is not None or self.context is not None


def plan(
    files: Annotated[list[Path], typer.Option("-f", "--file", help="Files or folders of YAML documents")],
    namespace: Annotated[str | None, typer.Option("--namespace", help="Where those belong that name none")] = None,
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="Compare with this cluster")] = None,
    context: Annotated[str | None, typer.Option("--context", help="… by this context of the kubeconfig")] = None,
    against: Annotated[list[Path] | None, typer.Option("--against", help="Compare with these files instead")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Compile alone, compare with nothing")] = False,
    output: Annotated[Output, typer.Option("--output", help="text or json")] = Output.TEXT,
) -> None:
    """Say what applying the files would change; exits 0 if nothing, 2 with changes, 1 with problems. Writes nothing."""
    where = Where(kubeconfig, context, against, offline)
    try:
        if sum((where.named, against is not None, offline)) > 1:
            raise ValueError("use one of --kubeconfig/--context, --against and --offline")
        report = asyncio.run(_planned(files, namespace, where))
    except (ValueError, KubeharnessError) as error:
        why = error.why if isinstance(error, Unavailable) else str(error)
        typer.echo(f"kubeharness plan: {why}", err=True)
        raise typer.Exit(PROBLEMS) from None
    typer.echo(json.dumps(report.json(), indent=1, ensure_ascii=False) if output is Output.JSON else report.text())
    raise typer.Exit(report.code)


async def _planned(files: list[Path], namespace: str | None, where: Where) -> "Report":
    from kubeharness.kinds import planning
    from kubeharness.kinds.manifests import load
    from kubeharness.kube.connection import namespace_of

    settings = Settings()
    if namespace is None and where.against is None and not where.offline:
        namespace = await namespace_of(where.kubeconfig, context=where.context)
    place = namespace or settings.default_namespace
    loaded = load([str(path) for path in files], namespace=place)
    if where.offline:
        base, said = planning.Base(), "nothing (--offline)"
    elif where.against is not None:
        base, said = _files(load([str(path) for path in where.against], namespace=place))
    elif settings.database_url is not None:
        base, said = await _published(settings, loaded, where)
    else:
        base, said = await _cluster(loaded, where)
    plans, troubles = planning.plan(loaded, base)
    return Report(loaded, plans, troubles, said)


def _files(other: "Loaded") -> tuple["Base", str]:
    """Another set of files stands for all that is there. Raises ValueError if it is broken."""
    from kubeharness.kinds.planning import KINDS, Base

    if other.problems:
        raise ValueError("--against: " + "; ".join(str(problem) for problem in other.problems))
    documents = {resource.key: resource.document for resource in other.resources if resource.kind in KINDS}
    return Base(documents, removes=True), "the files of --against"


async def _cluster(loaded: "Loaded", where: Where) -> tuple["Base", str]:
    from kubeharness.kinds.planning import Base, needed_config_maps
    from kubeharness.kube.connection import connect
    from kubeharness.kube.resources import Resources

    planned = [resource.document for resource in loaded.of("Agent")]
    namespaces = {resource.namespace for resource in loaded.resources}
    try:
        api = await connect(where.kubeconfig, context=where.context)
    except ValueError as error:
        raise ValueError(f"{error}; or say --offline, or --against other files") from error
    try:
        host = api.configuration.host
        found = await Resources(api).read(
            namespaces, lambda there, namespace: needed_config_maps([*there, *planned], namespace)
        )
    finally:
        await api.close()
    unserved = "" if found.served else ", which does not serve our kinds yet: kubeharness-crds is not installed"
    return Base(found.documents), f"the cluster {host}{unserved}"


async def _published(settings: Settings, loaded: "Loaded", where: Where) -> tuple["Base", str]:
    """The active revisions of the database; references come from the cluster, if one was named."""
    from kubeharness.composition import open_store, sqlite_path
    from kubeharness.core.codec import load_revision
    from kubeharness.kinds.compiler import Compiled
    from kubeharness.kinds.planning import Base

    documents = (await _cluster(loaded, where))[0].documents if where.named else {}
    url = settings.database()
    if url == "memory:" or (url.startswith("sqlite:") and not sqlite_path(url).exists()):
        raise ValueError("KUBEHARNESS_DATABASE_URL names no database that is there; unset it, or say --offline")
    revisions: dict[tuple[str, str], Compiled | None] = {}
    async with open_store(settings) as stored:
        heads = {(head.namespace, head.name): head for head in await stored.store.heads(after=0) if not head.retired}
        agents = {(resource.namespace, resource.name) for resource in loaded.of("Agent")}
        agents |= {(key[1], key[2]) for key in documents if key[0] == "Agent"}
        for agent in sorted(agents):
            head = heads.get(agent)
            body = await stored.store.revision(head.active) if head is not None and head.active else None
            revisions[agent] = Compiled(body, load_revision(body)) if body is not None else None
    return Base(documents, revisions), "the active revisions in KUBEHARNESS_DATABASE_URL"


class Report:
    """What came of it, for people and for machines."""

    def __init__(
        self, loaded: "Loaded", plans: Sequence["AgentPlan"], troubles: Sequence["Trouble"], base: str
    ) -> None:
        self._plans = plans
        self._base = base
        self._files = {resource.key: (resource.file, resource.line) for resource in loaded.resources}
        self._line_of = _Lines()
        self._problems = [self._problem(item.file, item.line, item.field, item.message) for item in loaded.problems] + [
            self._placed(trouble) for trouble in troubles
        ]

    @property
    def code(self) -> int:
        """How the process ends."""
        if self._problems or any(one.troubles for one in self._plans):
            return PROBLEMS
        return CHANGES if any(one.change not in ("unchanged", "broken") for one in self._plans) else SAME

    def json(self) -> dict[str, object]:
        """For CI."""
        return {
            "base": self._base,
            "exitCode": self.code,
            "problems": self._problems,
            "agents": [
                {
                    "namespace": one.namespace,
                    "name": one.name,
                    "change": one.change.value,
                    "revision": one.revision,
                    "lastGood": one.last_good,
                    **dict(
                        zip(("file", "line"), self._files.get(("Agent", one.namespace, one.name), ()), strict=False)
                    ),
                    "diff": one.diff,
                    "problems": [self._placed(trouble) for trouble in one.troubles],
                    "notes": list(one.notes),
                }
                for one in self._plans
            ],
        }

    def text(self) -> str:
        """For people."""
        lines = [f"compared with {self._base}"]
        lines += [f"problem {_shown(problem)}" for problem in self._problems]
        for one in self._plans:
            file, line = self._files.get(("Agent", one.namespace, one.name), ("there, not in these files", 0))
            lines.append(
                f"\n{one.change.value:9} Agent {one.namespace}/{one.name} ({file}{f':{line}' if line else ''})"
            )
            if one.last_good != one.revision and one.last_good:
                lines.append(f"  last good {one.last_good}")
            if one.revision:
                lines.append(f"  revision  {one.revision}")
            lines += [f"  note: {note}" for note in one.notes]
            lines += [f"  problem {_shown(self._placed(trouble))}" for trouble in one.troubles]
            lines += [f"  {line}" for line in one.diff.split("\n")] if one.diff else []
        counts = Counter(one.change.value for one in self._plans)
        summary = ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "no agents"
        return "\n".join([*lines, f"\n{summary}; nothing was written"])

    def _placed(self, trouble: "Trouble") -> dict[str, object]:
        file, line = self._files.get(trouble.key, ("", 0))
        if not file:
            kind, namespace, name = trouble.key
            return self._problem(f"{kind} {namespace}/{name} of the cluster", 0, trouble.field, trouble.message)
        return self._problem(file, line, trouble.field, trouble.message)

    def _problem(self, file: str, line: int, field: str, message: str) -> dict[str, object]:
        at = self._line_of(file, line, field) if line and field else line
        return {"file": file, "line": at, "field": field, "message": message}


class _Lines:
    """Finds lines in files, each read once."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, file: str, line: int, field: str) -> int:
        from kubeharness.kinds.places import line_of

        if file not in self._texts:
            try:
                self._texts[file] = Path(file).read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError):
                self._texts[file] = ""
        return line_of(self._texts[file], line, field)


def _shown(problem: dict[str, object]) -> str:
    line = f":{problem['line']}" if problem["line"] else ""
    field = f"{problem['field']}: " if problem["field"] else ""
    return f"{problem['file']}{line}: {field}{problem['message']}"
