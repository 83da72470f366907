"""One image to be built, and the commands that do it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.errors import ImageFailed

_LONGEST_SECONDS = 900.0
_REPORT_SECONDS = 30.0
_TAIL_LINES = 30

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be built, from which files, under which name."""

    context: Path
    dockerfile: Path
    name: str
    arguments: Mapping[str, str]


def run(command: Sequence[str | Path], *, say: Say, env: Mapping[str, str] | None = None) -> str:
    """Run at low priority and return what was printed, telling at times that it still runs.

    `env` is added to this process's environment.

    Raises ImageFailed with the end of what the command said. An interrupt ends it, too.
    """
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as log,
    ):
        niced = ["nice", "-n", "5", *command]
        with subprocess.Popen(niced, env=os.environ | (env or {}), stdout=output, stderr=log) as step:
            try:
                code = _wait(step, str(command[0]), say)
            except BaseException:
                step.terminate()
                raise
        if code is None or code != 0:
            what = "was not done in time" if code is None else f"exited {code}"
            raise ImageFailed(f"{' '.join(map(str, command))} {what}", _tail(output) + _tail(log))
        output.seek(0)
        return output.read()


def _wait(step: subprocess.Popen[bytes], name: str, say: Say) -> int | None:
    """The status, or None for one that was ended because it took too long."""
    began = time.monotonic()
    while True:
        try:
            return step.wait(_REPORT_SECONDS)
        except subprocess.TimeoutExpired:
            elapsed = time.monotonic() - began
            if elapsed > _LONGEST_SECONDS:
                step.terminate()
                return None
            say(f"still at {Path(name).name} ({elapsed:.0f} s)")


def _tail(output: IO[str]) -> str:
    output.seek(0)
    return "".join(output.readlines()[-_TAIL_LINES:])
