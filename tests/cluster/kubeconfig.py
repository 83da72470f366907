"""Kubeconfig files, written as JSON (which is YAML) with everything inline, so that one file is enough."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path

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
