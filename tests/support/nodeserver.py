"""A server from tests/node_modules as a real process: started, waited for, ended by its pid."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NODE_MODULES = Path(__file__).parent.parent / "node_modules"
_STARTUP_SECONDS = 20
_GRACE_SECONDS = 3


@contextmanager
def running_node(
    arguments: Sequence[str], *, ready: str, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator["tuple[re.Match[str], subprocess.Popen[bytes]]"]:
    """Run `node arguments…` for the block; yields where `ready` matched in its output, and the process."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["node", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield _wait_for(ready, process, log), process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process that we started; by force if it does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_GRACE_SECONDS)


def _wait_for(ready: str, process: "subprocess.Popen[bytes]", log: Path) -> re.Match[str]:
    deadline = time.monotonic() + _STARTUP_SECONDS
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        if match := re.search(ready, text):
            return match
        assert process.poll() is None, f"node ended with {process.returncode}:\n{text}"
        time.sleep(0.02)
    raise AssertionError(f"node was not ready within {_STARTUP_SECONDS} s:\n{log.read_text(errors='replace')}")
