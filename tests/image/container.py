"""The image as a file system and its configuration, and containers of it with a read-only root, run by runc.

Nothing of a cluster: the archive's layers are unpacked, and runc runs a process as the image's user, without rights
and on the host's network, so that it reaches what the test listens with on loopback.
"""

import json
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import CommandMissing

Json = dict[str, Any]
UNPACK_SECONDS = 120.0
END_SECONDS = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an archive holds."""

    root: Path
    """Its file system, unpacked."""
    config: Json
    """As the OCI specification names it: User, Env, Cmd, Labels …"""
    layers: tuple[int, ...]
    """The bytes in the files of each layer, uncompressed."""

    @property
    def bytes(self) -> int:
        """The size of the whole image."""
        return sum(self.layers)


def unpack(archive: Path, folder: Path) -> Image:
    """Unpack an OCI layout in a tar file; `folder` must not exist. Keeps owners and rights, so it needs root."""
    layout, root = folder / "layout", folder / "root"
    root.mkdir(parents=True)
    layout.mkdir()
    _tar("--extract", "--file", str(archive), "--directory", str(layout))
    manifest = _blob(layout, json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])
    sizes = []
    for layer in manifest["layers"]:
        blob = layout / "blobs" / layer["digest"].replace(":", "/")
        with tarfile.open(blob) as members:
            files = list(members)
        assert not [file.name for file in files if Path(file.name).name.startswith(".wh.")], "a layer takes files away"
        sizes.append(sum(file.size for file in files if file.isreg()))
        _tar("--extract", "--preserve-permissions", "--numeric-owner", "--file", str(blob), "--directory", str(root))
    config = _blob(layout, manifest["config"]["digest"])["config"]
    shutil.rmtree(layout)
    return Image(root=root, config=config, layers=tuple(sizes))


def _blob(layout: Path, digest: str) -> Json:
    content: Json = json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    return content


def _tar(*arguments: str) -> None:
    subprocess.run(["tar", *arguments], check=True, timeout=UNPACK_SECONDS)


class Runner:
    """Makes containers of an image; their bundles and logs lie in a folder of the test's."""

    def __init__(self, image: Image, folder: Path) -> None:
        if shutil.which("runc") is None:
            raise CommandMissing("runc", "tests/apt-packages.sh cluster")
        self.image = image
        self._folder = folder
        self._count = 0

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        bundle = self._bundle(command, env or {}, {})
        return subprocess.run(
            [*self._runc(), "run", "--bundle", bundle, bundle.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=END_SECONDS,
        )

    @contextmanager
    def running(
        self, *command: str, env: Mapping[str, str], files: Mapping[str, Path] | None = None
    ) -> Iterator["Container"]:
        """Start a command, with these files of the host mounted; it is ended with the block."""
        bundle = self._bundle(command, env, files or {})
        log = bundle / "log"
        with log.open("wb") as output:
            began = time.monotonic()
            process = subprocess.Popen(
                [*self._runc(), "run", "--bundle", bundle, bundle.name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        container = Container(process, log, began)
        try:
            yield container
        finally:
            container.end()
            if process.poll() is None:
                subprocess.run([*self._runc(), "delete", "--force", bundle.name], check=True, timeout=END_SECONDS)
                process.wait(END_SECONDS)
            print(container.said())  # pytest shows it if the test failed

    def _runc(self) -> list[str | Path]:
        return ["runc", "--root", self._folder / "runc"]

    def _bundle(self, command: Sequence[str], env: Mapping[str, str], files: Mapping[str, Path]) -> Path:
        self._count += 1
        bundle = self._folder / f"kubeharness-image-{self._folder.name}-{self._count}"
        bundle.mkdir(parents=True)
        environment = [*self.image.config["Env"], *(f"{name}={value}" for name, value in env.items())]
        user, group = (int(part) for part in self.image.config["User"].split(":"))
        specification = {
            "ociVersion": "1.0.2",
            "process": {
                "args": list(command),
                "cwd": self.image.config["WorkingDir"],
                "env": environment,
                "user": {"uid": user, "gid": group},
                "capabilities": {},
                "noNewPrivileges": True,
            },
            "root": {"path": str(self.image.root), "readonly": True},
            "mounts": [*_KERNEL_MOUNTS, *(_bind(path, file) for path, file in files.items())],
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
        }
        (bundle / "config.json").write_text(json.dumps(specification, indent=1))
        return bundle


_KERNEL_MOUNTS: list[Json] = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=1m"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    {
        "destination": "/tmp",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", "mode=1777", "size=64m"],
    },
]
"""As a pod has them; /tmp is the chart's emptyDir."""


def _bind(destination: str, file: Path) -> Json:
    return {"destination": destination, "type": "bind", "source": str(file), "options": ["bind", "ro"]}


class Container:
    """A process in a container."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, began: float) -> None:
        self._process = process
        self._log = log
        self._began = began

    def said(self) -> str:
        """Its output so far."""
        return self._log.read_text(errors="replace")

    def seconds_to_ready(self, port: int, within: float) -> float:
        """How long it took from the start of the container until /readyz said yes."""
        answer = "nothing yet"
        while time.monotonic() < self._began + within:
            assert self._process.poll() is None, f"ended with {self._process.returncode}:\n{self.said()}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                    return time.monotonic() - self._began
            except urllib.error.HTTPError as error:
                with error:
                    answer = f"{error.code} {error.read().decode()}"
            except OSError as error:
                answer = str(error)
            time.sleep(0.02)
        raise AssertionError(f"not ready after {within:.0f} s; /readyz: {answer}\n{self.said()}")

    def end(self) -> int | None:
        """Send SIGTERM and return the exit status; None if that was not enough."""
        if self._process.poll() is None:
            self._process.terminate()  # runc passes it on
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return None
