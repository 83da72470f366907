"""The image, built once for a session before the clock of any test runs, and unpacked where no test changes it."""

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.images import product_image
from image.container import Image, Runner, unpack


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build now: a test's time limit is not for builds."""
    if not session.config.getoption("collectonly") and any(
        "image" in getattr(item, "fixturenames", ()) for item in session.items
    ):
        product_image()


@pytest.fixture(scope="session")
def image() -> Iterator[Image]:
    """The product's image, from the working tree."""
    with tempfile.TemporaryDirectory(prefix="kubeharness-image-") as folder:
        yield unpack(product_image(), Path(folder, "image"))


@pytest.fixture
def runner(image: Image, tmp_path: Path) -> Runner:
    """Containers of the image with a read-only root."""
    return Runner(image, tmp_path / secrets.token_hex(4))
