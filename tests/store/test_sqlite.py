"""What is SQLite's own: the file, its schema, two processes on it, a folder that is held."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.core.records import Kind
from kubeharness.store.backend import SchemaRefused
from kubeharness.store.columns import LANE_COLUMNS
from kubeharness.store.conformance.answers import good
from kubeharness.store.conformance.world import World
from kubeharness.store.sqlite import database
from kubeharness.store.sqlite.database import FolderHeld, hold
from kubeharness.store.sqlite.store import sqlite_backend, sqlite_store
from kubeharness.store.verify import verify
from kubeharness.store.wakers import PollingWaker
from store.subjects import SqliteSubject, sqlite_subject


async def world_of(subject: SqliteSubject) -> World:
    world = World(subject)
    await world.set_up()
    return world


async def test_what_was_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world = await world_of(subject)
        run = await world.started()
        await world.admit("d2")
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world.subject, world.store = subject, subject.store
        await run.settle()

        assert [found.position for found in await world.store.unsettled(run.conversation)] == [2]
        assert await verify(world.store) == []


async def test_a_file_is_as_durable_as_said(tmp_path: Path) -> None:
    backend = await sqlite_backend(tmp_path / "deep" / "h.db")
    writer = backend._writer
    try:
        assert await writer.row("PRAGMA journal_mode") == ("wal",)
        assert await writer.row("PRAGMA synchronous") == (2,), "FULL"
        assert await writer.row("PRAGMA busy_timeout") == (5_000,)
    finally:
        await backend.aclose()


async def test_the_schema_has_each_column_of_a_lane(tmp_path: Path) -> None:
    await (await sqlite_store(tmp_path / "h.db")).aclose()
    with sqlite3.connect(tmp_path / "h.db") as raw:
        columns = {row[1] for row in raw.execute("PRAGMA table_info(lane)")}
    raw.close()

    assert columns == set(LANE_COLUMNS)


async def test_a_newer_schema_that_forbids_this_build_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h.db"
    await (await sqlite_store(path)).aclose()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO schema_version (version, min_build) VALUES (3, 3)")
    raw.close()
    before = path.read_bytes()

    with pytest.raises(SchemaRefused, match="needs build 3 or later"):
        await sqlite_store(path)
    assert path.read_bytes() == before
    monkeypatch.setattr(database, "BUILD", 3)
    await (await sqlite_store(path)).aclose()


async def test_a_newer_schema_that_allows_this_build_is_used(tmp_path: Path) -> None:
    """N-1 runs on N, so a rollback works."""
    path = tmp_path / "h.db"
    await (await sqlite_store(path)).aclose()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO schema_version (version, min_build) VALUES (3, 1)")
    raw.close()
    store = await sqlite_store(path)
    try:
        await store.ready()
    finally:
        await store.aclose()


async def test_a_file_of_the_release_before_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    await (await sqlite_store(path)).aclose()
    with sqlite3.connect(path) as raw:
        made = raw.execute("PRAGMA table_info(component)").fetchall()
        raw.execute("ALTER TABLE component DROP COLUMN release")
        raw.execute("UPDATE schema_version SET version = 1")
    raw.close()

    await (await sqlite_store(path)).aclose()

    with sqlite3.connect(path) as raw:
        assert raw.execute("PRAGMA table_info(component)").fetchall() == made
        assert raw.execute("SELECT version, min_build FROM schema_version").fetchall() == [(1, 1), (2, 1)]
    raw.close()


async def test_somebody_elses_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE theirs (x)")
    raw.close()
    before = path.read_bytes()

    with pytest.raises(SchemaRefused, match="something else"):
        await sqlite_store(path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    path.write_bytes(b"not a database at all, but long enough to be read as a header of one" * 20)

    with pytest.raises(Unavailable, match="cannot be read"):
        await sqlite_store(path)


async def test_two_that_open_an_empty_file_at_once_make_one_schema(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        opening = [group.create_task(sqlite_store(tmp_path / "h.db")) for _ in range(4)]
    for store in [task.result() for task in opening]:
        await store.ready()
        await store.aclose()


async def test_a_writer_that_waits_too_long_says_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world = await world_of(subject)
        raw = sqlite3.connect(tmp_path / "h.db", isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable):
            await world.store.admit([world.admission("d1")])
        assert await world.store.head_clock() > 0, "readers go on"
        raw.execute("ROLLBACK")
        raw.close()

        assert not good((await world.store.admit([world.admission("d1")]))[0]).replayed


async def test_a_closed_store_says_unavailable(tmp_path: Path) -> None:
    store = await sqlite_store(tmp_path / "h.db")
    await store.aclose()

    with pytest.raises(Unavailable):
        await store.head_clock()


async def test_a_cancelled_caller_leaves_no_transaction_open(tmp_path: Path) -> None:
    """Cut off at any await, the next one finds the writer free, and nothing half done."""
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world = await world_of(subject)
        for n in range(30):
            task = asyncio.get_running_loop().create_task(world.store.admit([world.admission(f"d{n}")]))  # cut below
            for _ in range(n):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
        await world.admit("last")

        assert await verify(world.store) == []


ADMIT_UNTIL_KILLED = """
import asyncio, sys
from pathlib import Path
from store.subjects import sqlite_subject
from kubeharness.store.conformance.world import World

