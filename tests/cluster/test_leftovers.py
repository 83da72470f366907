"""What is ended is what was written down: never a process that came to have the same number."""

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.leftovers import Started, sweep

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def test_a_process_lives_until_it_ends_though_nobody_buried_it(sleeper: subprocess.Popen[bytes]) -> None:
    started = Started.of(sleeper.pid, SLEEP, {})
    lived = started.lives()
    sleeper.kill()
    deadline = time.monotonic() + 10
    while started.lives() and time.monotonic() < deadline:  # not waited for, so what is left is a zombie
        time.sleep(0.01)

    assert lived
    assert not started.lives()
    assert Path(f"/proc/{sleeper.pid}/stat").exists()


def test_what_was_written_is_read_back(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    started = Started.of(sleeper.pid, SLEEP, {"KUBECONFIG": "/one"})
    started.write(tmp_path / "sleeper.json")

    assert Started.read(tmp_path / "sleeper.json") == started


def test_another_process_under_the_same_number_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "node" / "pids").mkdir(parents=True)
    started = Started.of(sleeper.pid, SLEEP, {})
    dataclasses.replace(started, since=started.since - 1).write(tmp_path / "node" / "pids" / "etcd.json")
    sweep(tmp_path / "node", "khn-test-of-leftovers")

    assert sleeper.poll() is None
    assert not (tmp_path / "node").exists()


def test_what_was_written_down_is_ended_and_twice_is_no_error(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "node" / "pids").mkdir(parents=True)
    Started.of(sleeper.pid, SLEEP, {}).write(tmp_path / "node" / "pids" / "etcd.json")
    sweep(tmp_path / "node", "khn-test-of-leftovers")
    sweep(tmp_path / "node", "khn-test-of-leftovers")

    assert sleeper.wait(5) == -9
    assert not (tmp_path / "node").exists()


def test_no_name_is_refused_since_its_cgroup_would_be_the_root(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="everything on the machine"):
        sweep(tmp_path, "")
