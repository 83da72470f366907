"""Answers checks: is a Secret's key there, which tools does a server offer. Runs in workers only."""

from kubeharness.core import codec
from kubeharness.core.errors import KubeharnessError, SecretMissing, ToolServerUnreachable
from kubeharness.core.json import Json
from kubeharness.core.revision import SecretKeyRef, ToolServerSpec
from kubeharness.engine.ports import CheckLease, SecretSource
from kubeharness.tools.catalogue import catalogue_json
from kubeharness.tools.mcp import discover
from kubeharness.tools.mcp_wire import CONNECT_SECONDS

Answer = tuple[bool, str, str, Json]


class ToolsProbe:
    """A Probe over a SecretSource and the network."""

    def __init__(self, secrets: SecretSource, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._secrets = secrets
        self._connect_seconds = connect_seconds

    async def run(self, check: CheckLease) -> Answer:
        """(ok, condition reason, message, result); no value of a Secret is in any of them."""
        try:
            match check.kind:
                case "secret":
                    return await self._secret(check)
                case "tools":
                    return await self._tools(check)
                case unknown:
                    return False, "CheckUnknown", f"this worker knows no check {unknown!r}", None
        except SecretMissing as missing:
            return False, reason_of(missing), str(missing), None
        except ToolServerUnreachable as gone:
            return False, "ToolServerUnreachable", str(gone), None
        except KubeharnessError as error:
            return False, "CheckFailed", str(error), None

    async def _secret(self, check: CheckLease) -> Answer:
        ref = codec.decode(SecretKeyRef, check.payload)
        value = await self._secrets.read(check.namespace, ref.name, ref.key, fresh=True)
        if not value:
            return False, "SecretValueInvalid", f"Secret {check.namespace}/{ref.name} key {ref.key!r} is empty", None
        return True, "", "", None

    async def _tools(self, check: CheckLease) -> Answer:
        server = codec.decode(ToolServerSpec, check.payload)
        headers: dict[str, str] = {}
        for header in server.headers:
            if header.secret is not None:
                headers[header.name] = await self._secrets.read(
                    check.namespace, header.secret.name, header.secret.key, fresh=True
                )
            else:
                headers[header.name] = header.value or ""
        entries = await discover(server.url, headers, self._connect_seconds, server=server.name)
        return True, "", "", catalogue_json(entries)


def reason_of(missing: SecretMissing) -> str:
    """The condition reason of a Secret that cannot be used."""
    said = str(missing)
    if "may not be read" in said:
        return "SecretForbidden"
    if "is not UTF-8" in said:
        return "SecretValueInvalid"
    if "is not a key" in said:
        return "SecretKeyNotFound"
    return "SecretNotFound"
