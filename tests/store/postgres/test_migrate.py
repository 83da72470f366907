"""Migrations: all or nothing, one at a time, and never by a build that may not."""

import os
import subprocess
import sys

import asyncpg
import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.store.backend import SchemaRefused
from kubeharness.store.migrate import BUILD, Migration, migrate, migrations, verify_schema
from kubeharness.store.postgres.store import PostgresStore

NEXT = Migration(BUILD + 1, "next", BUILD, "ALTER TABLE outbox ADD COLUMN later TEXT")
BREAKING = Migration(BUILD + 1, "breaking", BUILD + 1, "ALTER TABLE outbox DROP COLUMN kind")
FAILS = Migration(BUILD + 1, "fails", BUILD, "CREATE TABLE half (id TEXT); SELECT 1 / 0")


async def tables(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        return {row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    finally:
        await connection.close()


async def test_migrating_twice_changes_nothing(empty_postgres_url: str) -> None:
    first = await migrate(empty_postgres_url)
    again = await migrate(empty_postgres_url)

    assert first == again
    assert first.version == BUILD


def test_every_file_is_numbered_and_says_its_min_build() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, BUILD + 1))


def test_five_processes_that_start_at_once_migrate_one_after_the_other(empty_postgres_url: str) -> None:
    program = "import asyncio, sys; from kubeharness.store.migrate import migrate; asyncio.run(migrate(sys.argv[1]))"
    command = [sys.executable, "-c", program, empty_postgres_url]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ) for _ in range(5)]

    said = [process.communicate(timeout=50)[1].decode() for process in processes]

    assert [process.returncode for process in processes] == [0] * 5, said


async def test_a_file_that_fails_leaves_nothing_of_itself(postgres_url: str) -> None:
    before = await tables(postgres_url)

    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(postgres_url, build=BUILD + 1, steps=[*migrations(), FAILS])

    assert await tables(postgres_url) == before
    assert (await migrate(postgres_url)).version == BUILD


async def test_a_newer_schema_that_allows_this_build_is_left_alone_and_served(postgres_url: str) -> None:
    newer = await migrate(postgres_url, build=BUILD + 1, steps=[*migrations(), NEXT])

    assert (await migrate(postgres_url)) == newer
    async with PostgresStore.open(postgres_url) as store:
        await store.ready()


async def test_a_build_below_min_build_refuses_and_touches_nothing(postgres_url: str) -> None:
    await migrate(postgres_url, build=BUILD + 1, steps=[*migrations(), BREAKING])

    with pytest.raises(SchemaRefused, match=f"needs build {BUILD + 1}"):
        await migrate(postgres_url, steps=[*migrations(), NEXT])

    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT count(*) FROM schema_version") == BUILD + 1
    await connection.close()
    async with PostgresStore.open(postgres_url) as store:
        with pytest.raises(Unavailable, match="needs build"):
            await store.ready()


async def test_an_empty_database_is_not_served_and_not_touched(empty_postgres_url: str) -> None:
    connection = await asyncpg.connect(empty_postgres_url)
    with pytest.raises(SchemaRefused, match="kubeharness migrate"):
        await verify_schema(connection)
    await connection.close()

    async with PostgresStore.open(empty_postgres_url) as store:
        with pytest.raises(Unavailable, match="kubeharness migrate"):
            await store.ready()
    assert await tables(empty_postgres_url) == set()
