"""The few shapes of ASGI that the hot routes use, and answers made of bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

from kubeharness.api.problems import Problem
from kubeharness.core.errors import KubeharnessError

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The other side closed the connection: there is nobody to answer."""


async def answer(send: Send, status: int, body: bytes, headers: Headers | None = None) -> None:
    """One JSON answer."""
    head: Headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    head += headers or []
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def answer_problem(send: Send, problem: Problem) -> None:
    """An error as an answer."""
    await answer(send, problem.status, problem.body, problem.headers)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, as long as somebody waits for it. Raises ClientGone, and cancels it, if nobody does."""
    results: list[T] = []
    failure: KubeharnessError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(_until_gone(receive))
            try:
                results.append(await work)
            except KubeharnessError as error:
                failure = error
            watch.cancel()
    except* ClientGone:
        pass
    if failure is not None:
        raise failure
    if not results:
        raise ClientGone
    return results[0]


async def _until_gone(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
