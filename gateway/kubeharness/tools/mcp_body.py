"""The body of an answer on its way to the client library: bounded, and with escapes that it can read."""

import re
from collections.abc import AsyncIterator, Callable

import httpx2

MAX_RESPONSE_BYTES = 8 * 1_048_576
"""Read of one answer; the engine cuts what it keeps to much less, and says so in the record."""

_ESCAPE = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"  # a pair: stays
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"  # half of one
    rb"|\\."  # any other escape, so that an escaped backslash is not taken for the start of one
)


class ResponseTooLarge(httpx2.ReadError):
    """A server sends more than anybody would read."""


class TendedBody(httpx2.AsyncByteStream):
    """The body of `response`, which it replaces. Past MAX_RESPONSE_BYTES it calls `overflowed` and raises.

    Lone surrogates become U+FFFD here: the library's parser would refuse the whole answer for one (C13).
    """

    def __init__(self, response: httpx2.Response, overflowed: Callable[[], None]) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._inner = response.stream
        self._overflowed = overflowed
        self._readable = "content-encoding" not in response.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_RESPONSE_BYTES
        line: list[bytes] = []
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                self._overflowed()
                raise ResponseTooLarge("too large")
            if not self._readable:
                yield chunk
                continue
            head, newline, tail = chunk.rpartition(b"\n")  # no escape goes over a line's end
            if newline:
                yield healed(b"".join([*line, head, newline]))
                line = []
            line.append(tail)
        if rest := b"".join(line):
            yield healed(rest)

    async def aclose(self) -> None:
        """Close the body behind it."""
        await self._inner.aclose()


def healed(text: bytes) -> bytes:
    """JSON text without escapes of lone surrogates."""
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[2] else found[0], text)
