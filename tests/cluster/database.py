"""The Postgres beside a node: a process like the others, reached by pods over TCP and by the host over a unix socket.

It stands for the database that a user brings. It runs in the node's namespace, on the node's address.
"""

import os
import secrets
import subprocess
from pathlib import Path

from cluster.errors import DatabaseFailed
from cluster.namespaces import ADDRESS, POD_RANGE
from support.postgres_server import BASE, FAST, SUPERUSER, dies_with_us, embedded_binaries, initialise

PORT = 5432


class Database:
    """Its folder is `postgres` below the node's; that, with the port, is also the socket's address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "postgres"

    def prepare(self, *, outlives_us: bool) -> list[str]:
        """Make its data and return the command that serves it."""
        self.folder.mkdir(mode=0o755)
        binaries, as_owner = initialise(embedded_binaries(), self.folder)
        (self.folder / "binaries").write_text(str(binaries))
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {POD_RANGE} scram-sha-256\n")
        settings = {
            **BASE,
            **FAST,
            "listen_addresses": ADDRESS,
            "port": str(PORT),
            "unix_socket_directories": str(self.folder),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        tied = [] if outlives_us else dies_with_us()
        return [*as_owner, *tied, str(binaries / "postgres"), "-D", str(self.folder / "data"), *options]

    def answers(self) -> bool:
        """Whether it takes statements."""
        try:
            self.sql("SELECT 1")
        except DatabaseFailed:
            return False
        return True

    def create(self, name: str | None = None) -> str:
        """Make a database and a role that owns it and nothing else; return the DSN that pods use."""
        name = name or f"test_{secrets.token_hex(4)}"
        password = secrets.token_hex(8)
        self.sql(f"CREATE ROLE \"{name}\" LOGIN PASSWORD '{password}'")
        self.sql(f'CREATE DATABASE "{name}" OWNER "{name}"')
        return f"postgresql://{name}:{password}@{ADDRESS}:{PORT}/{name}"

    def socket_url(self, name: str = "postgres") -> str:
        """The superuser's DSN over the unix socket: for the host, which is not in the node's network."""
        return f"postgresql://{SUPERUSER}@/{name}?host={self.folder}&port={PORT}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as the superuser; return what it printed. Raises DatabaseFailed."""
        psql = Path((self.folder / "binaries").read_text()) / "psql"
        command = [str(psql), "-XAtq", "-v", "ON_ERROR_STOP=1", self.socket_url(database), "-c", statement]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, cwd="/", check=False
        )
        if done.returncode != 0:
            raise DatabaseFailed(statement, done.stderr.strip())
        return done.stdout.strip()
