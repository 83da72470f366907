"""What chart tests need before their clocks run."""

import contextlib
from pathlib import Path

import pytest

from cluster import binaries
from cluster.errors import ClusterError


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build helm, if some test of this folder runs and this machine never did: two or three minutes, once."""
    here = Path(__file__).parent
    if not session.config.getoption("collectonly") and any(here in item.path.parents for item in session.items):
        with contextlib.suppress(ClusterError):  # the tests say it again
            binaries.helm()
