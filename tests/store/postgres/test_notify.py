"""Hints between processes: few, beside the writes, and mended when they break (I1, C14)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import pytest

from kubeharness.core.ids import ConversationId
from kubeharness.store.postgres import notify
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.notify import LOG, WORK, PostgresWaker
from support.tcpproxy import tcp_proxy

OpenWaker = Callable[..., Awaitable[PostgresWaker]]
A, B = ConversationId("conv_a"), ConversationId("conv_b")
LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'kubeharness listen' AND datname = current_database()"
)
END_LISTENERS = LISTENERS.replace("pid", "pg_terminate_backend(pid)")


class Ear:
    """What one process hears."""

    def __init__(self, waker: PostgresWaker) -> None:
        self.work = 0
        self.logs: set[ConversationId] = set()
        self.everything = 0
        self.calls = 0
        waker.on_work(self._rouse)
        waker.on_log(self._dirty)

    def _rouse(self) -> None:
        self.work += 1

    def _dirty(self, conversations: Sequence[ConversationId] | None) -> None:
        self.calls += 1
        if conversations is None:
            self.everything += 1
        else:
            self.logs.update(conversations)


@pytest.fixture
async def wakers(postgres_url: str) -> AsyncIterator[OpenWaker]:
    """Opens wakers over one database, each as a process of its own would."""
    async with AsyncExitStack() as opened:

        async def another(url: str = postgres_url, *, hints: bool = True) -> PostgresWaker:
            return await opened.enter_async_context(PostgresWaker.open(url, hints=hints))

        yield another


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.005)


async def listening(ear: Ear) -> None:
    """Once it listens, it says that everything may have changed."""
    await until(lambda: ear.everything > 0)


async def test_another_process_hears_of_logs_and_of_work(wakers: OpenWaker) -> None:
    here, there = await wakers(), await wakers()
    ear = Ear(there)
    await listening(ear)
    roused = ear.work

    here.touched([A, B], work=False)
    await until(lambda: ear.logs == {A, B})
    assert ear.work == roused

    here.touched([], work=True)
    await until(lambda: ear.work > roused)


async def test_the_own_process_hears_before_touched_returns_and_once(wakers: OpenWaker) -> None:
    here, there = await wakers(), await wakers()
    ear, other = Ear(here), Ear(there)
    await listening(ear)
    await listening(other)
    calls = ear.calls

    here.touched([A], work=False)

    assert ear.logs == {A}
    await until(lambda: other.logs == {A})
    await asyncio.sleep(0.05)
    assert ear.calls == calls + 1, "its own NOTIFY is no news to it"


async def test_what_comes_together_is_one_notify(wakers: OpenWaker, database: Connection) -> None:
    here = await wakers()
    ear = Ear(here)
    await listening(ear)
    said: list[str] = []
    await database.add_listener(LOG, lambda *hint: said.append(str(hint[3])))
    await asyncio.sleep(0.05)

    for n in range(200):
        here.touched([ConversationId(f"conv_{n:026d}")], work=True)

    await until(lambda: len({id_ for payload in said for id_ in payload.split()}) == 200)
    assert len(said) <= 2


async def test_more_than_a_payload_holds_means_everything(wakers: OpenWaker) -> None:
    here, there = await wakers(), await wakers()
    ear = Ear(there)
    await listening(ear)
    before = ear.everything

    here.touched([ConversationId(f"conv_{n:026d}") for n in range(400)], work=False)

    await until(lambda: ear.everything > before)
    assert ear.logs == set()


async def test_without_hints_nobody_is_told(wakers: OpenWaker) -> None:
    here, there = await wakers(hints=False), await wakers()
    own, other = Ear(here), Ear(there)
    await listening(other)
    heard = (other.work, other.calls)

    here.touched([A], work=True)
    await asyncio.sleep(0.1)

    assert (own.work, own.calls) == (0, 0)
    assert (other.work, other.calls) == heard


async def test_a_listener_that_was_ended_is_replaced_and_everything_is_dirty(
    wakers: OpenWaker, database: Connection
) -> None:
    here, there = await wakers(), await wakers()
    ear = Ear(there)
    await listening(ear)
    before = ear.everything

    await database.execute(END_LISTENERS)

    await until(lambda: ear.everything > before)
    here.touched([A], work=False)
    await until(lambda: A in ear.logs)


async def test_a_black_holed_listener_is_noticed_and_replaced_c14(
    wakers: OpenWaker, postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Packets are dropped and no side is told: only asking finds out."""
    monkeypatch.setattr(notify, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.3)
    here = await wakers()
    async with tcp_proxy(postgres_url) as proxy, PostgresWaker.open(proxy.url) as there:
        ear = Ear(there)
        await listening(ear)
        await asyncio.sleep(0.4)
        before, accepted = ear.everything, proxy.accepted

        proxy.black_hole = True
        here.touched([A], work=False)
        await until(lambda: proxy.accepted > accepted)
        proxy.black_hole = False

        await until(lambda: ear.everything > before, 15)
        here.touched([B], work=False)
        await until(lambda: B in ear.logs)
    assert "hints are not heard" in caplog.text


async def test_a_listen_that_cannot_hear_is_said_loudly(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction pooler takes LISTEN, answers it, and delivers nothing."""
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.5)
    async with tcp_proxy(postgres_url) as proxy:
        proxy.deaf = True
        async with PostgresWaker.open(proxy.url):
            await until(lambda: "DATABASE_DIRECT_URL" in caplog.text)

    assert [record.levelno for record in caplog.records if "DATABASE_DIRECT_URL" in record.message] == [logging.ERROR]


async def test_a_listen_that_hears_says_nothing(
    wakers: OpenWaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify, "ANSWER_SECONDS", 0.5)
    ear = Ear(await wakers())
    await listening(ear)

    await asyncio.sleep(0.7)

    assert caplog.text == ""


async def test_a_hint_that_was_lost_with_its_connection_is_made_good_by_everything(
    wakers: OpenWaker, database: Connection
) -> None:
    here, there = await wakers(), await wakers()
    ear = Ear(there)
    await listening(ear)
    here.touched([A], work=False)
    await until(lambda: A in ear.logs)
    before = ear.everything

    await database.execute(END_LISTENERS.replace("kubeharness listen", "kubeharness notify"))
    here.touched([B], work=False)

    await until(lambda: B in ear.logs or ear.everything > before)


async def test_a_database_that_is_away_costs_a_warning_and_is_found_again(
    postgres_url: str, wakers: OpenWaker, caplog: pytest.LogCaptureFixture
) -> None:
    here = await wakers()
    async with tcp_proxy(postgres_url) as proxy:
        proxy.refusing = True
        async with PostgresWaker.open(proxy.url) as there:
            ear = Ear(there)
            await until(lambda: "hints are not heard" in caplog.text)
            proxy.refusing = False
            await listening(ear)

            here.touched([A], work=False)
            await until(lambda: A in ear.logs)
            there.touched([B], work=True)


async def test_a_notify_waits_for_no_disk(wakers: OpenWaker, database: Connection) -> None:
    """On a connection of its own, that does not ask for its commit to be durable: the write path never sees it."""
    here = await wakers()
    ear = Ear(here)
    await listening(ear)
    sessions = await database.fetch(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    assert sorted(row[0] for row in sessions) == ["kubeharness listen", "kubeharness notify"]
    assert {WORK, LOG} == {"kubeharness_work", "kubeharness_log"}
