"""What is said of an image before anything is built: its context, its key, its way to the registries."""

import configparser
import os
import stat
from pathlib import Path

import pytest

from cluster import images
from cluster.errors import ImageFailed
from cluster.images_registries import registry_secrets
from cluster.images_steps import Order, run

ROOT = Path(__file__).parents[2]


def test_only_what_dockerignore_lets_in_is_staged(tmp_path: Path) -> None:
    images._stage(tmp_path / "context", None)

    staged = {path.relative_to(tmp_path / "context").parts[0] for path in (tmp_path / "context").rglob("*")}
    assert staged == {".dockerignore", "LICENSE", "README.md", "gateway", "operator", "pyproject.toml"}
    assert (tmp_path / "context/gateway/kubeharness/__init__.py").is_file()
    assert not list((tmp_path / "context").rglob("__pycache__"))


def test_the_key_is_of_the_content_and_of_nothing_else(tmp_path: Path) -> None:
    first, second = _order(tmp_path / "a"), _order(tmp_path / "b")
    key = images._key(first, "builder")

    assert images._key(second, "builder") == key
    assert images._key(second, "another") != key
    module = tmp_path / "b/gateway/kubeharness/__init__.py"
    module.write_text(module.read_text() + "\n")
    assert images._key(second, "builder") != key


def test_a_file_that_moves_makes_another_key(tmp_path: Path) -> None:
    first, second = _order(tmp_path / "a"), _order(tmp_path / "b")
    key = images._key(first, "builder")
    (tmp_path / "b/LICENSE").rename(tmp_path / "b/LICENCE")

    assert images._key(second, "builder") != key


def test_a_commit_is_built_from_its_own_files(tmp_path: Path) -> None:
    images._stage(tmp_path / "context", images._commit_id("HEAD"))
    shown = run(["git", "-C", ROOT, "show", "HEAD:gateway/Dockerfile"], say=_silent)

    assert (tmp_path / "context/gateway/Dockerfile").read_text() == shown
    assert images.image_name("HEAD") == f"localhost/kubeharness:{images._commit_id('HEAD')[:12]}"


def test_a_name_that_is_no_commit_is_said() -> None:
    with pytest.raises(ImageFailed, match="'no-such-commit' is no commit"):
        images.image_name("no-such-commit")


def test_two_layers_of_one_file_have_one_time(tmp_path: Path) -> None:
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
    for number in range(9):
        (tmp_path / f"product-{number}.tar").touch()
        os.utime(tmp_path / f"product-{number}.tar", (number, number))
    images._forget_oldest(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [f"product-{number}.tar" for number in range(3, 9)]


def _order(context: Path) -> Order:
    images._stage(context, None)
    return Order(context=context, dockerfile=context / "gateway/Dockerfile", name="n", arguments={})


def _silent(line: str) -> None:
    del line
