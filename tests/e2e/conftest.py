"""One installation for all tests here, a namespace for each; after each the database must be sound."""

from collections.abc import Generator, Iterator

import pytest

from cluster.access import Cluster
from e2e.installation import Installation, installed
from e2e.rooms import Room
from support.aimock import running_aimock
from support.everything import running_everything
from support.postgres import TEMPLATE
from support.postgres_server import PostgresServer

DATABASE = "e2e"
_KEY = pytest.StashKey[Installation]()


@pytest.fixture(scope="package")
def installation(
    control_plane: Cluster, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """The product, running. It ends with the last test of this folder: others look at objects that nobody operates."""
    folder = tmp_path_factory.mktemp("e2e")
    url = postgres_server.create(DATABASE, template=TEMPLATE)
    try:
        with (
            running_aimock(folder) as mock,
            running_everything(folder) as everything,
            installed(control_plane, folder, url, mock, everything) as whole,
        ):
            yield whole
    finally:
        postgres_server.drop(DATABASE)


@pytest.fixture
def unserved(installation: Installation, namespace: str, request: pytest.FixtureRequest) -> Iterator[Room]:
    """A namespace whose Secrets the workers may not read."""
    request.node.stash[_KEY] = installation
    installation.complete()
    yield Room(installation, namespace)
    assert not installation.dead()
    installation.verify()


@pytest.fixture
def room(unserved: Room) -> Room:
    """A namespace of the test's own."""
    unserved.serve()
    return unserved


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the processes said last."""
    report = yield
    installation = item.stash.get(_KEY, None)
    if report.failed and installation is not None:
        report.sections += installation.logs()
    return report
