"""What a review makes of an API server that answers otherwise than ours does: older, behind a webhook, or broken."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.core.principal import Identity
from kubeharness.kube.review import KubernetesReview
from kubeharness.telemetry.logs import configure

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
KNOWN = {"authenticated": True, "user": {"username": "jane", "groups": ["devs"], "extra": {"b": ["2"], "a": ["1"]}}}


@asynccontextmanager
async def answering(
    folder: Path, body: object, *, status: str = "201 Created", audiences: tuple[str, ...] = ()
) -> AsyncIterator[KubernetesReview]:
    """A review whose server gives always this answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        await reader.readexactly(int(length.partition(":")[2]))
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n".encode() + raw)
        await writer.drain()
        writer.close()

    async with served(folder, answer, audiences) as review:
        yield review


@asynccontextmanager
async def served(folder: Path, answer: Answer, audiences: tuple[str, ...] = ()) -> AsyncIterator[KubernetesReview]:
    """A review over a server of a test's own."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        config = folder / "kubeconfig"
        document = {
            "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "x", "user": {"token": "ours"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        config.write_text(json.dumps(document))
        async with KubernetesReview(kubeconfig=config, audiences=audiences) as review:
            yield review


async def test_a_server_that_knows_nothing_of_audiences_lets_nobody_in_who_needs_one(tmp_path: Path) -> None:
    async with answering(tmp_path, {"status": KNOWN}, audiences=("kubeharness",)) as review:
        assert await review.identify("token") is None
    async with answering(tmp_path, {"status": KNOWN | {"audiences": ["x"]}}, audiences=("kubeharness",)) as review:
        assert await review.identify("token") is None
    async with answering(tmp_path, {"status": KNOWN}) as review:
        who = await review.identify("token")

    assert who == Identity(name="jane", groups=("devs",), extra=(("a", ("1",)), ("b", ("2",))))


@pytest.mark.parametrize(
    "status", [{}, {"authenticated": False}, {"authenticated": True}, {"authenticated": "yes", "user": KNOWN["user"]}]
)
async def test_whoever_is_not_named_is_nobody(tmp_path: Path, status: object) -> None:
    async with answering(tmp_path, {"status": status}) as review:
        assert await review.identify("token") is None


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        ({"allowed": True}, True),
        ({"allowed": True, "denied": True}, False),
        ({"allowed": False, "evaluationError": "webhook"}, False),
        ({"allowed": "true"}, False),
        ({}, False),
    ],
)
async def test_only_what_is_allowed_in_so_many_words_is(tmp_path: Path, status: object, allowed: bool) -> None:
    async with answering(tmp_path, {"status": status}) as review:
        assert await review.allows(Identity(name="jane"), "read", "default", "demo") is allowed


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "Status", "code": 500}, "500 Internal Server Error"),
        ({"kind": "Status", "code": 429}, "429 Too Many Requests"),
        ({"kind": "Status", "code": 404}, "404 Not Found"),
        ({"status": KNOWN}, "502 Bad Gateway"),
        (b"<html>", "200 OK"),
        (b"\xff{", "200 OK"),
        ([], "201 Created"),
        ({"status": "Success"}, "201 Created"),
        ({}, "201 Created"),
    ],
)
async def test_what_is_no_answer_is_unavailable_and_never_a_yes(tmp_path: Path, body: object, status: str) -> None:
    async with answering(tmp_path, body, status=status) as review:
        with pytest.raises(Unavailable, match="could not answer a TokenReview"):
            await review.identify("token")
        with pytest.raises(Unavailable, match="could not answer a SubjectAccessReview"):
            await review.allows(Identity(name="jane"), "read", "default", "demo")


async def test_a_kept_connection_that_the_server_gives_up_is_noticed_by_nobody(tmp_path: Path) -> None:
    """An idle connection may be closed just as the next question goes out on it."""
    raw = json.dumps({"status": KNOWN}).encode()
    connections = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        for kept in (True, False):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
            if kept:
                writer.write(f"HTTP/1.1 201 Created\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
                await writer.drain()
        writer.close()

    async with served(tmp_path, once) as review:
        assert await review.identify("first") is not None
        assert await review.identify("second") is not None
        assert connections == 2


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], level = before
    root.setLevel(level)


def test_at_debug_level_the_client_does_not_write_what_it_got_c53(root_logger: logging.Logger) -> None:
    """Its answers hold Secrets, which workers read, and tokens."""
    configure("json", "debug")

    assert root_logger.isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("kubernetes_asyncio.client.rest").isEnabledFor(logging.DEBUG)
