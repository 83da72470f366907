"""A steered run over each of the stores: the inbox is read in order, without the log, and consumed once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from kubeharness.core.json import JsonObject
from kubeharness.core.records import SettledStatus
from kubeharness.store.memory import memory_store
from kubeharness.store.postgres.store import PostgresStore
from kubeharness.store.sqlite.store import sqlite_store
from kubeharness.store.store import TransactionalStore
from support.house import House, calls, rule, tool


@pytest_asyncio.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TransactionalStore]:
    """A store of each kind."""
    async with AsyncExitStack() as stack:
        match request.param:
            case "memory":
                yield memory_store()
            case "sqlite":
                opened = await sqlite_store(tmp_path / "harness.db")
                stack.push_async_callback(opened.aclose)
                yield opened
            case _:
                yield await stack.enter_async_context(PostgresStore.open(request.getfixturevalue("postgres_url")))


async def test_messages_are_read_in_the_order_they_were_put_and_then_no_more(store: TransactionalStore) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waits(arguments: JsonObject) -> str:
        begun.set()
        await go.wait()
        return "waited"

    script = [rule(*calls("waits"), contains="begin"), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("waits", waits)], given=store).open() as house:
        submission = await house.dispatch("begin")
        await begun.wait()
        for body in ("one", "two", "three"):
            await house.steer(body, via="followup" if body == "two" else "steer")
        unread = [message.body for message in await store.inbox(house.conversation)]
        go.set()
        ended = await house.settled(submission)

        assert unread == ["one", "two", "three"]
        assert ended.status is SettledStatus.SUCCEEDED
        assert [text for role, text in house.said(1) if role == "user"] == ["begin", "one", "three"]
        assert [text for role, text in house.said(2) if role == "user"] == ["begin", "one", "three", "two"]
        assert await store.inbox(house.conversation) == []
