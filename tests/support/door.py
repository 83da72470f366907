"""A loopback port before a TCP server, on a thread of its own: for tests that block while processes talk through it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_door(port: int, to: int) -> Iterator[None]:
    """Forward `port` to `to` for as long as the block lasts; then who is inside is cut, and new ones are refused."""
    up, shut = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_forward(port, to, up, shut)), name=f"door {port}")
    thread.start()
    try:
        assert up.wait(10), f"port {port} does not open"
        yield
    finally:
        shut.set()
        thread.join(10)


async def _forward(port: int, to: int, up: threading.Event, shut: threading.Event) -> None:
    open_: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection("127.0.0.1", to)
        open_.update((writer, out))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(copy(reader, out))
                tasks.create_task(copy(upstream, writer))
        finally:
            open_.difference_update((writer, out))

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    up.set()
    await asyncio.to_thread(shut.wait)
    server.close()
    for writer in list(open_):
        writer.transport.abort()
    await asyncio.sleep(0.05)
