"""The suite over Postgres in its other two forms: without batches, and as behind a transaction pooler.

`tests/store/test_conformance.py` runs it as it ships, on both versions.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
import pytest_asyncio

from kubeharness.engine.ports import Store
from kubeharness.store.conformance import CASES, Case, Subject, run_case
from kubeharness.store.postgres.store import PostgresStore
from store.subjects import PostgresSubject
from support.postgres import TEMPLATE
from support.postgres_server import PostgresServer

FORMS = {"unbatched": {"batched": False}, "pooled": {"pooled": True}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


class FormedSubject(PostgresSubject):
    """A Postgres store with options."""

    def __init__(self, url: str, handles: AsyncExitStack, hand: asyncpg.Connection, options: dict[str, bool]) -> None:
        super().__init__(url, handles, hand)
        self._options = options

    async def another(self) -> Store:
        return await self._handles.enter_async_context(PostgresStore.open(self._url, **self._options))


@pytest_asyncio.fixture(params=FORMS, scope="module", loop_scope="module")
async def subject(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> AsyncIterator[Subject]:
    """One database for all cases of a form."""
    url = postgres_server.create(f"conformance_{request.param}", template=TEMPLATE)
    hand = await asyncpg.connect(url)
    async with AsyncExitStack() as handles:
        formed = FormedSubject(url, handles, hand, FORMS[request.param])
        formed.store = await formed.another()
        yield formed
    await hand.close()
    postgres_server.drop(f"conformance_{request.param}")


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_store_keeps(case: Case, subject: Subject) -> None:
    await run_case(case, subject)
