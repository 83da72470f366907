"""One MCP session over streamable HTTP: the client library's stack, entered and left in one task.

It knows HTTP and the library; what a call means to the model is `mcp.py`'s.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

import httpx2
import orjson
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, CallToolRequest, CallToolRequestParams, CallToolResult, Implementation

from kubeharness.core.json import JsonObject
from kubeharness.core.text import as_object

CONNECT_SECONDS = 10.0
MAX_RESPONSE_BYTES = 8 * 1_048_576
"""Read of one answer; the engine cuts what it keeps to much less, and says so in the record."""
CALL_KEY = "kubeharness.dev/call-key"
"""The idempotency key of a call, in the request's `_meta`; it also tells calls apart on the wire."""

_SESSION_HEADERS = ("mcp-session-id", "mcp-protocol-version")
_GOODBYE_SECONDS = 1.0
_NO_SESSION = re.compile(rb"session", re.IGNORECASE)


class SessionGone(Exception):
    """The server does not know our session and ran nothing (C37)."""


class ResponseTooLarge(httpx2.ReadError):
    """A server sends more than anybody would read."""


class MCPSession:
    """One open session. `run` owns it; `call` may be used from any task while `alive`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._leave = asyncio.Event()
        self._lost_calls: set[str] = set()
        self._large_calls: set[str] = set()
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
            if not self._client.done():
                if self.failure is not None:
                    self._client.set_exception(self.failure)
                    self._client.exception()  # nobody may be waiting any more
                else:
                    self._client.cancel()

    @property
    def alive(self) -> bool:
        """Whether a call may be tried on it."""
        return self.failure is None and not self._leave.is_set()

    async def opened(self) -> None:
        """Wait for the handshake. Raises what it failed with."""
        await asyncio.shield(self._client)

    def close(self) -> None:
        """Let `run` end in its own task."""
        self._leave.set()

    async def call(self, tool: str, arguments: JsonObject, call_key: str) -> CallToolResult:
        """Run a tool. Raises SessionGone if the server had forgotten us, ResponseTooLarge, or what the library does."""
        client = await asyncio.shield(self._client)
        try:
            try:
                return await _call(client, tool, arguments, call_key)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:  # refused before it ran: our picture of its schema is old
                    raise
                await client.list_tools()
                return await _call(client, tool, arguments, call_key)
        except MCPError as error:
            if call_key in self._lost_calls:
                raise SessionGone(error.message) from error
            if call_key in self._large_calls:
                raise ResponseTooLarge(f"the answer is larger than {MAX_RESPONSE_BYTES} bytes") from error
            raise self.failure or error from error
        finally:
            self._lost_calls.discard(call_key)
            self._large_calls.discard(call_key)

    def too_large(self, request: httpx2.Request) -> None:
        """Mark the call whose answer was stopped."""
        self._large_calls.add(_call_key(request))

    async def responded(self, response: httpx2.Response) -> None:
        """Mark the call whose request was refused for its session; the library hides the status."""
        request = response.request
        if request.method != "POST" or _SESSION_HEADERS[0] not in request.headers:
            return
        if response.status_code not in (400, 404):
            return
        if response.status_code == 400 and not _NO_SESSION.search(await response.aread()):
            return
        params = as_object((as_object(orjson.loads(request.content)) or {}).get("params")) or {}
        key = (as_object(params.get("_meta")) or {}).get(CALL_KEY)
        if isinstance(key, str):
            self._lost_calls.add(key)


@asynccontextmanager
async def connected(url: str, headers: Mapping[str, str], *, watch: MCPSession | None = None) -> AsyncIterator[Client]:
    """A client after its handshake, over HTTP of its own with these headers. One task enters and leaves."""
    session: dict[str, str] = {}

    async def responded(response: httpx2.Response) -> None:
        request = response.request
        session.update({name: request.headers[name] for name in _SESSION_HEADERS if name in request.headers})
        if request.method == "POST":
            response.stream = _Bounded(response.stream, lambda: watch.too_large(request) if watch else None)
        if watch is not None:
            await watch.responded(response)

    async with httpx2.AsyncClient(
        headers=dict(headers),
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),  # each call has a deadline of its own
        event_hooks={"response": [responded]},
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


class _Bounded(httpx2.AsyncByteStream):
    """A body that ends, with an error, where nobody would read on."""

    def __init__(self, inner: object, overflowed: Callable[[], None]) -> None:
        assert isinstance(inner, httpx2.AsyncByteStream)
        self._inner = inner
        self._overflowed = overflowed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_RESPONSE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                self._overflowed()
                raise ResponseTooLarge("too large")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def plain(error: BaseException) -> BaseException:
    """The one error inside of a group, else the error itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
