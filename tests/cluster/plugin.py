"""pytest plugin: `pytest_plugins = ["cluster.plugin"]` in the top conftest gives every test a real cluster.

A test that asks for a fixture of this file runs on a real API server or fails; it is never skipped.
"""

import contextlib
import secrets
from collections.abc import Iterator

import pytest

from cluster.access import Cluster
from cluster.binaries import control_plane_binaries, helm
from cluster.bringup import Executables
from cluster.errors import ClusterError
from cluster.node import NodeCluster
from cluster.selection import choice, is_given, open_cluster, open_node


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the binaries, if some test needs them, before the clock of any test runs."""
    if session.config.getoption("collectonly"):
        return
    asked = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    with contextlib.suppress(ClusterError):  # the fixture says it again, as the failure of a test
        if "control_plane" in asked:
            helm()  # accounts and their rights are the chart's
        if "control_plane" in asked and not is_given():
            control_plane_binaries()
        if "node" in asked and choice() in ("", "own"):
            Executables.found()


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """The cluster of this test session, seen as its administrator; it is shared, so use `namespace`."""
    with open_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    """The cluster that runs pods; this process is inside its network for the rest of the session.

    So a session that asks for it should ask for no other server of the host's loopback.
    """
    with open_node() as cluster:
        yield cluster


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A namespace of the test's own. Its deletion is asked for at the end, not waited for."""
    name = f"kubeharness-test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
