"""A node is there or it is gone: killed starters, kept nodes, starts that fail. No test here asks for the session's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import binaries, bringup, leftovers, own_node
from cluster.errors import ProcessFailed
from cluster.namespaces import FOLDER
from cluster.node_files import PAUSE_IMAGE

pytestmark = pytest.mark.timeout(180)

TESTS = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(TESTS)}


@pytest.fixture
def kept_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of the test's own, so that the node of `make cluster-up` is not touched."""
    name = f"khn-kept-{os.getpid()}"
    monkeypatch.setattr(own_node, "KEPT", name)
    yield name
    own_node.end_kept_node()
    (own_node.CLUSTERS / f"{name}.lock").unlink()


def traces(name: str) -> list[str]:
    """All that tells of a node on this machine."""
    folder = own_node.CLUSTERS / name
    found = [str(path) for path in (folder, FOLDER / name) if path.exists()]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    found += leftovers.mounts_below(folder)
    return found + commands_naming(f"{folder}/")


def commands_naming(text: str) -> list[str]:
    """The command lines, of whatever process, in which the text occurs."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue  # ended meanwhile
    return [line for line in lines if text in line]


def other_nodes() -> list[Path]:
    """Nodes of somebody else, whose kubelets have set the machine as they need it."""
    return list(own_node.CLUSTERS.glob("*/"))


def machine() -> dict[str, str]:
    """What a kubelet changes of the machine."""
    names = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
    return {name: Path("/proc/sys", name).read_text() for name in names}


def test_a_node_whose_starter_was_killed_is_cleared_away_by_the_next_pods_and_all(tmp_path: Path) -> None:
    before = machine()
    told = tmp_path / "told"
    script = f"""
        {binaries.kubectl()} run held --image={PAUSE_IMAGE} --image-pull-policy=Never
        {binaries.kubectl()} wait --for=condition=Ready pod/held --timeout=60s
        echo $KUBECONFIG > {told}.partial && mv {told}.partial {told}
        sleep 600
    """
    command = [sys.executable, "-m", "cluster", "run", "--", "sh", "-e", "-c", script]
    with subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True) as starter:
        while not told.exists():
            assert starter.poll() is None
            time.sleep(0.1)
        name = Path(told.read_text().strip()).parent.name
        own_node.clear_abandoned()
        while_it_lived = traces(name)
        os.killpg(starter.pid, signal.SIGKILL)
    left = traces(name)
    own_node.clear_abandoned()

    assert any("kubelet" in trace for trace in while_it_lived), "it was cleared away under its living starter"
    assert any("containerd-shim" in trace for trace in left), "the test shows nothing: the pod died with the starter"
    assert traces(name) == []
    assert other_nodes() or machine() == before


def test_a_command_runs_in_the_network_of_its_node_and_the_node_ends_with_it() -> None:
    script = "readlink /proc/self/ns/net; echo $KUBECONFIG; exit 7"
    command = [sys.executable, "-m", "cluster", "run", "--", "sh", "-c", script]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    network, kubeconfig = done.stdout.split()

    assert done.returncode == 7
    assert network != os.readlink("/proc/self/ns/net")
    assert traces(Path(kubeconfig).parent.name) == []


def test_a_kept_node_is_the_same_until_it_is_ended_and_anew_if_it_is_not_whole(kept_name: str) -> None:
    def etcd() -> int:
        return leftovers.Started.read(own_node.CLUSTERS / kept_name / "pids" / "etcd.json").pid

    own_node.keep_node()
    first = etcd()
    own_node.keep_node()
    again = etcd()
    os.kill(first, signal.SIGKILL)
    own_node.keep_node()
    anew = etcd()
    began = time.monotonic()
    own_node.end_kept_node()

    assert first == again
    assert anew != first
    assert time.monotonic() - began < 10
    assert traces(kept_name) == []


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(
    kept_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "coredns"
    script.write_text("#!/bin/sh\necho the names are all taken\nexit 3\n")
    script.chmod(0o755)
    found = replace(bringup.Executables.found(), coredns=script)
    monkeypatch.setattr(bringup.Executables, "found", lambda: found)
    with pytest.raises(ProcessFailed, match=r"(?s)coredns ended with status 3.*names are all taken") as failure:
        own_node.keep_node()

    logs = Path(failure.value.__notes__[0].rpartition(" ")[2])
    assert "the names are all taken" in (logs / "coredns.log").read_text()
    assert traces(kept_name) == []
