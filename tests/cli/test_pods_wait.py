"""Gateway and worker over a database that they cannot use: up, alive, unready, saying why, and well by themselves.

A pod that ends instead is restarted, and a cause that a restart does not mend makes that a crash loop (C49).
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest

from kubeharness.store.migrate import BUILD, migrate
from support.door import open_door
from support.fleet import Fleet, Process, fleet, free_port
from support.postgres_server import PostgresServer, embedded_binaries, running_server

pytestmark = pytest.mark.timeout(120)

CANARY = "CANARY123"


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, AUTH="none", POLL_MILLISECONDS="100") as processes:
        yield processes


@pytest.fixture(params=["gateway", "worker"])
def verb(request: pytest.FixtureRequest) -> str:
    verb: str = request.param
    return verb


def health(process: Process, path: str) -> tuple[int, str]:
    """Ask the health port; (0, why) while it does not answer."""
    try:
        answer = httpx2.get(f"http://127.0.0.1:{process.health_port}{path}", timeout=5)
    except httpx2.HTTPError as error:
        return 0, str(error)
    return answer.status_code, answer.text


def until(holds: Callable[[], bool], process: Process, within: float = 30.0) -> None:
    """Wait for something; fails with the process's last words."""
    end = time.monotonic() + within
    while not holds():
        assert process.alive(), process.said()
        assert time.monotonic() < end, f"{health(process, '/readyz')}\n{process.said()[-3000:]}"
        time.sleep(0.05)


def unready(process: Process, says: str) -> None:
    """It is up and alive, and says why it is not ready, in readiness and log."""
    until(lambda: says in health(process, "/readyz")[1], process)

    assert health(process, "/readyz")[0] == 503
    assert health(process, "/healthz")[0] == 200
    assert health(process, "/metrics")[0] == 200
    until(lambda: f"not ready: {says}" in process.said() or says in process.said(), process)


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://u:CANARY123@127.0.0.1:{closed}/d", "nothing listens at the host and port of the DSN"),
        ("postgresql://u:CANARY123@no-such-host.invalid/d", "the host of the DSN is not known"),
        ("mysql://u:CANARY123@host:port/d", "the DSN cannot be read: use postgresql://"),
    ],
)
def test_a_dsn_that_leads_nowhere_is_said_and_shown_to_nobody(pods: Fleet, verb: str, dsn: str, says: str) -> None:
    process = pods.start(verb, DATABASE_URL=dsn.format(closed=free_port()), LOG_LEVEL="debug")
    unready(process, says)
    time.sleep(1)

    assert process.alive()
    for text in (process.said(), *(health(process, path)[1] for path in ("/readyz", "/healthz", "/metrics"))):
        assert CANARY not in text
        assert "Traceback" not in text
    assert process.stop() == 0


def test_a_password_that_is_wrong_is_said_and_mended_without_a_restart(pods: Fleet, verb: str) -> None:
    """The tests' server trusts everybody, so this one asks: pg_hba.conf of its own."""
    with running_server(embedded_binaries()) as server:
        server.sql(f"CREATE ROLE pod LOGIN SUPERUSER PASSWORD '{CANARY}'")
        url = server.create("d")
        _migrated(url)
        hba = server.folder / "data" / "pg_hba.conf"
        hba.write_text("local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        server.sql("SELECT pg_reload_conf()")
        process = pods.start(verb, DATABASE_URL=f"postgresql://pod:{CANARY}4@127.0.0.1:{server.port}/d")
        unready(process, "the database refuses the password of the DSN")

        server.sql(f"ALTER ROLE pod PASSWORD '{CANARY}4'")
        until(lambda: health(process, "/readyz")[0] == 200, process)

        assert CANARY not in process.said()
        assert process.stop() == 0


def test_an_older_schema_is_waited_out(pods: Fleet, verb: str, empty_postgres_url: str) -> None:
    process = pods.start(verb, DATABASE_URL=empty_postgres_url)
    unready(process, f"schema is 0 and this build needs {BUILD}; run `kubeharness migrate`")

    pods.run("migrate", DATABASE_URL=empty_postgres_url)
    until(lambda: health(process, "/readyz")[0] == 200, process)

    assert process.stop() == 0


async def test_a_newer_schema_that_this_build_may_not_run_on_is_waited_out_and_nothing_is_written_there(
    pods: Fleet, verb: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("INSERT INTO schema_version VALUES ($1, $1, 0)", BUILD + 1)
        process = pods.start(verb, DATABASE_URL=postgres_url)
        unready(process, f"schema {BUILD + 1} needs build {BUILD + 1} or later")
        time.sleep(2)  # … while heads, checks and claims have their tries
        beats = await connection.fetchval("SELECT count(*) FROM component")

        await connection.execute("DELETE FROM schema_version WHERE version > $1", BUILD)
        until(lambda: health(process, "/readyz")[0] == 200, process)
    finally:
        await connection.close()

    assert beats == 0
    assert process.stop() == 0


def test_a_database_that_goes_is_said_once_and_asked_nothing_by_liveness_c49(pods: Fleet, verb: str) -> None:
    """Down before the start, up, down again, up again: one process, no restart, no flood of lines."""
    with running_server(embedded_binaries()) as server:
        url = server.create("d")
        _migrated(url)
        port = free_port()
        address = urlsplit(url)
        through = address._replace(netloc=f"{address.username}@127.0.0.1:{port}").geturl()
        process = pods.start(verb, DATABASE_URL=through)
        unready(process, "nothing listens")

        for _ in range(2):
            with open_door(port, server.port):
                until(lambda: health(process, "/readyz")[0] == 200, process)
                before = process.said().count("\n")
            until(lambda: health(process, "/readyz")[0] == 503, process)
            gone = time.monotonic()
            while time.monotonic() < gone + 6:
                assert health(process, "/healthz")[0] == 200
                time.sleep(0.2)
            lines = process.said().count("\n") - before
            assert lines <= 20, process.said()[-4000:]
        with open_door(port, server.port):
            until(lambda: health(process, "/readyz")[0] == 200, process)
            assert process.alive()
            assert process.said().count("not ready: nothing listens") == 3  # before the door shuts once more
            assert "Traceback" not in process.said()


def test_a_role_without_rights_is_told_which_command_grants_them(
    pods: Fleet, verb: str, postgres_server: PostgresServer, postgres_url: str
) -> None:
    role = f"pod{free_port()}"
    database = urlsplit(postgres_url).path[1:]
    postgres_server.sql(f"CREATE ROLE {role} LOGIN")
    try:
        address = urlsplit(postgres_url)
        url = address._replace(netloc=f"{role}@127.0.0.1:{postgres_server.port}").geturl()
        process = pods.start(verb, DATABASE_URL=url)
        unready(process, "the role of the DSN lacks a right; `kubeharness migrate` grants")
        postgres_server.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}", database)
        unready(process, "the role of the DSN may not write our tables")

        pods.run("migrate", DATABASE_URL=postgres_url, APP_ROLE=role)
        until(lambda: health(process, "/readyz")[0] == 200, process)
        assert process.stop() == 0
    finally:
        postgres_server.sql(f"DROP OWNED BY {role}", database)
        postgres_server.sql(f"DROP ROLE {role}")


def _migrated(url: str) -> None:
    asyncio.run(migrate(url))
