"""Ends a node and takes away whatever it put on the machine, whether its starter lives, left, or was killed.

A node is known by its folder: the processes written down there, the shims that name its socket, its cgroups, the mounts
below it, its network namespace. Everything is ended by pid and nothing is asked of a process that may be gone.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import SweepFailed
from cluster.namespaces import NetworkNamespace

_CGROUPS = Path("/sys/fs/cgroup")
_SECONDS = 20.0

# What a kubelet sets on its machine although it is the whole machine's.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)


_MACHINE = "machine.json"

# What they make although it cannot be told to them where; the deepest first.
_SHARED_FOLDERS = tuple(
    map(
        Path,
        (
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet",
            "/var/log/containers",
            "/run/containerd/s",
            "/run/containerd",
            "/var/lib/cni/results",
            "/var/lib/cni/cache",
            "/var/lib/cni",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Started:
    """A process as it is written down: a pid alone may come back as somebody else's."""

    pid: int
    since: int
    command: list[str]
    environment: dict[str, str]

    @classmethod
    def of(cls, pid: int, command: list[str], environment: dict[str, str]) -> "Started":
        """The process that now has this pid."""
        return cls(pid, _started_at(pid) or 0, command, environment)

    def write(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        document = {
            "pid": self.pid,
            "since": self.since,
            "command": self.command,
            "environment": self.environment,
        }
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document))
        partial.rename(path)

    @classmethod
    def read(cls, path: Path) -> "Started":
        """What was written."""
        document = json.loads(path.read_text())
        return cls(document["pid"], document["since"], document["command"], document["environment"])

    def lives(self) -> bool:
        """Whether it still runs: a zombie does not."""
        return _started_at(self.pid) == self.since


def remember_the_machine(clusters: Path) -> None:
    """Write down how the machine is before its first kubelet and containerd change it; the last sweep mends it."""
    path = clusters / _MACHINE
    if not path.exists():
        settings = {name: value for name in _SYSCTLS if (value := _sysctl(name)) is not None}
        absent = [str(folder) for folder in _SHARED_FOLDERS if not folder.exists()]
        path.write_text(json.dumps({"settings": settings, "absent": absent}))


def make_cgroups(name: str) -> None:
    """Make the cgroup below which a kubelet puts its pods, in every controller."""
    for controller in _controllers():
        folder = controller / name
        folder.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):  # v1: an empty set takes no process
            if (folder / file).exists() and not (folder / file).read_text().strip():
                (folder / file).write_text((controller / file).read_text())


def sweep(folder: Path, name: str) -> None:
    """End what runs of the node `name`, and remove its cgroups, mounts, namespace and folder; idempotent.

    Raises SweepFailed if something does not go.
    """
    if not name:
        raise ValueError("the cgroup of no name is the root: everything on the machine would be ended")
    deadline = time.monotonic() + _SECONDS
    while pids := {*_written_down(folder), *_shims(folder), *_in_cgroups(name)}:
        for pid in pids:
            _kill(pid)
        if time.monotonic() > deadline:
            raise SweepFailed(folder, f"these processes do not end: {sorted(pids)}")
        time.sleep(0.02)
    _remove_shim_sockets(folder)
    _unmount(folder)
    _remove_cgroups(name)
    NetworkNamespace(name).delete()
    _remove_foreign_files(folder, name)
    shutil.rmtree(folder, ignore_errors=True)
    _mend_the_machine(folder.parent)


def _written_down(folder: Path) -> Iterator[int]:
    for path in (folder / "pids").glob("*.json"):
        started = Started.read(path)
        if started.lives():
            yield started.pid


def _shims(folder: Path) -> Iterator[int]:
    """containerd's shims hold the containers, and are nobody's children: they outlive containerd on purpose."""
    socket = f"{folder}/containerd.sock"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue  # ended meanwhile
        if Path(words[0]).name.startswith("containerd-shim") and socket in words:
            yield int(path.parent.name)


def _in_cgroups(name: str) -> Iterator[int]:
    for controller in _controllers():
        for path in (controller / name).rglob("cgroup.procs"):
            try:
                yield from (pid for line in path.read_text().split() if _started_at(pid := int(line)) is not None)
            except OSError:
                continue  # removed meanwhile


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # gone meanwhile


def _started_at(pid: int) -> int | None:
    """The clock tick at which it started; None if there is none, or what is left is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _remove_shim_sockets(folder: Path) -> None:
    """They lie in a folder that all containerds share, under a hash; a shim that was killed leaves its own."""
    for path in folder.glob("run/io.containerd.runtime.v2.task/*/*/address"):
        Path(path.read_text().strip().removeprefix("unix://")).unlink(missing_ok=True)


def _unmount(folder: Path) -> None:
    for point in sorted(mounts_below(folder), reverse=True):  # the deepest first
        subprocess.run(["umount", "--lazy", point], capture_output=True, timeout=10, check=False)
    if left := mounts_below(folder):  # a pod may have mounted a folder of the host there: never remove through it
        raise SweepFailed(folder, f"these mounts stay: {left}")


def mounts_below(folder: Path) -> list[str]:
    """The mount points below a folder."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return [point for point in points if point.startswith(f"{folder}/")]


def _remove_cgroups(name: str) -> None:
    for controller in _controllers():
        for path in sorted((controller / name).rglob("*"), reverse=True):
            if path.is_dir():
                _remove_cgroup(path)
        _remove_cgroup(controller / name)


def _remove_cgroup(path: Path) -> None:
    for _ in range(50):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)  # its last process is still on its way out


def _remove_foreign_files(folder: Path, name: str) -> None:
    """What kubelet and CNI put in folders that cannot be told to them."""
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and os.readlink(link).startswith(f"{folder}/"):
            link.unlink(missing_ok=True)
    for result in Path("/var/lib/cni/results").glob(f"{name}-*"):
        result.unlink(missing_ok=True)


def _mend_the_machine(clusters: Path) -> None:
    """Once no node is left: settings as they were, and the folders gone that nobody had."""
    path = clusters / _MACHINE
    if not path.exists() or any(clusters.glob("*/")):
        return
    before = json.loads(path.read_text())
    for name, value in before["settings"].items():
        if _sysctl(name) != value:
            Path("/proc/sys", name).write_text(value)
    if str(_SHARED_FOLDERS[0]) in before["absent"]:
        (_SHARED_FOLDERS[0] / "kubelet.sock").unlink(missing_ok=True)
    for folder in before["absent"]:
        with contextlib.suppress(OSError):  # there is none, or somebody else has something in it
            Path(folder).rmdir()
    path.unlink()


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _controllers() -> list[Path]:
    """The roots of the cgroup trees: one a controller in version 1, one in all in version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
