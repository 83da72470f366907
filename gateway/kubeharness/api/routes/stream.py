"""GET /agents/{agent}/{id}: replay and live tail over SSE, or the snapshot, by Accept. A plain ASGI route."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kubeharness.api import sse
from kubeharness.api.asgi import ClientGone, Send, answer, while_connected
from kubeharness.api.call import Call
from kubeharness.api.problems import TooManyStreams
from kubeharness.api.settings import ApiSettings
from kubeharness.api.wire import snapshot_json
from kubeharness.core.codec import dumps
from kubeharness.core.errors import InvalidRequest, Unavailable
from kubeharness.core.ids import SubmissionId
from kubeharness.engine.runtime import Alarm, Subscription, Until

log = logging.getLogger(__name__)

SETTLED = "settled:"


class Places:
    """How many streams are open, in all and for each principal."""

    def __init__(self, settings: ApiSettings) -> None:
        self._settings = settings
        self._open: Counter[str] = Counter()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def taken(self) -> int:
        """Streams that are open now."""
        return self._open.total()

    async def wait_empty(self) -> None:
        """Return once no stream is open; the caller limits the wait."""
        await self._empty.wait()

    @contextmanager
    def take(self, principal: str) -> Iterator[None]:
        """Hold a place. Raises TooManyStreams for the caller's own limit, Unavailable for that of the gateway."""
        if self._open[principal] >= self._settings.max_streams_per_principal:
            raise TooManyStreams(self._settings.max_streams_per_principal)
        if self._open.total() >= self._settings.max_streams:
            raise Unavailable("this gateway holds as many streams as it can")
        self._open[principal] += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]
            if not self._open:
                self._empty.set()


async def show(call: Call, send: Send, places: Places) -> None:
    """The session, in the form that the caller accepts."""
    await call.require("read")
    if wants_json(call.headers.get(b"accept", b"")):
        snapshot = await call.runtime.snapshot(call.address())
        await answer(send, 200, dumps(snapshot_json(snapshot)), [(b"cache-control", b"no-store")])
        return
    await stream(call, send, places)


async def stream(call: Call, send: Send, places: Places) -> None:
    """Frames until the client leaves, `until` is reached, or this gateway closes."""
    address = call.address()
    after = offset_of(call)
    until = until_of(call)
    with places.take(call.principal.name):
        async with await call.runtime.stream(address, after=after, until=until) as subscription:
            # From here on nothing can be refused any more: what is unknown was said above.
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            if call.scope["method"] == "HEAD":
                await send({"type": "http.response.body"})
                return
            await while_connected(call.receive, _pump(subscription, send, call.settings))


async def _pump(subscription: Subscription, send: Send, settings: ApiSettings) -> None:
    loop = asyncio.get_running_loop()
    stalled = Alarm(lambda: _cut(send))
    chunk: bytes | None = sse.opening(settings.retry_milliseconds)
    try:
        while chunk is not None:
            stalled.set(loop.time() + settings.write_seconds)
            await send({"type": "http.response.body", "body": chunk or sse.HEARTBEAT, "more_body": True})
            stalled.clear()
            chunk = await subscription.chunk(settings.heartbeat_seconds)
        stalled.set(loop.time() + settings.write_seconds)
        await send({"type": "http.response.body", "body": b""})
    except Exception:
        # The status is sent: all that is left is to end the connection, and to come back is the client's part.
        log.exception("a stream broke off")
        _cut(send)
        await asyncio.sleep(0.01)  # until the server has noticed
        raise ClientGone from None
    finally:
        stalled.cancel()


def _cut(send: Send) -> None:
    """Drop the connection and what is buffered for it: a polite end would wait for the reader for ever (C24).

    The server then says that the client is gone, and the stream ends as it does for any client that leaves.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    abort = getattr(transport, "abort", None)
    if abort is not None:
        abort()


def offset_of(call: Call) -> str | None:
    """Where to go on from: `?after=`, else the Last-Event-ID of a client that comes back."""
    after = call.query("after")
    if after:
        return after
    raw = call.headers.get(b"last-event-id", b"")
    if not raw:
        return None
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidRequest("after", "give the id of a record, 26 characters, or leave it out") from None


def until_of(call: Call) -> Until:
    """`?until=idle`, `?until=settled:{submissionId}`."""
    text = call.query("until")
    if not text:
        return Until()
    if text == "idle":
        return Until(idle=True)
    if text.startswith(SETTLED) and len(text) > len(SETTLED):
        return Until(settled=SubmissionId(text.removeprefix(SETTLED)))
    raise InvalidRequest("until", "say idle, or settled:{submissionId}")


def wants_json(accept: bytes) -> bool:
    """Whether JSON is liked better than an event stream; the stream is what is meant where nothing is said."""
    if b"json" not in accept:
        return False
    likes = {b"application/json": 0.0, b"text/event-stream": 0.0}
    for part in accept.lower().split(b","):
        media, _, parameters = part.partition(b";")
        if media.strip() in likes:
            likes[media.strip()] = _quality(parameters)
    return likes[b"application/json"] > likes[b"text/event-stream"]


def _quality(parameters: bytes) -> float:
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
