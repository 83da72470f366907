"""The echo installation on the session's node."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import binaries
from cluster.archives import write_archive
from cluster.node import NodeCluster
from node.house import IMAGE, NAMESPACE, Echo, objects


@pytest.fixture(scope="session")
def echo(node: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Echo]:
    """Rolled out once; a test leaves it with two available pods."""
    archive: Path = tmp_path_factory.mktemp("echo") / "echo.tar"
    assert node.import_image(write_archive(archive, IMAGE, binaries.pod_binaries() / "echo")) == [IMAGE]
    node.apply(*objects())
    installed = Echo(node)
    installed.roll_out()
    yield installed
    node.kubectl("delete", "namespace", NAMESPACE, timeout=60)
