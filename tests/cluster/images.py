"""The product's image as an archive, built from `gateway/Dockerfile` as users build it, once per content.

`python -m cluster.images` builds it from the working tree (`make image`); `--commit NAME` from a commit. Where a
Docker engine answers it builds, else buildah does, on a base that mmdebstrap makes once. Archives, the base and
buildah's storage lie in the user's cache, outside the checkout, each under the hash of what goes into it.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import images_buildah, images_docker
from cluster.errors import ClusterError, ImageFailed
from cluster.images_registries import registry_secrets
from cluster.images_steps import Order, Say

NAME = "localhost/kubeharness"
"""What every image built here is called, before its tag."""

_CHECKOUT = Path(__file__).resolve().parents[2]
_DOCKERFILE = Path("gateway/Dockerfile")
_FILE_TIME = 946_684_800
"""Of every file that goes in: buildah's layers know files by their times, which a checkout makes up."""
_KEPT_ARCHIVES = 6
_LONGEST_WAIT_SECONDS = 1800.0


def image_name(commit: str | None = None) -> str:
    """The name inside the archive: `localhost/kubeharness:dev`, or tagged with the commit's first twelve digits."""
    return f"{NAME}:{_commit_id(commit)[:12] if commit else 'dev'}"


def product_image(*, commit: str | None = None, report: Say | None = None) -> Path:
    """Return an archive that `ctr images import` and `kind load image-archive` take, holding `image_name(commit)`.

    What is built is the working tree as it is when this is called, or the commit. Equal content is built once on a
    machine; whoever asks meanwhile waits. A build takes one to three minutes when nothing is cached, and reports.
    Raises CommandMissing with the remedy, ImageFailed with the end of the builder's output.
    """
    say = report or _to_stderr
    revision = _commit_id(commit) if commit else "working tree"
    with tempfile.TemporaryDirectory(prefix="kubeharness-image-") as folder:
        context = Path(folder, "context")
        _stage(context, _commit_id(commit) if commit else None)
        order = Order(
            context=context,
            dockerfile=context / _DOCKERFILE,
            name=image_name(commit),
            arguments={"VERSION": _version(context), "REVISION": revision},
        )
        cache = _cache()
        by_docker = images_docker.answers()
        archive = cache / f"product-{_key(order, 'docker' if by_docker else images_buildah.base_key())}.tar"
        with _alone(cache, say):
            if not archive.is_file():
                began = time.monotonic()
                say(f"building {order.name} {order.arguments['VERSION']} ({revision})")
                with registry_secrets(Path(folder)) as secrets:
                    build = images_docker.build if by_docker else images_buildah.build
                    build(order, secrets, archive, cache=cache, say=say)
                say(f"built in {time.monotonic() - began:.0f} s: {archive}")
            archive.touch()
            _forget_oldest(cache)
    return archive


def base(report: Say | None = None) -> Path:
    """Return the base's root as a tar file, made by mmdebstrap if this machine never did: about a minute."""
    cache, say = _cache(), report or _to_stderr
    with _alone(cache, say):
        return images_buildah.base(cache, say)


# --- what goes in ---------------------------------------------------------------------------------------------------


def _stage(context: Path, commit: str | None) -> None:
    """Copy what `.dockerignore` lets in, so that nobody's edit in mid-build parts the archive from its key."""
    tree = _CHECKOUT
    if commit is not None:
        tree = context.with_name("tree")
        tree.mkdir(parents=True)
        _git_archive(commit, tree)
    if not (tree / _DOCKERFILE).is_file():
        raise ImageFailed(f"{commit or tree} has no {_DOCKERFILE}", "name a later commit")
    for path in (Path(".dockerignore"), *_let_in(tree / ".dockerignore")):
        source, target = tree / path, context / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    for path in context.rglob("*"):
        os.utime(path, (_FILE_TIME, _FILE_TIME))


def _let_in(ignores: Path) -> list[Path]:
    """The paths of the lines that begin with `!`."""
    lines = (line.strip() for line in ignores.read_text().splitlines())
    return [Path(line[1:]) for line in lines if line.startswith("!")]


def _git_archive(commit: str, tree: Path) -> None:
    with subprocess.Popen(["git", "-C", _CHECKOUT, "archive", commit], stdout=subprocess.PIPE) as git:
        unpacked = subprocess.run(["tar", "-x", "-C", tree], stdin=git.stdout)
    if git.returncode or unpacked.returncode:
        raise ImageFailed(f"git archive {commit} failed", f"statuses {git.returncode} and {unpacked.returncode}")


def _commit_id(commit: str) -> str:
    found = subprocess.run(
        ["git", "-C", _CHECKOUT, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"],
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise ImageFailed(f"{commit!r} is no commit of this repository", "fetch it, or mend the name")
    return found.stdout.strip()


def _version(context: Path) -> str:
    project = tomllib.loads((context / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def _key(order: Order, builder: str) -> str:
    """The hash of every byte and name that goes in."""
    digest = hashlib.sha256()
    for part in (order.name, builder, *(f"{name}={value}" for name, value in sorted(order.arguments.items()))):
        digest.update(part.encode() + b"\0")
    for path in sorted(order.context.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(order.context)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


# --- where it lies --------------------------------------------------------------------------------------------------


def _cache() -> Path:
    base_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base_folder) / "kubeharness" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forget_oldest(cache: Path) -> None:
    """Keep the archives that were asked for last; each is some 250 MB."""
    archives = sorted(cache.glob("product-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for archive in archives[_KEPT_ARCHIVES:]:
        archive.unlink()


@contextmanager
def _alone(cache: Path, say: Say) -> Iterator[None]:
    """One build at a time on a machine; the kernel drops the lock of a process that died."""
    with (cache / "lock").open("w") as lock:
        deadline, told = time.monotonic() + _LONGEST_WAIT_SECONDS, False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ImageFailed("another process holds the lock for half an hour", lock.name) from None
                if not told:
                    say("another process is building an image; waiting for it")
                told = True
                time.sleep(0.3)
        yield


# --- make image -----------------------------------------------------------------------------------------------------


def _to_stderr(line: str) -> None:
    print(f"image: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Build, print archive and name; the exit status is 1, with one sentence, where that cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m cluster.images", description=__doc__)
    parser.add_argument("--commit", help="build from this commit, not from the working tree")
    commit = parser.parse_args().commit
    try:
        archive = product_image(commit=commit)
        print(f"{image_name(commit)}  {archive}")
    except ClusterError as error:
        print(re.sub(r"\n+", "\n", str(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
