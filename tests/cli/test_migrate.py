"""`kubeharness migrate` as the Job runs it, and pods whose role holds no DDL rights."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx2
import pytest

from kubeharness.store.migrate import BUILD, Migration, migrate, migrations
from support.door import open_door
from support.fleet import fleet, free_port
from support.postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(120)

Done = subprocess.CompletedProcess[str]
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "basic"


def run(folder: Path, **settings: str) -> Done:
    """The verb with only these settings."""
    return subprocess.run(
        [sys.executable, "-m", "kubeharness", "migrate"],
        env={"PATH": os.environ["PATH"], **{f"KUBEHARNESS_{key}": value for key, value in settings.items()}},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@dataclass(frozen=True, slots=True)
class Roles:
    """A database of a platform team: one role may change the schema, another is the pods'."""

    server: PostgresServer
    database: str
    owner: str
    pods: str

    def url(self, role: str) -> str:
        return f"postgresql://{role}@127.0.0.1:{self.server.port}/{self.database}"


@pytest.fixture
def roles(postgres_server: PostgresServer, empty_postgres_url: str) -> Iterator[Roles]:
    number = free_port()
    one = Roles(postgres_server, urlsplit(empty_postgres_url).path[1:], f"owner{number}", f"pods{number}")
    for role in (one.owner, one.pods):
        postgres_server.sql(f"CREATE ROLE {role} LOGIN")
    postgres_server.sql(f"GRANT CREATE ON SCHEMA public TO {one.owner}", one.database)
    yield one
    for role in (one.owner, one.pods):
        postgres_server.sql(f"DROP OWNED BY {role} CASCADE", one.database)
        postgres_server.sql(f"DROP ROLE {role}")


def test_the_migration_has_a_dsn_of_its_own_and_grants_the_pods_role_what_it_needs(
    tmp_path: Path, roles: Roles
) -> None:
    """Gateway, worker and publish run on a role that may change no schema."""
    pods = roles.url(roles.pods)
    done = run(tmp_path, DATABASE_URL=pods, MIGRATION_URL=roles.url(roles.owner), APP_ROLE=roles.pods)
    again = run(tmp_path, DATABASE_URL=pods, MIGRATION_URL=roles.url(roles.owner), APP_ROLE=roles.pods)

    assert done.returncode == again.returncode == 0, done.stderr + again.stderr
    assert f"role {roles.pods} may read and write, and change no schema" in done.stdout
    asyncio.run(_may_do_its_work_and_no_more(pods))
    with fleet(tmp_path, DATABASE_URL=pods, AUTH="none", INSTALLATION_ID="i") as processes:
        processes.run("publish", "-f", str(EXAMPLE))
        gateway = processes.start("gateway")
        processes.start("worker").wait_ready()
        gateway.wait_ready()
        answer = httpx2.post(
            f"{gateway.url}/agents/assistant/i?wait=true", json={"kind": "user", "body": "what time is it?"}, timeout=40
        )

        assert answer.json()["status"] == "succeeded", answer.text


async def _may_do_its_work_and_no_more(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for ddl in (
            "CREATE TABLE mine (id TEXT)",
            "ALTER TABLE lane ADD COLUMN mine TEXT",
            "DROP TABLE lane",
            "TRUNCATE lane",
            "INSERT INTO schema_version VALUES (9, 9, 9)",
            "UPDATE schema_version SET min_build = 9",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(ddl)
    finally:
        await connection.close()


async def test_a_table_of_a_later_migration_is_granted_as_it_is_made(roles: Roles) -> None:
    later = Migration(BUILD + 1, "later", BUILD, "CREATE TABLE later (n BIGINT GENERATED ALWAYS AS IDENTITY, t TEXT)")
    await migrate(roles.url(roles.owner), app_role=roles.pods)
    await migrate(roles.url(roles.owner), build=BUILD + 1, steps=[*migrations(), later], app_role=roles.pods)

    connection = await asyncpg.connect(roles.url(roles.pods))
    await connection.execute("INSERT INTO later (t) VALUES ('x')")
    await connection.close()


def test_a_role_that_may_not_change_the_schema_or_is_not_there_is_a_sentence(tmp_path: Path, roles: Roles) -> None:
    without = run(tmp_path, DATABASE_URL=roles.url(roles.pods), MIGRATE_SECONDS="0")
    nobody = run(tmp_path, DATABASE_URL=roles.url(roles.owner), APP_ROLE="nobody-here")

    assert (without.returncode, nobody.returncode) == (1, 1)
    assert "the role of the DSN lacks a right" in without.stderr
    assert "KUBEHARNESS_APP_ROLE: the role 'nobody-here' does not exist" in nobody.stderr
    assert "Traceback" not in without.stderr + nobody.stderr


async def test_over_a_newer_schema_that_lets_it_run_it_is_content_and_below_min_build_it_refuses(
    tmp_path: Path, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("INSERT INTO schema_version VALUES ($1, $2, 0)", BUILD + 1, BUILD)
    newer = run(tmp_path, DATABASE_URL=postgres_url)
    await connection.execute("UPDATE schema_version SET min_build = version")
    refused = run(tmp_path, DATABASE_URL=postgres_url)
    await connection.close()

    assert newer.returncode == 0, newer.stderr
    assert f"schema {BUILD + 1} is newer than this build" in newer.stdout
    assert "nothing to do" in newer.stdout
    assert refused.returncode == 1
    assert f"needs build {BUILD + 1} or later and this is build {BUILD}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_database_that_does_not_answer_is_tried_within_a_bound_and_then_said(tmp_path: Path) -> None:
    url = f"postgresql://u:CANARY@127.0.0.1:{free_port()}/d"
    began = time.monotonic()
    done = run(tmp_path, DATABASE_URL=url, MIGRATE_SECONDS="3")
    took = time.monotonic() - began

    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0] == "kubeharness: nothing listens at the host and port of the DSN; next try in 0.5 s"
    assert lines[-1] == "kubeharness: gave up after 3 s: nothing listens at the host and port of the DSN"
    assert 2 <= len(lines) <= 5
    assert "CANARY" not in done.stderr
    assert took < 30


def test_a_database_that_comes_while_it_tries_is_migrated(
    tmp_path: Path, postgres_server: PostgresServer, empty_postgres_url: str
) -> None:
    port = free_port()
    url = urlsplit(empty_postgres_url)._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
    process = subprocess.Popen(
        [sys.executable, "-m", "kubeharness", "migrate"],
        env={"PATH": os.environ["PATH"], "KUBEHARNESS_DATABASE_URL": url},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    with open_door(port, postgres_server.port):
        out, err = process.communicate(timeout=40)

    assert "nothing listens" in first
    assert process.returncode == 0, err
    assert out.startswith(f"schema {BUILD}")
