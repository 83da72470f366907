"""From manifests on disk to published heads and checks: what `dev` and `publish` do without an API server."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubeharness.core.ids import dev_incarnation
from kubeharness.engine.ports import CheckPut, Head, HeadWrite, Store
from kubeharness.kinds.checks import checks_for
from kubeharness.kinds.compiler import Compiled, compile_agent
from kubeharness.kinds.manifests import Loaded, load, secret_data
from kubeharness.kinds.problems import Problems
from kubeharness.kinds.sources import compile_provider, compile_tool_server


@dataclass(frozen=True, slots=True)
class Condition:
    """What became of one document."""

    name: str
    ok: bool
    message: str

    def __str__(self) -> str:
        return f"{'ok   ' if self.ok else 'False'} {self.name}: {self.message}"


@dataclass(slots=True)
class Plan:
    """What a set of manifests asks to be published."""

    writes: list[HeadWrite] = field(default_factory=list)
    checks: list[CheckPut] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    secrets: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    kept: set[tuple[str, str]] = field(default_factory=set)
    """Agents whose document is broken: their last good revision goes on."""


def plan(loaded: Loaded, heads: Sequence[Head]) -> Plan:
    """Compile everything (pure). A document that fails is a condition and stops nothing else."""
    out = Plan()
    known = {(head.namespace, head.name): head for head in heads if not head.retired}
    for problem in loaded.problems:
        where = f"{problem.file}:{problem.line}"
        said = f"{problem.field}: {problem.message}" if problem.field else problem.message
        out.conditions.append(Condition(where, False, said))
        if problem.key is not None and problem.key[0] == "Agent":
            out.kept.add((problem.key[1], problem.key[2]))
    for resource in loaded.resources:
        name = f"{resource.kind} {resource.namespace}/{resource.name}"
        match resource.kind:
            case "Secret":
                out.secrets[resource.namespace, resource.name] = {
                    key: value.decode(errors="replace") for key, value in secret_data(resource).items()
                }
            case "ModelProvider" | "ToolServer":
                compile_one = compile_provider if resource.kind == "ModelProvider" else compile_tool_server
                result = compile_one(resource.document)
                if isinstance(result, Problems):
                    out.conditions.append(Condition(name, False, result.message()))
                    continue
                out.checks += [
                    CheckPut(
                        kind=check.kind,
                        namespace=check.namespace,
                        name=check.name,
                        uid=check.uid,
                        digest=check.digest,
                        payload=check.payload,
                        interval_ms=check.interval_seconds * 1000,
                    )
                    for check in checks_for(resource.document)
                ]
            case "Agent":
                _plan_agent(out, loaded, resource.namespace, resource.name, known)
            case _:
                pass
    return out


def _plan_agent(out: Plan, loaded: Loaded, namespace: str, name: str, known: dict[tuple[str, str], Head]) -> None:
    [document] = [r.document for r in loaded.resources if (r.kind, r.namespace, r.name) == ("Agent", namespace, name)]
    result = compile_agent(
        document,
        providers=loaded.documents("ModelProvider", namespace),
        tool_servers=loaded.documents("ToolServer", namespace),
        config_maps=loaded.documents("ConfigMap", namespace),
    )
    head = known.get((namespace, name))
    uid = head.uid if head is not None else dev_incarnation(namespace, name)
    generation = head.generation if head is not None else 1
    label = f"Agent {namespace}/{name}"
    if not isinstance(result, Compiled):
        serving = "; the last good revision goes on" if head is not None and head.active else ""
        out.conditions.append(Condition(label, False, result.message() + serving))
        out.kept.add((namespace, name))
        note = result.message()
        if head is None or head.note != note:
            out.writes.append(
                HeadWrite(
                    namespace=namespace,
                    name=name,
                    uid=uid,
                    generation=generation + (head is not None),
                    desired=head.desired if head else None,
                    activate=False,
                    note=note,
                )
            )
        return
    changed = head is not None and (head.desired != result.stored.id or head.note != "")
    out.conditions.append(Condition(label, True, f"compiled to {result.stored.id[:19]}"))
    out.writes.append(
        HeadWrite(
            namespace=namespace,
            name=name,
            uid=uid,
            generation=generation + changed,
            desired=result.stored.id,
            activate=True,
            revision=result.stored,
            lifetime_ms=result.revision.durability.submission_timeout_seconds * 1000,
        )
    )


async def publish(store: Store, epoch: int, paths: Sequence[Path], *, namespace: str) -> Plan:
    """Compile what lies at the paths and publish it; agents that are gone are retired."""
    loaded = load([str(path) for path in paths], namespace=namespace)
    heads = await store.heads(after=0)
    planned = plan(loaded, heads)
    if planned.checks:
        await store.check_put(planned.checks)
    if planned.writes:
        await store.publish(epoch, planned.writes)
    there = {(write.namespace, write.name) for write in planned.writes} | planned.kept
    gone = [h.uid for h in heads if not h.retired and (h.namespace, h.name) not in there]
    if gone:
        await store.retire(epoch, gone)
    return planned
