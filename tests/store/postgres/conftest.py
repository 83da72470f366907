"""Stores over a database of the test's own."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import asyncpg
import pytest

from kubeharness.engine.ports import Store
from kubeharness.store.conformance.world import World
from kubeharness.store.postgres.database import Connection
from kubeharness.store.postgres.store import PostgresStore

OpenStore = Callable[..., Awaitable[PostgresStore]]


class OneStore:
    """A world's subject whose clock is the database's own."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def another(self) -> Store:
        raise NotImplementedError

    async def advance(self, milliseconds: int) -> None:
        raise NotImplementedError

    async def step_back(self, milliseconds: int) -> None:
        raise NotImplementedError


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[OpenStore]:
    """Opens stores over one database, each as a process of its own would."""
    async with AsyncExitStack() as opened:

        async def another(url: str = postgres_url, **options: bool) -> PostgresStore:
            return await opened.enter_async_context(PostgresStore.open(url, **options))

        yield another


@pytest.fixture
async def store(stores: OpenStore) -> PostgresStore:
    return await stores()


@pytest.fixture
async def world(store: PostgresStore) -> World:
    """An agent that is published and ready to run."""
    world = World(OneStore(store))
    await world.set_up()
    return world


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Connection]:
    """A connection that is nobody's."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()
