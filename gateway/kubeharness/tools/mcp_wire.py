"""One MCP session over streamable HTTP: the client library's stack, entered and left in one task.

It knows HTTP and the library; what a call means to the model is `mcp.py`'s.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version

import httpx2
import orjson
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, CallToolRequest, CallToolRequestParams, CallToolResult, Implementation

from kubeharness.core.json import JsonObject
from kubeharness.core.text import as_object
from kubeharness.tools.mcp_body import MAX_RESPONSE_BYTES, ResponseTooLarge, TendedBody

CONNECT_SECONDS = 10.0
CALL_KEY = "kubeharness.dev/call-key"
"""The idempotency key of a call, in the request's `_meta`; it also tells calls apart on the wire."""

_SESSION_HEADERS = ("mcp-session-id", "mcp-protocol-version")
_GOODBYE_SECONDS = 1.0
_CLOSED = "Connection closed"
"""What the library says of every call of a session that went down."""
_NO_SESSION = re.compile(rb"session", re.IGNORECASE)


class SessionGone(Exception):
    """The server does not know our session and ran nothing (C37)."""


@dataclass(slots=True)
class _Watched:
    """What HTTP told of one call, which the library hides."""

    sent: bool = False
    lost: bool = False
    large: bool = False


class MCPSession:
    """One open session. `run` owns it; `call` may be used from any task while `alive`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._ended = asyncio.Event()
        self._calls: dict[str, _Watched] = {}
        self._retired = False
        self.failure: BaseException | None = None

    async def run(self) -> None:
        """Hold the session open until `close`. Raises nothing: what went wrong is in `failure`."""
        try:
            async with connected(self._url, self._headers, watch=self) as client:
                self._client.set_result(client)
                await self._leave.wait()
        except Exception as error:  # noqa: BLE001  the wire may do anything; the caller is told
            self.failure = plain(error)
        finally:
            self._ended.set()
            if not self._client.done():
                if self.failure is not None:
                    self._client.set_exception(self.failure)
                    self._client.exception()  # nobody may be waiting any more
                else:
                    self._client.cancel()

    @property
    def alive(self) -> bool:
        """Whether a call may be tried on it."""
        return not (self._retired or self._ended.is_set() or self._leave.is_set())

    async def opened(self) -> None:
        """Wait for the handshake. Raises what it failed with."""
        await asyncio.shield(self._client)

    def close(self) -> None:
        """Let `run` end in its own task."""
        self._leave.set()

    def retire(self) -> None:
        """Take no new call, and close when those that are under way have ended."""
        self._retired = True
        if not self._calls:
            self.close()

    async def call(self, tool: str, arguments: JsonObject, call_key: str) -> CallToolResult:
        """Run a tool. Raises SessionGone if it surely did not run, ResponseTooLarge, or what the library raises."""
        client = await asyncio.shield(self._client)
        watched = self._calls.setdefault(call_key, _Watched())
        try:
            try:
                return await _call(client, tool, arguments, call_key)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:  # refused before it ran: our picture of its schema is old
                    raise
                await client.list_tools()
                return await _call(client, tool, arguments, call_key)
        except MCPError as error:
            if watched.large:
                raise ResponseTooLarge(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes") from error
            if error.message == _CLOSED and await self._has_ended():
                if not watched.sent:
                    raise SessionGone(error.message) from error
                raise self.failure or error from error
            if watched.lost:
                raise SessionGone(error.message) from error
            raise
        finally:
            self._calls.pop(call_key, None)
            if self._retired:
                self.retire()

    async def _has_ended(self) -> bool:
        """Whether the whole session went down; its calls hear of it just before it is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._ended.wait()
        return self._ended.is_set()

    # --- what `connected` sees of each request ---

    def asked(self, request: httpx2.Request) -> None:
        """A request goes out."""
        if watched := self._calls.get(_call_key(request)):
            watched.sent = True

    def too_large(self, request: httpx2.Request) -> None:
        """Its answer was stopped."""
        if watched := self._calls.get(_call_key(request)):
            watched.large = True

    async def answered(self, response: httpx2.Response) -> None:
        """It was refused for its session, perhaps; the library hides the status."""
        status, request = response.status_code, response.request
        if status not in (400, 404) or request.method != "POST" or _SESSION_HEADERS[0] not in request.headers:
            return
        if status == 400 and not _NO_SESSION.search(await response.aread()):
            return
        if watched := self._calls.get(_call_key(request)):
            watched.lost = True


@asynccontextmanager
async def connected(url: str, headers: Mapping[str, str], *, watch: MCPSession | None = None) -> AsyncIterator[Client]:
    """A client after its handshake, over HTTP of its own with these headers. One task enters and leaves."""
    session: dict[str, str] = {}

    async def responded(response: httpx2.Response) -> None:
        request = response.request
        session.update({name: request.headers[name] for name in _SESSION_HEADERS if name in request.headers})
        if request.method == "POST":
            response.stream = TendedBody(response, lambda: watch.too_large(request) if watch else None)
        if watch is not None:
            await watch.answered(response)

    async def asked(request: httpx2.Request) -> None:
        if watch is not None and request.method == "POST":
            watch.asked(request)

    async with httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},  # `TendedBody` reads what comes
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # each call has a deadline of its own
        event_hooks={"request": [asked], "response": [responded]},
        follow_redirects=False,
    ) as http:
        transport = streamable_http_client(
            url, http_client=http, max_sse_event_size=2 * MAX_RESPONSE_BYTES, terminate_on_close=False
        )
        about = Implementation(name="kubeharness", version=version("kubeharness"))
        async with Client(transport, client_info=about, cache=None) as client:
            yield client
        if _SESSION_HEADERS[0] in session:  # the library's own goodbye has no deadline (C36)
            with suppress(TimeoutError, httpx2.HTTPError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await http.delete(url, headers=session)


async def _call(client: Client, tool: str, arguments: JsonObject, call_key: str) -> CallToolResult:
    # not client.call_tool: it lists the tools again and checks results against their output schema with
    # patterns that may backtrack for ever (C39)
    params = CallToolRequestParams.model_validate({"name": tool, "arguments": arguments, "_meta": {CALL_KEY: call_key}})
    return await client.session.send_request(CallToolRequest(params=params), CallToolResult)


def _call_key(request: httpx2.Request) -> str:
    """The key of the call that a request makes; empty for any other request."""
    params = as_object((as_object(orjson.loads(request.content)) or {}).get("params")) or {}
    key = (as_object(params.get("_meta")) or {}).get(CALL_KEY)
    return key if isinstance(key, str) else ""


def plain(error: BaseException) -> BaseException:
    """The one error inside of a group, else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
