"""Processes of the product under test: started with their own environment, waited for, ended by pid."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

READY_SECONDS = 30.0
STOP_SECONDS = 35.0


def free_port() -> int:
    """A loopback port that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Process:
    """One process, with where to reach it."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    health_port: int
    port: int = 0

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def url(self) -> str:
        """Where it serves the API."""
        return f"http://127.0.0.1:{self.port}"

    def alive(self) -> bool:
        """It has not ended."""
        return self.popen.poll() is None

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def kill(self) -> int:
        """kill -9; returns the exit status."""
        self.popen.kill()
        return self.popen.wait(timeout=10)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.popen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.popen.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM, and kill -9 if that is not heard; returns the exit status."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                self.popen.send_signal(signal.SIGCONT)
                self.popen.terminate()
            try:
                self.popen.wait(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait(timeout=10)
        return int(self.popen.returncode)

    def exit_status(self, within: float = 30.0) -> int:
        """Wait for its own end; −9 where it killed itself."""
        return self.popen.wait(timeout=within)

    def wait_ready(self, within: float = READY_SECONDS) -> "Process":
        """Until its readiness says 200; fails with its log's tail."""
        port = self.port or self.health_port
        end = time.monotonic() + within
        said = ""
        while time.monotonic() < end:
            if not self.alive():
                break
            try:
                answer = httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=2)
                said = answer.text
                if answer.status_code == 200:
                    return self
            except httpx2.HTTPError as error:
                said = str(error)
            time.sleep(0.05)
        raise AssertionError(f"{self.name} is not ready ({said}); its log ends:\n{self.said()[-4000:]}")


@dataclass(slots=True)
class Fleet:
    """The processes of one test."""

    folder: Path
    base: Mapping[str, str]
    """KUBEHARNESS_ settings without the prefix, for all of them."""
    processes: list[Process] = field(default_factory=list)

    def start(self, verb: str, *, name: str = "", module: str = "kubeharness", **settings: str) -> Process:
        """Start `kubeharness VERB` with these settings over the base."""
        what = verb.split()[0]
        port = free_port() if what in ("gateway", "dev") else 0
        health = free_port()
        name = name or f"{what}-{len(self.processes) + 1}"
        log = self.folder / f"{name}.log"
        given = {"HEALTH_PORT": str(health), "LOG_FORMAT": "text", **self.base, **settings}
        if port:
            given["PORT"] = given.get("PORT", str(port))
        env = {key: value for key, value in os.environ.items() if not key.startswith("KUBEHARNESS_")}
        env |= {f"KUBEHARNESS_{key}": value for key, value in given.items() if key.isupper() and key != "KUBECONFIG"}
        if "KUBECONFIG" in given:
            env["KUBECONFIG"] = given["KUBECONFIG"]
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", module, *verb.split()],
                env=env,
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        process = Process(name, popen, log, health, int(given.get("PORT", "0")) if port else 0)
        self.processes.append(process)
        return process

    def run(self, *words: str, **settings: str) -> str:
        """Run a verb to its end; returns its output, fails if it failed."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("KUBEHARNESS_")}
        env |= {f"KUBEHARNESS_{key}": value for key, value in {**self.base, **settings}.items()}
        done = subprocess.run(
            [sys.executable, "-m", "kubeharness", *words],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"kubeharness {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def stop_all(self) -> None:
        """End every process that is left."""
        for process in self.processes:
            if process.alive():
                with contextlib.suppress(ProcessLookupError):
                    process.popen.send_signal(signal.SIGCONT)
                    process.popen.terminate()
        end = time.monotonic() + 5
        for process in self.processes:
            try:
                process.popen.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait(timeout=10)


@contextlib.contextmanager
def fleet(folder: Path, **base: str) -> Iterator[Fleet]:
    """A fleet that is gone at the end of the block."""
    one = Fleet(folder, base)
    try:
        yield one
    finally:
        one.stop_all()
