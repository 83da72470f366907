import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from image.container import Image, Runner

ROOT = Path(__file__).parents[2]
LARGEST_BYTES = 400_000_000


def test_it_is_smaller_than_400_megabytes(image: Image) -> None:
    layers = " + ".join(f"{size / 1e6:.0f}" for size in image.layers)
    print(f"\nimage: {layers} = {image.bytes / 1e6:.0f} MB uncompressed")

    assert image.bytes < LARGEST_BYTES


def test_it_says_what_it_is_and_lets_the_command_choose(image: Image) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = image.config["Labels"]

    assert image.config["User"] == "65532:65532"
    assert not image.config.get("Entrypoint")
    assert image.config["Cmd"] == ["kubeharness", "--help"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    assert labels["org.opencontainers.image.revision"]


@pytest.mark.parametrize(
    "name",
    [
        *("pip", "pip3", "ensurepip", "setuptools", "pkg_resources", "wheel", "hatchling", "uv", "uvx"),
        *("gcc", "cc", "c++", "make", "ld", "pytest", "hypothesis", "mypy", "ruff"),
    ],
)
def test_nothing_in_it_builds_installs_or_tests(image: Image, name: str) -> None:
    programs = [path for folder in _program_folders(image.root) for path in folder.glob(name)]
    packages = [
        path for folder in _module_folders(image.root) for path in (*folder.glob(name), *folder.glob(f"{name}-*"))
    ]
    wheels = [path for path in image.root.rglob(f"{name}-*.whl") if path.is_file()]

    assert [*programs, *packages, *wheels] == []


def test_no_package_lists_and_nothing_of_the_machine_that_built_it(image: Image) -> None:
    lists = image.root / "var/lib/apt/lists"

    assert not lists.exists() or not any(lists.iterdir())
    for left in ("etc/pip.conf", "run/secrets", "root/.config", "root/.cache", "build", "opt/product"):
        assert not (image.root / left).exists(), left
    assert not any((image.root / "tmp").iterdir())


def test_its_configuration_tells_nothing_of_the_machine_that_built_it(image: Image) -> None:
    assert {variable.split("=")[0] for variable in image.config["Env"]} == {
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
    }


def test_no_program_in_it_lifts_rights(image: Image) -> None:
    assert [path for path in _files(image.root) if path.stat().st_mode & 0o6000] == []


def test_the_user_may_write_nothing_of_ours(image: Image) -> None:
    ours = list(_files(image.root / "opt/kubeharness"))

    assert ours
    assert [path for path in ours if path.stat().st_uid != 0 or path.stat().st_mode & 0o022] == []


def test_every_module_has_bytecode_that_needs_no_look_at_its_source(image: Image) -> None:
    for packages in _package_folders(image.root / "opt/kubeharness"):
        for module in (*packages.glob("kubeharness*/**/*.py"), *packages.glob("kubernetes_asyncio/**/*.py")):
            [compiled] = (module.parent / "__pycache__").glob(f"{module.stem}.cpython-*.pyc")
            assert compiled.read_bytes()[4:8] == b"\1\0\0\0", compiled  # PEP 552: by hash, unchecked


def test_the_standard_library_has_bytecode_too(runner: Runner) -> None:
    script = "import asyncio, ssl, sys; print([m.__cached__ for m in (asyncio, ssl)], flush=True); sys.exit(7)"
    done = runner.run("python", "-c", script)

    assert done.returncode == 7, done.stderr
    for cached in json.loads(done.stdout.replace("'", '"')):
        assert (runner.image.root / cached.lstrip("/")).is_file(), cached


def test_what_is_shipped_is_this_tree(image: Image) -> None:
    [packages] = _package_folders(image.root / "opt/kubeharness")
    for source in ("gateway/kubeharness", "operator/kubeharness_operator"):
        expected, found = ROOT / source, packages / Path(source).name
        options = ("--recursive", "--brief", "--exclude=__pycache__")
        said = subprocess.run(["diff", *options, str(expected), str(found)], capture_output=True, text=True)
        assert said.stdout == ""


def _files(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _program_folders(root: Path) -> list[Path]:
    return [root / folder for folder in ("bin", "usr/bin", "usr/local/bin", "sbin", "opt/kubeharness/bin")]


def _module_folders(root: Path) -> list[Path]:
    """Where packages are, and the standard library, which has an ensurepip of its own."""
    return [*_package_folders(root), *root.glob("usr/lib/python3*"), *root.glob("usr/local/lib/python3*")]


def _package_folders(root: Path) -> list[Path]:
    return [path for kind in ("site-packages", "dist-packages") for path in root.rglob(kind) if path.is_dir()]
