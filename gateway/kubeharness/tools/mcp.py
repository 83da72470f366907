"""MCP over streamable HTTP as a source of tools: discovery, and calls over one session an attempt."""

import asyncio
from collections.abc import Mapping, Sequence

import orjson
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from kubeharness.core.errors import ToolServerUnreachable
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import ToolResult
from kubeharness.core.records import OutcomeCause
from kubeharness.core.redaction import Redactor, secrets_in_url
from kubeharness.core.text import as_object, clean_json, clean_text, cut_text
from kubeharness.tools.catalogue import CatalogueEntry
from kubeharness.tools.mcp_body import ResponseTooLarge
from kubeharness.tools.mcp_wire import CONNECT_SECONDS, MCPSession, SessionGone, connected, plain
from kubeharness.tools.tasks import OwnedTasks

MAX_DATA_BYTES = 262_144
MAX_IMAGE_CHARACTERS = 4 * 1_048_576
_MAX_PAGES = 100
_MAX_TOOLS = 1_000
_QUOTED_BYTES = 1_000


async def discover(
    url: str, headers: Mapping[str, str], deadline: float = CONNECT_SECONDS, *, server: str = ""
) -> list[CatalogueEntry]:
    """List the tools of a server. Raises ToolServerUnreachable if it has not answered within `deadline` seconds."""
    redact = _redactor(url, headers)
    try:
        async with asyncio.timeout(deadline), connected(url, headers) as client:
            found: list[CatalogueEntry] = []
            cursor: str | None = None
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                for tool in page.tools:
                    annotations = tool.annotations
                    found.append(
                        CatalogueEntry(
                            clean_text(tool.name),
                            redact(clean_text(tool.description or "")),
                            as_object(clean_json(tool.input_schema)) or {},
                            bool(annotations and annotations.idempotent_hint),
                        )
                    )
                cursor = page.next_cursor
                if cursor is None or len(found) >= _MAX_TOOLS:
                    break
            return found[:_MAX_TOOLS]
    except TimeoutError as error:
        raise ToolServerUnreachable(server, f"no list of tools within {deadline:g} s") from error
    except Exception as error:  # the library raises groups of anything; each is the same to us
        raise ToolServerUnreachable(server, _said(error, redact)) from error


class MCPConnection:
    """The session of one attempt with one server: opened by the first call, opened anew when it is gone.

    Its tasks are the given ones, so it ends with their block. Raises from `call` become error results above.
    """

    def __init__(
        self,
        server: str,
        url: str,
        headers: Mapping[str, str],
        tasks: OwnedTasks,
        *,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> None:
        self._server = server
        self._url = url
        self._headers = headers
        self._tasks = tasks
        self._connect_seconds = connect_seconds
        self._redact = _redactor(url, headers)
        self._session: MCPSession | None = None
        self._running: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def call(self, tool: str, arguments: JsonObject, call_key: str) -> ToolResult:
        """Run a tool of the server; repeated once, and only where the server ran nothing (C37).

        Raises ToolServerUnreachable if the session cannot be opened or broke under the call.
        """
        session = await self._open(None)
        try:
            try:
                return self._result(await session.call(tool, arguments, call_key))
            except SessionGone:
                session = await self._open(session)
                return self._result(await session.call(tool, arguments, call_key))
        except ResponseTooLarge as error:
            return ToolResult(str(error), is_error=True, cause=OutcomeCause.TOO_LARGE.value)
        except MCPError as error:
            return ToolResult(_said(error, self._redact), is_error=True)
        except Exception as error:
            raise ToolServerUnreachable(self._server, _said(error, self._redact)) from error

    def close(self) -> "asyncio.Task[None] | None":
        """Start to say goodbye to the server; the task that does it ends at the latest with the tasks' block."""
        if self._session is not None:
            self._session.close()
        return self._running

    async def _open(self, gone: MCPSession | None) -> MCPSession:
        """The session, opened at need; calls that meet at a dead one open one new one between them."""
        async with self._opening:
            session = self._session
            if session is not None and session is not gone and session.alive:
                return session
            if session is not None:
                session.retire()  # other calls on it are told in their own time
            session = self._session = MCPSession(self._url, self._headers)
            running = self._running = self._tasks.start(session.run())
            try:
                async with asyncio.timeout(self._connect_seconds):
                    await session.opened()
            except TimeoutError as error:
                running.cancel()
                self._session = None
                why = f"no handshake within {self._connect_seconds:g} s"
                raise ToolServerUnreachable(self._server, why) from error
            except Exception as error:  # as in discover
                self._session = None
                raise ToolServerUnreachable(self._server, _said(error, self._redact)) from error
            return session

    def _result(self, result: CallToolResult) -> ToolResult:
        data = _storable(result.structured_content)
        text = "\n".join(_text(block) for block in result.content)
        if not result.content and data is not None:
            text = orjson.dumps(data).decode()
        return ToolResult(
            content=self._redact(clean_text(text)),
            is_error=result.is_error,
            image_data_url=_image(result.content),
            data=as_object(data),
        )


def _text(block: ContentBlock) -> str:
    match block:
        case TextContent():
            return block.text
        case ImageContent():
            fits = len(block.data) <= MAX_IMAGE_CHARACTERS
            return f"[image, {block.mime_type}]" if fits else f"[image, {block.mime_type}, too large]"
        case EmbeddedResource() if isinstance(block.resource, TextResourceContents):
            return block.resource.text
        case EmbeddedResource():
            return f"[resource {block.resource.uri}, {block.resource.mime_type or 'binary'}]"
        case ResourceLink():
            return f"[resource {block.uri}, {block.name}]"
        case _:
            return f"[{block.type}, {block.mime_type}]"


def _image(blocks: Sequence[ContentBlock]) -> str | None:
    """The first image; a result holds one."""
    for block in blocks:
        if isinstance(block, ImageContent) and len(block.data) <= MAX_IMAGE_CHARACTERS:
            return f"data:{block.mime_type};base64,{block.data}"
    return None


def _storable(value: Json) -> Json:
    """Structured content that the log can hold, else None: the text says it too."""
    cleaned = clean_json(value)
    try:
        fits = len(orjson.dumps([[[[[[[[cleaned]]]]]]]])) <= MAX_DATA_BYTES
    except orjson.JSONEncodeError:  # nested too deep, or numbers beyond 64 bits
        return None
    return cleaned if fits else None


def _redactor(url: str, headers: Mapping[str, str]) -> Redactor:
    return Redactor([*secrets_in_url(url), *headers.values()])


def _said(error: BaseException, redact: Redactor) -> str:
    error = plain(error)
    text = error.message if isinstance(error, MCPError) else f"{type(error).__name__}: {error}"
    return cut_text(redact(clean_text(text)), _QUOTED_BYTES)[0]
