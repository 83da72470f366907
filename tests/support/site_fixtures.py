"""pytest plugin: a model wire and a tool server a session, and for a test a site with the demo agent published."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.aimock import AIMock, running_aimock
from support.everything import Everything, running_everything
from support.site import Site, site


@pytest.fixture(scope="session")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AIMock]:
    """aimock."""
    with running_aimock(tmp_path_factory.mktemp("aimock")) as running:
        yield running


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    """server-everything."""
    with running_everything(tmp_path_factory.mktemp("everything")) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, postgres_url: str, mock: AIMock, everything: Everything) -> Iterator[Site]:
    """A site with the demo agent published and nothing started."""
    with site(tmp_path, postgres_url, mock, everything) as one:
        one.publish()
        yield one
