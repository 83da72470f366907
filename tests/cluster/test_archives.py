"""An image archive is what the OCI says, and equal content gives equal bytes."""

import hashlib
import json
import shutil
import tarfile
from pathlib import Path

from cluster.archives import write_archive

EXECUTABLE = shutil.which("true") or "/bin/true"


def test_every_digest_leads_to_a_blob_of_that_content(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "image.tar", "localhost/one:1", Path(EXECUTABLE))
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path / "image", filter="data")
    files = {
        str(file.relative_to(tmp_path / "image")): file.read_bytes()
        for file in (tmp_path / "image").rglob("*")
        if file.is_file()
    }
    blobs = {name.rpartition("/")[2]: content for name, content in files.items() if name.startswith("blobs/")}
    [named] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blobs[named["digest"].removeprefix("sha256:")])
    described = [named, manifest["config"], *manifest["layers"]]

    assert named["annotations"]["org.opencontainers.image.ref.name"] == "localhost/one:1"
    assert {one["digest"].removeprefix("sha256:") for one in described} == blobs.keys()
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in blobs.items())
    config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert config["config"]["User"] == "65532:65532"


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    one = write_archive(tmp_path / "one.tar", "localhost/one:1", Path(EXECUTABLE)).read_bytes()
    again = write_archive(tmp_path / "again.tar", "localhost/one:1", Path(EXECUTABLE)).read_bytes()

    assert one == again
