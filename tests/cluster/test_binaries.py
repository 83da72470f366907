"""The build cache, with a `go` that is quick: one build for all who ask, and never half a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.binaries import CONTROL_PLANE, control_plane_binaries
from cluster.errors import BuildFailed, CommandMissing

QUICK_GO = """#!/bin/sh
echo run >> "$GO_RUNS"
while [ "$1" != -o ]; do shift; done
sleep 0.5
touch "$2/kube-apiserver" "$2/kube-controller-manager"
"""
BROKEN_GO = """#!/bin/sh
echo "no space left on device" >&2
exit 1
"""


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that stands for `go`, and a cache of the test's own."""
    script = tmp_path / "bin" / "go"
    script.parent.mkdir()
    script.write_text(QUICK_GO)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_RUNS", str(tmp_path / "runs"))
    return script


def test_processes_that_ask_at_once_share_one_build(go: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cluster", "build"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    asking = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate(timeout=20)[0].strip() for process in asking}

    assert folders == {str(control_plane_binaries())}
    assert {path.name for path in control_plane_binaries().iterdir()} == set(CONTROL_PLANE)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_build_says_what_it_does(go: Path) -> None:
    said: list[str] = []
    control_plane_binaries(said.append)
    control_plane_binaries(said.append)

    assert [line.split()[0] for line in said] == ["building", "built"]


def test_a_failed_build_shows_why_and_leaves_nothing_to_be_taken_for_a_result(go: Path) -> None:
    go.write_text(BROKEN_GO)
    with pytest.raises(BuildFailed, match="no space left on device"):
        control_plane_binaries(lambda line: None)
    go.write_text(QUICK_GO)

    assert (control_plane_binaries(lambda line: None) / "kube-apiserver").exists()


def test_a_machine_without_go_is_told_so(go: Path) -> None:
    go.unlink()

    with pytest.raises(CommandMissing, match="install Go"):
        control_plane_binaries(lambda line: None)
