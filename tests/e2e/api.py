"""The Kubernetes API as its administrator, without a process a call: fast enough to be sampled fifty times a second."""

import base64
import json
import ssl
from pathlib import Path
from typing import Any, cast

import httpx2

from cluster.access import Cluster

Json = dict[str, Any]

SECONDS = 15.0
OURS = "/apis/kubeharness.dev/v1alpha1"
CORE = "/api/v1"
PLACES = {
    "Agent": (OURS, "agents"),
    "ModelProvider": (OURS, "modelproviders"),
    "ToolServer": (OURS, "toolservers"),
    "Secret": (CORE, "secrets"),
    "ConfigMap": (CORE, "configmaps"),
    "Event": (CORE, "events"),
}


class Api:
    """Reads and writes objects of one cluster. Safe to use from many threads."""

    def __init__(self, cluster: Cluster) -> None:
        config = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        user = config["users"][0]["user"]
        context = ssl.create_default_context(cadata=cluster.ca.decode() or None)
        if "client-certificate-data" in user:
            context.load_cert_chain(_written(cluster.folder / "e2e.pem", user))
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        self._client = httpx2.Client(
            base_url=cluster.server, verify=context, headers=headers, timeout=SECONDS, trust_env=False
        )

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def apply(self, namespace: str, document: Json) -> Json:
        """Apply server-side, as `kubectl apply --server-side` does."""
        path = _path(document["kind"], namespace, document["metadata"]["name"])
        content = json.dumps(document)  # which is YAML
        answer = self._client.patch(
            path,
            params={"fieldManager": "kubectl", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            content=content,
        )
        return _sound(answer)

    def patch(self, namespace: str, kind: str, name: str, change: Json) -> Json:
        """Merge a change into an object: null takes a field out."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _sound(
            self._client.patch(_path(kind, namespace, name), headers=headers, content=json.dumps(change)),
        )

    def get(self, namespace: str, kind: str, name: str) -> Json:
        """An object as it is now."""
        return _sound(self._client.get(_path(kind, namespace, name)))

    def find(self, namespace: str, kind: str, name: str) -> Json | None:
        """The same, or None if there is none."""
        answer = self._client.get(_path(kind, namespace, name))
        return None if answer.status_code == 404 else _sound(answer)

    def columns(self, namespace: str, kind: str) -> list[dict[str, Any]]:
        """What `kubectl get` prints of all objects of a kind, by column: a small answer, from the server's cache."""
        accept = "application/json;as=Table;g=meta.k8s.io;v=v1"
        query = {"includeObject": "None", "resourceVersion": "0"}
        table = _sound(self._client.get(_path(kind, namespace), params=query, headers={"Accept": accept}))
        names = [column["name"].upper() for column in table["columnDefinitions"]]
        return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"] or ()]

    def delete(self, namespace: str, kind: str, name: str) -> None:
        """Ask for the deletion of an object."""
        _sound(self._client.delete(_path(kind, namespace, name)))

    def namespaces(self) -> list[str]:
        """Every namespace that there is, those in deletion too."""
        items = _sound(self._client.get(f"{CORE}/namespaces"))["items"]
        return [item["metadata"]["name"] for item in items]


def _path(kind: str, namespace: str, name: str | None = None) -> str:
    root, plural = PLACES[kind]
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def _sound(answer: httpx2.Response) -> Json:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    return cast("Json", answer.json())


def _written(path: Path, user: Json) -> Path:
    path.touch(mode=0o600)
    parts = (base64.b64decode(user[name]) for name in ("client-certificate-data", "client-key-data"))
    path.write_bytes(b"\n".join(parts))
    return path
