"""Chat completions of an OpenAI-compatible server, streamed, behind `core.ports.Provider`.

Plain HTTP, without an SDK: docs/adr/0005 says why. What goes out is `chat_request`'s, what comes in is
`chat_answer`'s, what goes wrong is `failures`'. Nothing is tried twice here: the engine decides that.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import version

import httpx2
import orjson

from kubeharness.core.errors import ProviderError, ProviderFatal, ProviderTransient
from kubeharness.core.events import CompletionEnd, ProviderEvent
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.messages import ProviderMessage, ToolDefinition
from kubeharness.core.redaction import Redactor, secrets_in_url
from kubeharness.core.revision import ModelSettings
from kubeharness.core.text import as_object
from kubeharness.providers.chat_answer import ChatAnswer
from kubeharness.providers.chat_request import chat_request
from kubeharness.providers.failures import broke_off, quoted, refused

IDLE_SECONDS = 60.0
_USAGE_SECONDS = 2.0
"""How long usage may trail the finish reason: an answer that has its end is not lost for its statistics."""
_GOODBYE_SECONDS = 0.1
"""How long the end of the HTTP body may trail the end of the answer; read, the connection serves again."""
_MAX_EVENT_BYTES = 4 * 1_048_576
_MAX_BODY_BYTES = 8 * 1_048_576
_DONE = "[DONE]"


class OpenAICompatibleProvider:
    """One turn over HTTP. Silence of `idle_seconds`, keep-alives not counted, is a transient error."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | None,
        model: ModelSettings,
        http: httpx2.AsyncClient,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._model = model
        self._http = http
        self._idle_seconds = idle_seconds
        self._redact = Redactor([api_key, *secrets_in_url(base_url)])

    async def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        """Ask, and yield the answer as it comes. Raises a ProviderError; never ends without one or the other."""
        began = time.monotonic()

        def elapsed_ms() -> int:
            return round((time.monotonic() - began) * 1000)

        answer = ChatAnswer(self._model.name)
        async with self._asked(messages, tools) as response, aclosing(self._chunks(response, answer)) as chunks:
            async for chunk in chunks:
                for event in answer.take(chunk, elapsed_ms()):
                    yield event
        if not answer.finished:  # a complete call in it is not run (C35)
            raise ProviderTransient("the stream ended without a finish reason")
        for event in answer.end(elapsed_ms()):
            yield event
        yield CompletionEnd(answer.message(), elapsed_ms())

    @asynccontextmanager
    async def _asked(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[httpx2.Response]:
        """The response of a request that was accepted, closed with the block."""
        try:
            request = self._request(chat_request(self._model, messages, tools))
            async with asyncio.timeout(self._idle_seconds):
                response = await self._http.send(request, stream=True)
                if response.status_code != 200:
                    body = await _body(response)
                    raise refused(response.status_code, response.headers, body, self._redact)
        except ProviderError:
            raise
        except Exception as error:
            raise self._typed(error) from error
        try:
            yield response
        finally:
            await response.aclose()

    def _request(self, body: JsonObject) -> httpx2.Request:
        url = httpx2.URL(self._base_url)
        return self._http.build_request(
            "POST",
            url.copy_with(path=f"{url.path.rstrip('/')}/chat/completions"),
            content=orjson.dumps(body),
            headers={
                "content-type": "application/json",
                "accept": "text/event-stream",
                "user-agent": f"kubeharness/{version('kubeharness')}",
                **({"authorization": f"Bearer {self._api_key}"} if self._api_key else {}),
            },
        )

    async def _chunks(self, response: httpx2.Response, answer: ChatAnswer) -> AsyncGenerator[JsonObject, None]:
        """The chunks until the answer is whole or the stream ends; what breaks after a finish reason is no loss."""
        clock = asyncio.get_running_loop().time
        try:
            if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                yield await self._unstreamed(response)
                return
            source = httpx2.EventSource(response, max_event_size=_MAX_EVENT_BYTES)
            async with aclosing(source.__aiter__()) as events:  # type: ignore[type-var]  # typed as an iterator
                seen, deadline = answer.progress, clock() + self._idle_seconds
                while True:
                    async with asyncio.timeout_at(deadline):
                        event = await anext(events, None)
                    if event is None:
                        return
                    if event.data.startswith(_DONE):
                        deadline = min(deadline, clock() + _GOODBYE_SECONDS)
                        continue
                    yield self._chunk(event)
                    if answer.progress == seen:  # a keep-alive in the clothes of a chunk
                        continue
                    seen = answer.progress
                    left = (
                        self._idle_seconds
                        if not answer.finished
                        else _GOODBYE_SECONDS
                        if answer.complete
                        else _USAGE_SECONDS
                    )
                    deadline = clock() + left
        except ProviderError:
            if not answer.finished:
                raise
        except Exception as error:
            if not answer.finished:
                raise self._typed(error) from error

    def _chunk(self, event: httpx2.ServerSentEvent) -> JsonObject:
        chunk = as_object(_loads(event.data)) or {}
        if event.event == "error" or chunk.get("error"):
            raise broke_off(chunk.get("error") or chunk, self._redact)
        return chunk

    async def _unstreamed(self, response: httpx2.Response) -> JsonObject:
        """A whole answer of a server that does not stream; an error or a page under status 200 (C35) is raised."""
        async with asyncio.timeout(self._idle_seconds):
            body = await _body(response)
        kind = response.headers.get("content-type", "no content type")
        try:
            answer = as_object(_loads(body)) or {}
        except ValueError:
            answer = {}
        if answer.get("error"):
            raise broke_off(answer["error"], self._redact)
        if not answer.get("choices"):
            raise ProviderTransient(f"HTTP 200 with {kind!r} and no answer: {quoted(body, self._redact)}")
        return answer

    def _typed(self, error: Exception) -> ProviderError:
        match error:
            case TimeoutError():
                return ProviderTransient(f"the model wire was silent for {self._idle_seconds:g} s")
            case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() | httpx2.LocalProtocolError():
                return ProviderFatal(f"the request cannot be made: {quoted(str(error), self._redact)}")
            case orjson.JSONEncodeError():
                return ProviderFatal(f"the request is no JSON: {quoted(str(error), self._redact)}")
            case _:
                said = quoted(f"{type(error).__name__}: {error}", self._redact)
                return ProviderTransient(f"the model wire failed: {said}")


async def _body(response: httpx2.Response) -> str:
    """The body, bounded."""
    found = bytearray()
    async for part in response.aiter_bytes():
        found += part
        if len(found) > _MAX_BODY_BYTES:
            break
    return found[:_MAX_BODY_BYTES].decode(errors="replace")


def _loads(text: str) -> Json:
    try:
        value: Json = orjson.loads(text)
    except ValueError:
        value = json.loads(text)  # half of a surrogate pair in an escape: orjson takes none (C30)
    return value
