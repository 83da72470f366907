"""Builds with the Docker engine that answers, as a user does."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from cluster.images_steps import Order, Say, run

_BUILDKIT = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""Older engines ask for BuildKit by name; an attestation beside the image is what `kind load` stumbles over."""


def answers() -> bool:
    """Whether there is a Docker command and an engine behind it."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def build(order: Order, secrets: Mapping[str, Path], archive: Path, *, cache: Path, say: Say) -> None:
    """Build on the Dockerfile's own base; the image is in the engine, too."""
    del cache  # the engine has its own
    options = [f"--build-arg={name}={value}" for name, value in order.arguments.items()]
    options += [f"--secret=id={name},src={path}" for name, path in secrets.items()]
    command: list[str | Path] = [
        "docker",
        "build",
        "--file",
        order.dockerfile,
        "--tag",
        order.name,
        *options,
        order.context,
    ]
    run(command, say=say, env=_BUILDKIT)
    partial = archive.with_suffix(".partial")
    run(["docker", "save", "--output", partial, order.name], say=say)
    partial.rename(archive)
