"""One aimock for all tests of this folder; each test gives it fixtures of its own."""

from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from support.aimock import AIMock, running_aimock


@pytest.fixture(scope="session")
def aimock_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AIMock]:
    with running_aimock(tmp_path_factory.mktemp("aimock"), chunk_size=7) as mock:
        yield mock


@pytest.fixture
def aimock(aimock_process: AIMock) -> AIMock:
    aimock_process.answer([])
    return aimock_process


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=httpx2.Timeout(None, connect=5)) as client:
        yield client
