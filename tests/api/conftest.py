"""One memory store, its hints, and a gateway over them."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from kubeharness.engine.ports import Store
from kubeharness.store.memory import memory_store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, gateway
from support.playing import publish


@pytest.fixture
def store() -> Store:
    return memory_store()


@pytest.fixture
def waker() -> LocalWaker:
    return LocalWaker()


@pytest.fixture
async def served(store: Store, waker: LocalWaker) -> AsyncIterator[Served]:
    await publish(store, "demo")
    async with gateway(store, waker) as served:
        yield served


@pytest.fixture
async def client(served: Served) -> AsyncIterator[httpx2.AsyncClient]:
    async with served.client() as client:
        yield client
