"""A release's life as Helm lives it on a real API server: what an upgrade, a rollback and an uninstall leave alone.

No pod runs here; what running pods see of it is the node tier's.
"""

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from charts.rendering import CHART, CRDS, HelmRefused, helm
from cluster.access import Cluster

pytestmark = pytest.mark.timeout(180)  # the first test waits for a control plane

TOKEN = base64.b64encode(b"filled-by-the-job").decode()
CLUSTER_WIDE = "clusterroles,clusterrolebindings"


@dataclass(frozen=True, slots=True)
class Release:
    """A release named after its namespace, so that nothing of it meets another test's."""

    cluster: Cluster
    namespace: str

    def helm(self, verb: str, *options: str) -> None:
        """Run helm on it."""
        config = ("--kubeconfig", str(self.cluster.kubeconfig), "--namespace", self.namespace)
        helm(verb, self.namespace, *options, *config)

    def names(self, kinds: str) -> set[str]:
        """The objects of these kinds that bear its name as their instance."""
        selector = f"app.kubernetes.io/instance={self.namespace}"
        return set(self._get(kinds, "-l", selector).split())

    def token(self) -> str:
        """What the token Secret holds."""
        secret = f"{self.namespace}-tokens"
        return self.cluster.kubectl("get", "secret", secret, "-n", self.namespace, "-o", "jsonpath={.data.token}")

    def fill(self) -> None:
        """Do what `kubeharness token ensure` does."""
        patch = f'{{"data": {{"token": "{TOKEN}"}}}}'
        self.cluster.kubectl("patch", "secret", f"{self.namespace}-tokens", "-n", self.namespace, "-p", patch)

    def _get(self, kinds: str, *options: str) -> str:
        return self.cluster.kubectl("get", kinds, "-n", self.namespace, "-o", "name", *options)


@pytest.fixture
def release(control_plane: Cluster, namespace: str) -> Iterator[Release]:
    """Installed, with the token filled in. What lies outside of the namespace goes at the end."""
    made = Release(control_plane, namespace)
    made.helm("install", str(CHART), "--set", f"fullnameOverride={namespace}")
    made.fill()
    yield made
    with contextlib.suppress(HelmRefused):  # the test did it
        made.helm("uninstall")


def test_an_upgrade_replaces_the_job_and_leaves_the_token(release: Release) -> None:
    [first] = release.names("jobs")
    release.helm("upgrade", str(CHART), "--reset-then-reuse-values", "--set", "image.tag=next")
    [second] = release.names("jobs")
    release.helm("upgrade", str(CHART), "--reset-then-reuse-values", "--set", "worker.slots=7")

    assert first != second
    assert release.names("jobs") == {second}
    assert release.token() == TOKEN


def test_a_rollback_brings_the_older_job_back_and_leaves_the_token(release: Release) -> None:
    before = release.names("jobs")
    release.helm("upgrade", str(CHART), "--reset-then-reuse-values", "--set", "image.tag=next")
    release.helm("rollback", "1")

    assert release.names("jobs") == before
    assert release.token() == TOKEN


def test_an_uninstall_leaves_the_token_and_the_next_install_finds_it(release: Release) -> None:
    release.helm("uninstall", "--wait", "--timeout", "60s")

    assert release.names("all,networkpolicies,poddisruptionbudgets,serviceaccounts,roles,rolebindings") == set()
    assert release.names(CLUSTER_WIDE) == set()
    assert release.names("secrets") == {f"secret/{release.namespace}-tokens"}

    release.helm("install", str(CHART), "--set", f"fullnameOverride={release.namespace}")

    assert release.token() == TOKEN


def test_the_crds_and_their_objects_outlive_their_chart(control_plane: Cluster, namespace: str) -> None:
    crds = Release(control_plane, namespace)
    crds.helm("install", str(CRDS), "--take-ownership")  # other tests of the session applied them without Helm
    control_plane.kubectl("wait", "--for=condition=Established", "crd/modelproviders.kubeharness.dev", "--timeout=30s")
    control_plane.apply(
        {
            "apiVersion": "kubeharness.dev/v1alpha1",
            "kind": "ModelProvider",
            "metadata": {"name": "stays"},
            "spec": {"type": "Scripted", "scripted": {"rules": []}},
        },
        namespace=namespace,
    )
    crds.helm("uninstall", "--wait", "--timeout", "60s")
    found = control_plane.kubectl("get", "khm", "stays", "-n", namespace, "-o", "name")

    assert found.strip() == "modelprovider.kubeharness.dev/stays"
