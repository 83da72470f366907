"""What is said of an image before anything is built: its context, its key, its way to the registries."""

import configparser
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster import images
from cluster.errors import ImageFailed
from cluster.images_registries import registry_secrets
from cluster.images_steps import Order, run

FILES = {
    ".dockerignore": "# what the build sees\n*\n!LICENSE\n!gateway/Dockerfile\n!gateway/kubeharness\n**/__pycache__\n",
    "LICENSE": "free",
    "secret.env": "not for an image",
    "gateway/Dockerfile": "FROM scratch",
    "gateway/notes.txt": "not for an image",
    "gateway/kubeharness/__init__.py": "a = 1",
    "gateway/kubeharness/__pycache__/__init__.cpython-311.pyc": "stale",
    "gateway/kubeharness/store/schema.sql": "SELECT 1",
}


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository in the place of ours."""
    folder = tmp_path / "checkout"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    monkeypatch.setattr(images, "_CHECKOUT", folder)
    _git(folder, "init", "--quiet")
    _commit(folder)
    return folder


def test_only_what_dockerignore_lets_in_is_staged(tmp_path: Path) -> None:
    images._stage(tmp_path / "context", None)

    staged = {
        str(path.relative_to(tmp_path / "context")) for path in (tmp_path / "context").rglob("*") if path.is_file()
    }
    assert staged == {
        ".dockerignore",
        "LICENSE",
        "gateway/Dockerfile",
        "gateway/kubeharness/__init__.py",
        "gateway/kubeharness/store/schema.sql",
    }


def test_what_dockerignore_lets_in_is_there() -> None:
    ours = Path(__file__).parents[2]

    assert [path for path in images._let_in(ours / ".dockerignore") if not (ours / path).exists()] == []


def test_the_key_is_of_the_content_and_of_nothing_else(tmp_path: Path, checkout: Path) -> None:
    key = _key(tmp_path / "a")
    os.utime(checkout / "LICENSE", (1, 1))
    (checkout / "secret.env").write_text("another")

    assert _key(tmp_path / "b") == key
    assert _key(tmp_path / "c", builder="another") != key
    assert _key(tmp_path / "d", name="another") != key
    assert _key(tmp_path / "e", arguments={"VERSION": "2"}) != key


@pytest.mark.parametrize("changed", [{"LICENSE": "fees"}, {"gateway/kubeharness/new.py": ""}], ids=str)
def test_other_content_makes_another_key(tmp_path: Path, checkout: Path, changed: dict[str, str]) -> None:
    key = _key(tmp_path / "a")
    for name, content in changed.items():
        (checkout / name).write_text(content)

    assert _key(tmp_path / "b") != key


def test_a_file_that_moves_makes_another_key(tmp_path: Path, checkout: Path) -> None:
    key = _key(tmp_path / "a")
    (checkout / "gateway/kubeharness/store/schema.sql").rename(checkout / "gateway/kubeharness/store/scheme.sql")

    assert _key(tmp_path / "b") != key


def test_a_commit_is_built_from_its_own_files(tmp_path: Path, checkout: Path) -> None:
    (checkout / "LICENSE").write_text("later")
    _commit(checkout)
    (checkout / "LICENSE").write_text("not committed")
    for commit in ("HEAD~1", "HEAD"):
        images._stage(tmp_path / commit / "context", images._commit_id(commit))

    assert (tmp_path / "HEAD~1/context/LICENSE").read_text() == "free"
    assert (tmp_path / "HEAD/context/LICENSE").read_text() == "later"
    assert images.image_name("HEAD") == f"localhost/kubeharness:{images._commit_id('HEAD')[:12]}"
    assert images.image_name() == "localhost/kubeharness:dev"


def test_a_commit_without_an_image_is_said(tmp_path: Path, checkout: Path) -> None:
    (checkout / "gateway/Dockerfile").unlink()
    _commit(checkout)

    with pytest.raises(ImageFailed, match="has no gateway/Dockerfile"):
        images._stage(tmp_path / "context", images._commit_id("HEAD"))


def test_a_name_that_is_no_commit_is_said() -> None:
    with pytest.raises(ImageFailed, match="'no-such-commit' is no commit"):
        images.image_name("no-such-commit")


def test_every_file_has_one_time_so_that_layers_are_found_again(tmp_path: Path) -> None:
    images._stage(tmp_path / "context", None)

    assert len({path.stat().st_mtime for path in (tmp_path / "context").rglob("*")}) == 1


def test_the_way_to_the_registries_is_for_us_alone_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@mirror.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/opt/wheels")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://overridden.example\ntimeout = 77\n")

    with registry_secrets(tmp_path) as secrets:
        pip = configparser.RawConfigParser()
        pip.read(secrets["pip.conf"])
        mode = stat.S_IMODE(secrets["pip.conf"].stat().st_mode)

    assert secrets["ca.crt"] == bundle
    assert mode == 0o600
    told = dict(pip["global"])
    assert told["index-url"] == "https://user:secret@mirror.example/simple"
    assert told["timeout"] == "77"
    assert told["cert"] == "/run/secrets/ca.crt"
    assert "find-links" not in told, "a folder that the build does not see"
    assert not secrets["pip.conf"].exists()


def test_a_step_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(ImageFailed, match=r"exited 3\nout\nwhy\n"):
        run(["sh", "-c", "echo out; echo why >&2; exit 3"], say=_silent)


def test_archives_asked_for_last_are_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for number in range(9):
        (cache / f"product-{number}.tar").touch()
        os.utime(cache / f"product-{number}.tar", (number, number))
    images._forget_oldest(cache)

    assert sorted(path.name for path in cache.iterdir()) == [f"product-{number}.tar" for number in range(3, 9)]


def _key(
    context: Path, *, builder: str = "builder", name: str = "name", arguments: Mapping[str, str] | None = None
) -> str:
    images._stage(context, None)
    order = Order(context=context, dockerfile=context / "Dockerfile", name=name, arguments=arguments or {})
    return images._key(order, builder)


def _git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.test", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *who, *arguments], check=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "--all", "--force")
    _git(folder, "commit", "--quiet", "--message", "test")


def _silent(line: str) -> None:
    del line
