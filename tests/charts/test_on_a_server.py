"""Every object of every profile before a real API server, in a namespace that enforces the restricted level."""

import json
import secrets
from collections.abc import Iterator

import pytest

from charts.rendering import NAMES, Document, Rendered, render
from cluster import binaries
from cluster.access import Cluster
from cluster.errors import KubectlFailed

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


@pytest.fixture(scope="module")
def restricted(control_plane: Cluster) -> Iterator[str]:
    """A namespace that enforces the restricted level, and the kinds that the chart's doors need."""
    control_plane.kubectl("apply", "--server-side", "-f", str(binaries.gateway_api_crds()))
    name = f"charts-{secrets.token_hex(3)}"
    control_plane.kubectl("create", "namespace", name)
    control_plane.kubectl("label", "namespace", name, RESTRICTED)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


def rendered_there(profile: str, namespace: str) -> Rendered:
    """A profile as a release of that namespace, which it serves too if it serves any."""
    text = render(profile=profile, namespace=namespace).text
    return Rendered(text.replace("namespace: team-a", f"namespace: {namespace}").replace("team-b", namespace))


def dry_run(cluster: Cluster, *documents: Document, namespace: str) -> str:
    """What the server says to these objects without keeping them; its warnings are errors."""
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
    return cluster.kubectl(
        "create", "--dry-run=server", "--warnings-as-errors", "-f", "-", "-n", namespace, input=items
    )


@pytest.mark.parametrize("profile", NAMES)
def test_the_server_takes_each_object(control_plane: Cluster, restricted: str, profile: str) -> None:
    rendered = rendered_there(profile, restricted)
    answered = control_plane.kubectl(
        "apply",
        "--server-side",
        "--dry-run=server",
        "--warnings-as-errors",
        "-f",
        "-",
        input=json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered.objects}),
    )

    assert len(answered.splitlines()) == len(rendered.objects)


@pytest.mark.parametrize("profile", NAMES)
def test_each_pod_passes_the_restricted_level(control_plane: Cluster, restricted: str, profile: str) -> None:
    """As bare pods: for a Deployment the level only warns."""
    rendered = rendered_there(profile, restricted)
    control_plane.apply(*rendered.of("ServiceAccount"))
    pods = [
        {**pod, "metadata": {**pod["metadata"], "name": name.lower().replace("/", "-")}}
        for name, pod in rendered.pods().items()
    ]

    assert len(dry_run(control_plane, *pods, namespace=restricted).splitlines()) == len(pods)


def test_the_level_is_enforced_at_all(control_plane: Cluster, restricted: str) -> None:
    pod = render(profile="default", namespace=restricted).pods()["Pod/kubeharness-test"]
    del pod["spec"]["securityContext"]["seccompProfile"]

    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        dry_run(control_plane, pod, namespace=restricted)