async def main():
    async with sqlite_subject(Path(sys.argv[1])) as subject:
        world = World(subject)
        await world.set_up()
        n = 0
        while True:
            n += 1
            run = await world.started(f"d{n}")
            print(run.submission, flush=True)
            await run.settle()

asyncio.run(main())
"""


async def test_a_killed_process_leaves_whole_transactions(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", ADMIT_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    process.stdout.close()
    store = await sqlite_store(path)
    try:
        assert await verify(store) == []
        for submission in told:
            assert await store.lookup(submission) is not None  # type: ignore[arg-type]  # as it was printed
    finally:
        await store.aclose()


async def test_commits_of_another_process_are_noticed(tmp_path: Path) -> None:
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world = await world_of(subject)
        other = await subject.another()
        backend = await sqlite_backend(tmp_path / "h.db", clock=subject, synchronous="OFF")
        waker = PollingWaker(backend.foreign_commits, interval_seconds=0.01)
        roused, dirty = asyncio.Event(), asyncio.Event()
        waker.on_work(roused.set)
        end = waker.on_log(lambda conversations: dirty.set() if conversations is None else None)
        async with asyncio.TaskGroup() as group:
            polling = group.create_task(waker.run())
            async with asyncio.timeout(5):
                await roused.wait()
            roused.clear()
            dirty.clear()
            await asyncio.sleep(0.1)
            assert not roused.is_set(), "nothing was committed"
            good((await other.admit([world.admission("d1")]))[0])
            async with asyncio.timeout(5):
                await roused.wait()
                await dirty.wait()
            end()
            polling.cancel()
        await backend.aclose()


HOLD = """
import sys, time
from pathlib import Path
from kubeharness.store.sqlite.database import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(FolderHeld, match=f"process {process.pid}"), hold(folder):
        pass
    process.kill()
    process.wait(10)
    process.stdout.close()

    with hold(folder), pytest.raises(FolderHeld, match=f"process {os.getpid()}"), hold(folder):
        pass


async def test_a_poisonous_item_stops_no_other(tmp_path: Path) -> None:
    """Text that cannot be bound at all: its own answer is an error, the others are stored (I14)."""
    async with sqlite_subject(tmp_path / "h.db") as subject:
        world = await world_of(subject)
        runs = [await world.started("d", world.key(instance=f"i{n}")) for n in range(3)]
        errors = ["fine", "lone \ud800 surrogate", "fine too"]
        results = await world.store.release(
            [run.back("handover", last_error=error) for run, error in zip(runs, errors, strict=True)]
        )

        assert [result if result is None else type(result) for result in results] == [None, KubeharnessError, None]
        assert [(await world.lane(run.claimed.key)).last_error for run in runs] == ["fine", "", "fine too"]
        assert (await world.lane(runs[1].claimed.key)).attempt == runs[1].attempt
        assert [record.kind for record in await world.log(runs[1].conversation)] == [
            Kind.CONVERSATION_CREATED,
            Kind.USER_MESSAGE,
        ]
