"""Archives of the image: of a commit, and found again."""

import json
import tarfile
import time
from pathlib import Path

import pytest

from cluster.images import image_name, product_image


@pytest.mark.timeout(900)  # a cold build
@pytest.mark.slow
def test_an_image_of_a_commit_bears_its_name_and_is_built_once() -> None:
    said: list[str] = []
    first = product_image(commit="HEAD", report=said.append)
    began, before = time.monotonic(), len(said)
    second = product_image(commit="HEAD", report=said.append)
    print(f"\nimage: found again in {time.monotonic() - began:.1f} s; {' / '.join(said)}")

    assert first == second
    assert said[before:] == []
    assert _annotated_name(first) == image_name("HEAD")
    assert _annotated_name(product_image()) == "localhost/kubeharness:dev"


def _annotated_name(archive: Path) -> str:
    with tarfile.open(archive) as members:
        index = members.extractfile("index.json")
        assert index is not None
        annotations = json.loads(index.read())["manifests"][0]["annotations"]
    return str(annotations["org.opencontainers.image.ref.name"])
