"""A small installation on the node: two restricted pods of the echo image, a Service, an Ingress, an HTTPRoute."""

import http.client
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from cluster.node import NodeCluster

Json = dict[str, Any]

IMAGE = "localhost/echo:1"
NAMESPACE = "echo"
INGRESS_HOST, ROUTE_HOST = "echo-ingress.test", "echo-route.test"

_RESTRICTED = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True)
class Echo:
    """The installation."""

    cluster: NodeCluster

    def kubectl(self, *args: str, timeout: float = 60.0) -> str:
        """kubectl in its namespace."""
        return self.cluster.kubectl("--namespace", NAMESPACE, *args, timeout=timeout)

    def pods(self) -> dict[str, tuple[str, int]]:
        """The running pods by name: their uid and how often they were restarted."""
        found = json.loads(self.kubectl("get", "pods", "--field-selector=status.phase=Running", "-o", "json"))
        return {
            pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for pod in found["items"]
            if "deletionTimestamp" not in pod["metadata"]
        }

    def roll_out(self) -> None:
        """Wait until both pods are available."""
        self.kubectl("rollout", "status", "deployment/echo", "--timeout=50s")

    def through(self, host: str, path: str = "/") -> str:
        """What the router gives for this host."""
        return get(f"{self.cluster.router}{path}", host=host)

    def asked(self, path: str) -> str:
        """What a pod says, asked by way of the Service's address."""
        address = self.kubectl("get", "service", "echo", "-o", "jsonpath={.spec.clusterIP}")
        return get(f"http://{address}:8080{path}")

    def fetched(self, url: str) -> str:
        """What a pod gets from this URL."""
        return self.asked(f"/fetch?url={quote(url, safe='')}")


def objects() -> list[Json]:
    """The manifests."""
    labels = {"app": "echo"}
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    container = {
        "name": "echo",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "ports": [{"containerPort": 8080}],
        "readinessProbe": probe,
        "securityContext": _RESTRICTED,
    }
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
    }
    backend = {"service": {"name": "echo", "port": {"number": 8080}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    return [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        },
        _named(
            "apps/v1",
            "Deployment",
            {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        ),
        _named("v1", "Service", {"selector": labels, "ports": [{"port": 8080}]}),
        _named("networking.k8s.io/v1", "Ingress", {"rules": [{"host": INGRESS_HOST, "http": {"paths": [path]}}]}),
        _named(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            {
                "parentRefs": [{"name": "router", "namespace": "router"}],
                "hostnames": [ROUTE_HOST],
                "rules": [{"backendRefs": [{"name": "echo", "port": 8080}]}],
            },
        ),
    ]


def get(url: str, *, host: str | None = None) -> str:
    """GET without any proxy; fails unless it is answered with 200."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=10)
    try:
        connection.request("GET", url.removeprefix(f"http://{address.netloc}"), headers={"Host": host} if host else {})
        answer = connection.getresponse()
        text = answer.read().decode().strip()
    finally:
        connection.close()
    assert answer.status == 200, f"{url}: {answer.status} {text}"
    return text


def arrivals(url: str, *, host: str) -> list[float]:
    """When each line of an event stream came, counted from the first."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=10)
    try:
        connection.request("GET", address.path, headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == 200
        times = [time.monotonic() for line in iter(answer.readline, b"") if line.startswith(b"data:")]
    finally:
        connection.close()
    return [at - times[0] for at in times]


def until(holds: Callable[[], Any], within: float = 30.0) -> Any:
    """What this gives once it is true; an AssertionError of its own counts as not yet."""
    deadline = time.monotonic() + within
    while True:
        try:
            if found := holds():
                return found
            why: object = "it is not so"
        except AssertionError as error:
            why = error
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {why}"
        time.sleep(0.1)


def _named(api: str, kind: str, spec: Json) -> Json:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "echo", "namespace": NAMESPACE}, "spec": spec}
