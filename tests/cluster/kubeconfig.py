"""Kubeconfig files, written as JSON (which is YAML) with everything inline, so that one file is enough."""

import base64
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.errors import NoCluster
from cluster.pki import KeyPair


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an API server answers, and whose signature proves that it is the one."""

    server: str
    ca: bytes


def with_certificate(path: Path, endpoint: Endpoint, pair: KeyPair) -> Path:
    """Write the kubeconfig of a client that shows this certificate."""
    credentials = {
        "client-certificate-data": _encoded(pair.certificate.read_bytes()),
        "client-key-data": _encoded(pair.key.read_bytes()),
    }
    return _write(path, endpoint, credentials, "default")


def with_token(path: Path, endpoint: Endpoint, *, token: str, namespace: str) -> Path:
    """Write the kubeconfig of a client that bears this token; `namespace` is where it looks by default."""
    return _write(path, endpoint, {"token": token}, namespace)


def read(path: Path | str) -> tuple[dict[str, Any], Endpoint]:
    """Read the one file that the current context of this one (or of a list of files) comes to, and where it leads.

    Raises NoCluster if kubectl cannot make sense of it.
    """
    command = [str(binaries.kubectl()), "config", "view", "--raw", "--flatten", "--minify", "-o", "json"]
    environment = os.environ | {"KUBECONFIG": str(path)}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise NoCluster(f"KUBECONFIG {str(path)!r} cannot be used: {done.stderr.strip()}")
    merged: dict[str, Any] = json.loads(done.stdout)
    cluster: dict[str, str] = merged["clusters"][0]["cluster"]
    ca = base64.b64decode(cluster.get("certificate-authority-data", ""))
    return merged, Endpoint(server=cluster["server"], ca=ca)


def _write(path: Path, endpoint: Endpoint, credentials: dict[str, str], namespace: str) -> Path:
    name = "kubeharness-test"
    cluster = {"server": endpoint.server}
    if endpoint.ca:  # a given cluster may be signed by an authority that the machine knows
        cluster["certificate-authority-data"] = _encoded(endpoint.ca)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
