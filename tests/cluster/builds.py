"""Executables built from Go modules: one tree of modules a build, kept in the user's cache.

A tree is a folder with a `go.mod` and a `go.sum` that pin everything. A build lands outside the checkout, under the
hash of what goes into it; whoever comes second finds it there, whoever comes meanwhile waits.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.errors import BuildFailed, CommandMissing

_LONGEST_BUILD_SECONDS = 3600
_REPORT_SECONDS = 30

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoBuild:
    """A set of executables that one `go build` makes."""

    name: str
    """What is said while it is built."""
    tree: Path
    """The folder of its go.mod."""
    packages: tuple[str, ...]
    """Import paths; an executable is called like the last part of its."""
    stamp: tuple[tuple[str, str], ...] = ()
    """Variables that the linker sets: without a version stamp clients see v0.0.0."""
    minutes: int = 1
    """What a cold build takes on two cores."""

    @property
    def executables(self) -> tuple[str, ...]:
        """What lies in the folder once it is built."""
        return tuple(package.rpartition("/")[2] for package in self.packages)

    def folder(self, report: Report | None = None) -> Path:
        """Return the folder that holds the executables, building them first if this machine never did.

        A build runs at low priority and says so line by line through `report` (standard error if None).
        Processes that ask at the same time wait for the first one's. Raises CommandMissing without Go,
        BuildFailed with the end of Go's output.
        """
        folder = cache() / self._key()
        if not folder.is_dir():
            say = report or _to_stderr
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                self._acquire(lock, say)
                if not folder.is_dir():
                    self._build(folder, say)
        return folder

    def _flags(self) -> list[str]:
        linked = " ".join(("-s -w", *(f"-X {name}={value}" for name, value in self.stamp)))
        return ["-mod=readonly", "-trimpath", "-ldflags", linked]

    def _key(self) -> str:
        """The hash of what goes in. A tree with sources of its own counts them; others stand in go.sum."""
        own = [path.read_bytes() for path in sorted(self.tree.rglob("*.go"))]
        sums = [path.read_bytes() for path in (self.tree / "go.sum",) if path.exists()]
        parts = [*sums, *own, *(part.encode() for part in (*self._flags(), *self.executables))]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def _acquire(self, lock: IO[str], say: Report) -> None:
        """Hold the lock until its file is closed; the kernel drops it if this process dies mid-build."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is building {self.name}; waiting for it")
            deadline = time.monotonic() + _LONGEST_BUILD_SECONDS
            while True:
                try:
                    return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise BuildFailed(self.name, "another process holds the lock for an hour", lock.name) from None
                    time.sleep(0.5)

    def _build(self, folder: Path, say: Report) -> None:
        go = go_command()
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)  # what a build that died left; the lock says nobody is in it
        partial.mkdir()
        say(f"building {self.name} into {folder}: some {self.minutes} min, once")
        command = ["nice", "-n", "10", go, "build", *self._flags(), "-o", f"{partial}/", *self.packages]
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            self._run(command, output, say)
        partial.rename(folder)  # last, so that the folder's presence means that everything is in it
        say(f"built in {time.monotonic() - began:.0f} s")

    def _run(self, command: list[str], output: IO[str], say: Report) -> None:
        environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
        began = time.monotonic()
        with subprocess.Popen(command, cwd=self.tree, env=environment, stdout=output, stderr=output) as build:
            try:
                while (code := _wait(build, _REPORT_SECONDS)) is None:
                    elapsed = time.monotonic() - began
                    if elapsed > _LONGEST_BUILD_SECONDS:
                        raise BuildFailed(self.name, f"not done after {elapsed:.0f} s", _tail(output))
                    say(f"still building {self.name} ({elapsed:.0f} s)")
            except BaseException:
                build.terminate()  # go ends its compilers itself
                raise
        if code != 0:
            raise BuildFailed(self.name, f"go build exited {code}", _tail(output))


def module_folder(tree: Path, module: str) -> Path:
    """Return where the module cache holds a module of this tree, downloading it first if it must."""
    _go(tree, module, "mod", "download", module)
    return Path(_go(tree, module, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module).strip())


def _go(tree: Path, what: str, *args: str) -> str:
    environment = os.environ | {"GOWORK": "off"}
    command = [go_command(), *args]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise BuildFailed(what, f"go {args[0]} exited {done.returncode}", done.stderr)
    return done.stdout


def go_command() -> str:
    """Return the path of `go`."""
    found = shutil.which("go")
    if found is None:
        raise CommandMissing("go", "install Go 1.26 or newer, it builds the cluster's executables from their modules")
    return found


def cache() -> Path:
    """Outside the checkout, so that a fresh clone on the same machine does not build again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kubeharness"


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _tail(output: IO[str]) -> str:
    output.seek(0)
    return "".join(output.readlines()[-30:])


def _to_stderr(line: str) -> None:
    print(f"cluster: {line}", file=sys.stderr, flush=True)
