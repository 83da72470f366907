"""Why a database cannot be used is said in a sentence that holds nothing of the DSN."""

import asyncio
import logging
import traceback

import asyncpg
import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.store.migrate import BUILD
from kubeharness.store.postgres.store import PostgresStore
from support.fleet import free_port
from support.postgres_server import PostgresServer

CANARY = "CANARY123"


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://u:CANARY123@127.0.0.1:{closed}/d", "nothing listens at the host and port of the DSN"),
        ("postgresql://u:CANARY123@no-such-host.invalid/d", "the host of the DSN is not known"),
        (
            "postgresql://postgres:CANARY123@127.0.0.1:{open}/CANARY123",
            "database that the DSN names does not exist",
        ),
        ("postgresql://CANARY123@127.0.0.1:{open}/postgres", "the database refuses the user of the DSN"),
        ("postgresql://postgres@127.0.0.1:{open}/postgres?nonsense=CANARY123", "refuses the connection"),
        ("postgresql://u:CANARY123@host:port/d", "the DSN cannot be read: use postgresql://"),
        ("postgresql://u:CANARY123@[host/d", "the DSN cannot be read: use postgresql://"),
        ("postgresql://u:p@CANARY123/x@h:y/z", "the host of the DSN is not known"),  # the rest of a password
        ("postgresql://u@127.0.0.1/d?sslmode=CANARY123", "the DSN cannot be read: use postgresql://"),
        (f"postgresql://u@{64 * 'CANARY123'}/d", "the DSN cannot be read: use postgresql://"),
        ("mysql://u:CANARY123@host/d", "the DSN cannot be read: use postgresql://"),
        ("CANARY123", "the DSN cannot be read: use postgresql://"),
        ("", "the DSN cannot be read: use postgresql://"),
    ],
)
async def test_a_dsn_that_leads_nowhere_is_unavailable_and_shown_to_nobody(
    postgres_server: PostgresServer, dsn: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with PostgresStore.open(dsn.format(closed=free_port(), open=postgres_server.port)) as store:
        with pytest.raises(Unavailable) as first:
            await store.ready()
        with pytest.raises(Unavailable) as again:  # within the pause after a failure: the reason stays
            await store.ready()

    assert says in first.value.why
    assert again.value.why == first.value.why
    assert CANARY not in f"{first.value}{caplog.text}"
    if "cannot be read" in says:  # what the driver could not read it quotes
        assert CANARY not in "".join(traceback.format_exception(first.value.with_traceback(None)))


async def test_no_connection_is_used_on_a_schema_that_is_not_ours(postgres_url: str) -> None:
    """Not for a single write: what a newer schema means by a column is not known here."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("INSERT INTO schema_version VALUES ($1, $1, 0)", BUILD + 1)
    async with PostgresStore.open(postgres_url) as store:
        for verb in (store.head_clock, store.sweep, store.reap, lambda: store.epoch("test")):
            with pytest.raises(Unavailable, match=f"needs build {BUILD + 1}"):
                await verb()
        await connection.execute("DELETE FROM schema_version WHERE version > $1", BUILD)
        async with asyncio.timeout(10):
            while True:
                try:
                    await store.ready()
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)

        assert await store.epoch("test") == 1
    await connection.close()
