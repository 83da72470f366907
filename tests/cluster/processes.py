"""One process of the control plane: its log in a file, its end by its pid."""

import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ProcessFailed

_TAIL_LINES = 30


class Process:
    """A running child whose death is noticed and explained with the end of its log."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.pid = popen.pid
        self.log = log
        self._popen = popen

    def require_alive(self) -> None:
        """Raise ProcessFailed if it has ended."""
        code = self._popen.poll()
        if code is not None:
            raise self.failed(f"ended with status {code}")

    def failed(self, what: str) -> ProcessFailed:
        """The error that says `what` and shows the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return ProcessFailed(self.name, what, self.log, "\n".join(lines[-_TAIL_LINES:]))

    def let_go(self) -> None:
        """Ask nothing more of it: it outlives us, and Python would warn that nobody waited for it."""
        self._popen.returncode = 0

    def stop(self, grace_seconds: float = 3.0) -> None:
        """End it: ask, then kill. Nothing happens if it has ended already."""
        self._popen.terminate()
        try:
            self._popen.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait(grace_seconds)


def start(
    command: Sequence[str | Path], log: Path, *, outlives_us: bool = False, environment: Mapping[str, str] | None = None
) -> Process:
    """Start a command, its output in `log`; `environment` is added to ours.

    It gets a session of its own, so that a Ctrl-C in the terminal reaches only us and we end the processes
    in their order. If this process is killed, the kernel ends the child too (on Linux, and if called from
    the main thread, since the kernel watches the thread that started it), unless it shall outlive us.
    """
    argv = [str(part) for part in command]
    setpriv = shutil.which("setpriv")
    if not outlives_us and setpriv is not None and threading.current_thread() is threading.main_thread():
        argv = [setpriv, "--pdeathsig", "KILL", "--", *argv]  # it execs: the pid is the command's own
    with log.open("ab") as output:
        popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ | environment if environment else None,
        )
    return Process(Path(command[0]).name, popen, log)


@contextmanager
def running(command: Sequence[str | Path], log: Path) -> Iterator[Process]:
    """Run a command for as long as the block lasts: see `start`."""
    process = start(command, log)
    try:
        yield process
    finally:
        process.stop()


def free_ports(count: int) -> list[int]:
    """Return different free ports of 127.0.0.1.

    They lie below the range from which Linux takes the ports of outgoing connections, so that none of those
    slips in between this call and the listener's start.
    """
    held: list[socket.socket] = []
    try:
        for port in random.sample(range(20000, 32000), 500):
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                candidate.close()
                continue
            held.append(candidate)
            if len(held) == count:
                return [taken.getsockname()[1] for taken in held]
        raise OSError("no free port between 20000 and 32000 on 127.0.0.1")
    finally:
        for taken in held:
            taken.close()
