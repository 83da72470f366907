"""What the machine did while we measured: its clock speed, its disk, and how much of it others took."""

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

SYNCS = 100
LOOP = 200_000
IDLE_SECONDS = 0.3
NOISY_FOREIGN = 0.15
NOISY_SLOWDOWN = 1.25

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One look at the machine before a round."""

    loop_ms: float
    """A fixed CPU loop."""
    sync_ms: float
    """f: the mean fdatasync of 8 KiB."""
    foreign: float
    """The part of all CPUs that others used while we did nothing."""


def probe(folder: Path) -> Probe:
    """Look at the machine for about half a second; `folder` is on the disk that is measured."""
    with CpuMeter() as meter:
        time.sleep(IDLE_SECONDS)
    return Probe(loop_ms=_loop_ms(), sync_ms=_sync_ms(folder), foreign=meter.foreign)


def _loop_ms() -> float:
    times = []
    for _ in range(5):
        started = time.perf_counter()
        value = 0
        for number in range(LOOP):
            value = (value * 31 + number) & 0xFFFF
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def _sync_ms(folder: Path) -> float:
    path = folder / "probe"
    block = os.urandom(8192)
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for number in range(64):
            os.pwrite(fd, block, number * 8192)
        os.fsync(fd)
        spent = 0.0
        for number in range(SYNCS):
            os.pwrite(fd, block, (number % 64) * 8192)
            started = time.perf_counter()
            os.fdatasync(fd)
            spent += time.perf_counter() - started
    finally:
        os.close(fd)
        path.unlink()
    return spent / SYNCS * 1000


class CpuMeter:
    """The CPU of a stretch of time, ours and foreign: ours are this process and all that descend from it."""

    def __enter__(self) -> "CpuMeter":
        self._started = time.monotonic()
        self._all, self._ours = _busy_ticks(), _own_ticks()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(0.001, time.monotonic() - self._started)
        capacity = seconds * TICKS * (os.cpu_count() or 1)
        busy, ours = _busy_ticks() - self._all, _own_ticks() - self._ours
        self.foreign = max(0.0, busy - ours) / capacity
        self.own = ours / capacity


def _busy_ticks() -> int:
    """User, nice, system, irq, softirq and steal of all CPUs together."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return fields[0] + fields[1] + fields[2] + fields[5] + fields[6] + fields[7]


def _own_ticks() -> int:
    """The ticks of our whole tree; the dead are counted by the parents that reaped them."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(entry.name)
        parents[pid] = int(words[1])
        ticks[pid] = sum(int(word) for word in words[11:15])
    return sum(used for pid, used in ticks.items() if _descends(pid, parents))


def _descends(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False
