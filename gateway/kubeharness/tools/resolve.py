"""From a revision to the tools of one attempt: built-ins, and those of the tool servers it is granted."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from kubeharness.core.errors import ToolServerUnreachable
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import ToolDefinition, ToolResult
from kubeharness.core.revision import AgentRevision, ToolGrant, ToolServerSpec
from kubeharness.tools.builtin import BUILTINS
from kubeharness.tools.catalogue import CatalogueEntry, read_catalogue
from kubeharness.tools.mcp import MCPConnection, discover
from kubeharness.tools.mcp_wire import CONNECT_SECONDS
from kubeharness.tools.tasks import OwnedTasks
from kubeharness.tools.toolbox import DEFAULT_TIMEOUT_SECONDS, Tool, Toolbox

_GOODBYE_SECONDS = 2.0

Headers = Mapping[str, Mapping[str, str]]
"""Server name → its headers, Secrets filled in."""


class Toolboxes:
    """Gives toolboxes. Definitions come from the catalogues that checks keep; who has none is asked at once."""

    def __init__(self, *, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._connect_seconds = connect_seconds

    @asynccontextmanager
    async def open(
        self, revision: AgentRevision, *, catalogues: Mapping[str, Json], headers: Headers
    ) -> AsyncIterator[Toolbox]:
        """The tools of one attempt; sessions with servers are opened by the first call and end with the block.

        Raises ToolServerUnreachable for a required server without a catalogue; one that is not required
        becomes a warning of the toolbox.
        """
        async with OwnedTasks() as tasks:
            wanted = sorted({grant.builtin for grant in revision.tools if grant.builtin is not None})
            tools = [BUILTINS[name]() for name in wanted if name in BUILTINS]
            warnings = [f"there is no built-in tool {name!r}" for name in wanted if name not in BUILTINS]
            connections: list[MCPConnection] = []
            for server, grants in _servers(revision.tools).items():
                given = headers.get(server.name, {})
                entries = read_catalogue(catalogues.get(server.name))
                if entries is None:
                    try:
                        entries = await discover(server.url, given, self._connect_seconds, server=server.name)
                    except ToolServerUnreachable as error:
                        if server.required:
                            raise
                        warnings.append(str(error))
                        continue
                connection = MCPConnection(server.name, server.url, given, tasks, connect_seconds=self._connect_seconds)
                connections.append(connection)
                granted = [entry for entry in entries if _granted(entry.name, grants)]
                tools += [_tool(server, entry, connection) for entry in granted]
                warnings += _missing(server, grants, entries)
            try:
                yield Toolbox(tools, warnings)
            finally:
                if leaving := [task for connection in connections if (task := connection.close())]:
                    await asyncio.wait(leaving, timeout=_GOODBYE_SECONDS)


def _servers(grants: Sequence[ToolGrant]) -> dict[ToolServerSpec, list[ToolGrant]]:
    """Each server once, in a stable order, with all that is granted of it."""
    found: dict[ToolServerSpec, list[ToolGrant]] = {}
    for grant in grants:
        if grant.server is not None:
            found.setdefault(grant.server, []).append(grant)
    return dict(sorted(found.items(), key=lambda item: item[0].name))


def _granted(name: str, grants: Sequence[ToolGrant]) -> bool:
    return any(not grant.include or name in grant.include for grant in grants)


def _missing(server: ToolServerSpec, grants: Sequence[ToolGrant], entries: Sequence[CatalogueEntry]) -> list[str]:
    offered = {entry.name for entry in entries}
    wanted = {name for grant in grants for name in grant.include}
    return [f"tool server {server.name!r} offers no tool {name!r}" for name in sorted(wanted - offered)]


def _tool(server: ToolServerSpec, entry: CatalogueEntry, connection: MCPConnection) -> Tool:
    policy = next((policy for policy in server.policies if policy.name == entry.name), None)

    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        return await connection.call(entry.name, arguments, call_key)

    return Tool(
        definition=ToolDefinition(entry.name, entry.description, entry.input_schema),
        run=run,
        server=server.name,
        idempotent=policy is not None and policy.idempotent,  # the platform's word, not the server's
        timeout_seconds=float((policy and policy.timeout_seconds) or DEFAULT_TIMEOUT_SECONDS),
    )
