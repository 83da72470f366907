"""The checks that an object needs: what only a worker may answer, since it takes a Secret's value or egress (pure)."""

from dataclasses import dataclass, replace
from typing import cast

from kubeharness.core.codec import canonical, digest_of, to_json
from kubeharness.core.json import JsonObject
from kubeharness.core.revision import AgentRevision, ProviderSpec, SecretKeyRef, ToolServerSpec
from kubeharness.kinds.common import Raw
from kubeharness.kinds.problems import Problems
from kubeharness.kinds.reading import read
from kubeharness.kinds.sources import compile_provider, compile_tool_server
from kubeharness.kinds.toolserver import ToolServerSpec as WrittenToolServer

SECRET = "secret"
TOOLS = "tools"
SECRET_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSpec:
    """A question for a worker. Its key is (kind, namespace, name); another digest makes it due at once."""

    kind: str
    """secret: does the key exist, may we read it. tools: which tools does the server offer."""
    namespace: str
    name: str
    """For secret `{secret}/{key}`, one row for all who use it; for tools the ToolServer's name."""
    uid: str
    """Of the ToolServer; empty for a secret, whose uid the publisher may not know."""
    digest: str
    interval_seconds: int
    payload: JsonObject
    """secret: a `core.revision.SecretKeyRef`; tools: a `core.revision.ToolServerSpec`; both for `codec.decode`."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row is found by."""
        return (self.kind, self.namespace, self.name)


def checks_for(document: Raw) -> list[CheckSpec]:
    """The checks of a ModelProvider or ToolServer; none for an object that does not compile.

    An Agent needs those of the objects it names: see `checks_of`.
    """
    said = document.get("metadata")
    metadata = said if isinstance(said, dict) else {}
    namespace = metadata.get("namespace") or "default"
    match document.get("kind"):
        case "ModelProvider":
            provider = compile_provider(document)
            return [] if isinstance(provider, Problems) else _provider_checks(provider, namespace)
        case "ToolServer":
            server = compile_tool_server(document)
            if isinstance(server, Problems):
                return []
            written = read(WrittenToolServer, document.get("spec"), at="spec", strict=False)
            interval = written.discovery.interval_seconds if isinstance(written, WrittenToolServer) else 300
            tools = _tools_check(server, namespace, str(metadata.get("uid") or ""), interval)
            return [*_server_secrets(server, namespace), tools]
        case _:
            return []


def checks_of(revision: AgentRevision, namespace: str) -> list[tuple[str, str, str]]:
    """The keys of the checks that a revision stands on: its provider's and its tool servers'."""
    servers = [grant.server for grant in revision.tools if grant.server]
    keys = [check.key for check in _provider_checks(revision.provider, namespace)]
    for server in servers:
        keys += [check.key for check in _server_secrets(server, namespace)]
        keys.append((TOOLS, namespace, server.name))
    return list(dict.fromkeys(keys))


def _provider_checks(provider: ProviderSpec, namespace: str) -> list[CheckSpec]:
    return [_secret_check(provider.api_key, namespace)] if provider.api_key else []


def _server_secrets(server: ToolServerSpec, namespace: str) -> list[CheckSpec]:
    refs = dict.fromkeys(header.secret for header in server.headers if header.secret)
    return [_secret_check(ref, namespace) for ref in refs]


def _secret_check(ref: SecretKeyRef, namespace: str) -> CheckSpec:
    return _check(SECRET, namespace, f"{ref.name}/{ref.key}", "", SECRET_SECONDS, ref)


def _tools_check(server: ToolServerSpec, namespace: str, uid: str, interval: int) -> CheckSpec:
    """Policies do not change what is asked, so they do not make it due."""
    return _check(TOOLS, namespace, server.name, uid, interval, replace(server, policies=(), required=True))


def _check(kind: str, namespace: str, name: str, uid: str, interval: int, asked: object) -> CheckSpec:
    payload = cast("JsonObject", to_json(asked))
    return CheckSpec(
        kind=kind,
        namespace=namespace,
        name=name,
        uid=uid,
        digest=digest_of(canonical(payload)),
        interval_seconds=interval,
        payload=payload,
    )
