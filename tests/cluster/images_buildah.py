"""Builds without an engine: mmdebstrap makes the base, buildah the image, both as root, in a storage of our own."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.errors import CommandMissing, ImageFailed
from cluster.images_steps import Order, Say, run

_SUITE = "bookworm"
_PACKAGES = "python3,python3-venv,ca-certificates"
_HOOK = 'rm -f "$1"/etc/resolv.conf "$1"/etc/hostname'  # of the machine that made it
_MOST_LAYERS = 60


def base_key() -> str:
    """The hash of what the base is made of."""
    return hashlib.sha256("\0".join((_SUITE, _PACKAGES, _HOOK)).encode()).hexdigest()[:12]


def base(cache: Path, say: Say) -> Path:
    """Return the base's root as a tar file; make it if it is not there."""
    made = cache / f"base-{base_key()}.tar"
    if not made.is_file():
        say(f"making the base of Debian {_SUITE}: about a minute, once")
        partial = made.with_suffix(".partial.tar")
        command = [_found("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={_PACKAGES}"]
        run([*command, f"--customize-hook={_HOOK}", _SUITE, partial], say=say)
        partial.rename(made)
    return made


def build(order: Order, secrets: Mapping[str, Path], archive: Path, *, cache: Path, say: Say) -> None:
    """Build on our base and write an oci-archive; layers of former builds are used again."""
    storage = Storage(cache)
    storage.bound()
    base_name = f"localhost/kubeharness-base:{base_key()}"
    if not storage.has(base_name):
        _import_base(storage, base(cache, say), base_name, say)
    options = [f"--build-arg={name}={value}" for name, value in {"BASE": base_name, **order.arguments}.items()]
    options += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
    how = ("--isolation=chroot", "--network=host", "--layers", "--pull-never", "--format=oci")
    storage.buildah("bud", *how, *options, "--file", order.dockerfile, "--tag", order.name, order.context, say=say)
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    storage.buildah("push", order.name, f"oci-archive:{partial}:{order.name}", say=say)
    partial.rename(archive)


def _import_base(storage: "Storage", root: Path, name: str, say: Say) -> None:
    container = storage.buildah("from", "scratch", say=say).strip()
    try:
        storage.buildah("add", container, root, "/", say=say)
        storage.buildah("commit", container, name, say=say)
    finally:
        storage.buildah("rm", container, say=say)


class Storage:
    """buildah with its images in a folder of the cache, apart from any other use of it on this machine."""

    def __init__(self, cache: Path) -> None:
        self._root = cache / "storage"
        self._run = cache / "run"

    def buildah(self, *arguments: str | Path, say: Say) -> str:
        """Run it and return what it printed. Raises ImageFailed with the end of that."""
        return run(self._command(*arguments), say=say)

    def has(self, name: str) -> bool:
        """Whether an image of this name is here."""
        return subprocess.run(self._command("inspect", "--type=image", name), capture_output=True).returncode == 0

    def bound(self) -> None:
        """Start anew once too many layers of former builds have come together: cheaper than to say which are stale."""
        layers = self._root / f"{_driver(self._root)}-layers" / "layers.json"
        if layers.is_file() and layers.read_text().count('"id":') > _MOST_LAYERS:
            subprocess.run(self._command("rm", "--all"), capture_output=True)
            subprocess.run(self._command("rmi", "--all", "--force"), capture_output=True)

    def _command(self, *arguments: str | Path) -> list[str | Path]:
        options = [f"--root={self._root}", f"--runroot={self._run}", f"--storage-driver={_driver(self._root)}"]
        return [_found("buildah"), *options, *arguments]


@functools.cache
def _driver(root: Path) -> str:
    """overlay where the kernel mounts one there; else vfs, which copies the whole root for each layer."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        parts = {name: Path(folder, name) for name in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            part.mkdir()
        layered = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        mount: list[str | Path] = ["mount", "-t", "overlay", "overlay", "-o", layered, parts["merged"]]
        if subprocess.run(mount, capture_output=True).returncode:
            return "vfs"
        subprocess.run(["umount", parts["merged"]], check=True)
        return "overlay"


def _found(command: str) -> str:
    path = shutil.which(command)
    if path is None:
        raise CommandMissing(command, "tests/apt-packages.sh cluster, or start a Docker engine")
    if os.geteuid() != 0:
        raise ImageFailed(f"{command} builds as root here", "run this as root, or start a Docker engine")
    return path
