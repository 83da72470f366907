"""What an Agent stands on: providers and tool servers, from documents to what a run needs (pure)."""

from collections.abc import Callable
from typing import TypeVar

from kubeharness.core import revision as core
from kubeharness.kinds.common import Part, Raw, SecretKeyRef
from kubeharness.kinds.conditions import Reason
from kubeharness.kinds.limits import header_violations, name_violations, script_json, script_violations
from kubeharness.kinds.modelprovider import ModelProviderSpec
from kubeharness.kinds.problems import Problem, ProblemKind, Problems
from kubeharness.kinds.reading import Violation, read
from kubeharness.kinds.toolserver import ToolServerSpec

S = TypeVar("S", bound=Part)


def compile_provider(provider: Raw) -> core.ProviderSpec | Problems:
    """A ModelProvider as a run needs it, or every problem found. Whether its Secret exists is a check's business."""
    spec, problems = read_spec(provider, ModelProviderSpec, script_violations)
    if spec is None or problems:
        return Problems(tuple(problems))
    return core.ProviderSpec(
        name=str(provider["metadata"]["name"]),
        type=spec.type,
        base_url=spec.base_url.rstrip("/") if spec.base_url else None,
        api_key=_secret(spec.api_key_secret_ref),
        scripted=script_json(spec.scripted) if spec.scripted else None,
    )


def compile_tool_server(server: Raw) -> core.ToolServerSpec | Problems:
    """A ToolServer as a run needs it, or every problem found. Whether it answers is a check's business."""
    spec, problems = read_spec(server, ToolServerSpec, header_violations)
    if spec is None or problems:
        return Problems(tuple(problems))
    metadata = server["metadata"]
    namespace = metadata.get("namespace") or "default"
    service = spec.service_ref
    return core.ToolServerSpec(
        name=str(metadata["name"]),
        url=f"http://{service.name}.{namespace}.svc:{service.port}{service.path}" if service else str(spec.url),
        headers=tuple(
            core.HeaderSpec(name=header.name, value=header.value, secret=_secret(header.secret_key_ref))
            for header in sorted(spec.headers, key=lambda header: header.name)
        ),
        required=spec.discovery.mode == "Required",
        policies=tuple(
            core.ToolPolicy(name=tool.name, idempotent=tool.idempotent, timeout_seconds=tool.timeout_seconds)
            for tool in sorted(spec.tools, key=lambda tool: tool.name)
        ),
    )


def read_spec(document: Raw, of: type[S], more: Callable[[S], list[Violation]]) -> tuple[S | None, list[Problem]]:
    """The spec of a document, and what is wrong with it and with the object's name."""
    violations = name_violations(document)
    spec = read(of, document.get("spec"), at="spec", strict=False)
    if isinstance(spec, list):
        violations += spec
        return None, [_invalid(item) for item in violations]
    violations += more(spec)
    return spec, [_invalid(item) for item in violations]


def _invalid(violation: Violation) -> Problem:
    return Problem(
        kind=ProblemKind.NOT_COMPILING,
        reason=Reason.INVALID_SPEC,
        field=violation.field,
        message=violation.message,
    )


def _secret(ref: SecretKeyRef | None) -> core.SecretKeyRef | None:
    return core.SecretKeyRef(name=ref.name, key=ref.key) if ref else None
