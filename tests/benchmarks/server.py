"""The Postgres that is measured: our own, on loopback, durable; each case gets a fresh database."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import asyncpg

from kubeharness.store.migrate import migrate
from support.postgres_server import PostgresServer, embedded_binaries, running_server

DURABLE: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "autovacuum_naptime": "5s",
}
TEMPLATE = "migrated"
_numbers = itertools.count(1)


@contextmanager
def durable_server() -> Iterator[PostgresServer]:
    """A server that keeps what it says; says so itself, and fails if it does not."""
    with running_server(embedded_binaries(), settings=DURABLE) as server:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            said = server.sql(f"SHOW {name}")
            assert said == "on", f"{name} is {said}: nothing may be measured so"
        yield server


async def make_template(server: PostgresServer) -> None:
    """A migrated database to copy from."""
    await migrate(server.create(TEMPLATE))


@contextmanager
def fresh_database(server: PostgresServer, *, migrated: bool = True) -> Iterator[str]:
    """A database of the case's own; it starts after a checkpoint, so that no case pays for the one before."""
    name = f"case_{next(_numbers)}"
    url = server.create(name, template=TEMPLATE if migrated else None)
    server.sql("CHECKPOINT")
    try:
        yield url
    finally:
        server.drop(name)


def committed(server: PostgresServer, url: str) -> int:
    """xact_commit of this database, as flushed so far; asked from another database."""
    return int(server.sql(f"SELECT xact_commit FROM pg_stat_database WHERE datname = '{_name(url)}'"))


def clients(server: PostgresServer, url: str) -> int:
    """How many connections this database has."""
    asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{_name(url)}' AND backend_type = 'client backend'"
    return int(server.sql(asked))


def next_transaction_id(server: PostgresServer) -> int:
    """Grows by one with every transaction that writes or locks, in any database of the server."""
    return int(server.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())"))


async def fetch_int(url: str, query: str) -> int:
    """One number."""
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


def _name(url: str) -> str:
    return url.rpartition("/")[2]
