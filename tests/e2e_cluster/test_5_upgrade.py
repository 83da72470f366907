"""From the release before to this one and back, under load; then all of it goes, and the CRDs stay."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from cluster import images
from cluster.node import NodeCluster
from e2e_cluster.callers import Load, Reader
from e2e_cluster.conftest import Figures
from e2e_cluster.release import NAME, NAMESPACE, ROOT, Release, until
from e2e_cluster.test_2_life import sound

pytestmark = pytest.mark.timeout(1200)

PREVIOUS = (ROOT / "tests" / "cluster" / "previous").read_text().split()[0]
LEAVE_SECONDS = 60.0


@pytest.fixture(scope="module")
def previous(node: NodeCluster, installed: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The charts of the release before; its image is on the node."""
    folder = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", PREVIOUS, "charts"], capture_output=True, check=True, timeout=60
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True, timeout=60)
    with node.outside():
        image = images.product_image(commit=PREVIOUS)
    node.import_image(image)
    return folder / "charts"


def test_an_upgrade_and_a_rollback_under_load_lose_nothing(
    installed: Release, previous: Path, figures: Figures
) -> None:
    uninstall(installed)
    options = ("--set", f"image.tag={PREVIOUS[:12]}")
    installed.fresh_database()
    installed.helm("upgrade", "kubeharness-crds", str(previous / "kubeharness-crds"), "--namespace", NAMESPACE)
    installed.release("install", previous, *options)
    installed.whole()
    installed.reaches("Ready", "True")
    old = schema(installed)
    door = installed.door()
    load = Load(door)
    with load.running():
        until(lambda: len(load.sent) > 10, load.said)
        with Reader(door, load.instances()[0]) as reader:
            up = installed.upgrade()
            installed.whole()
            new = schema(installed)
            sent = len(load.sent)
            until(lambda: len(load.sent) > sent + 20, load.said)
            down = installed.rollback()
            installed.whole()
            assert schema(installed) == new, "a rollback leaves the schema"
            sent = len(load.sent)
            until(lambda: len(load.sent) > sent + 20, load.said)
            installed.upgrade()
            installed.whole()
    figures.say(f"upgrade {up:.0f} s (schema {old} to {new}), rollback {down:.0f} s, under load: {load.said()}")
    assert new > old, "no migration was part of this upgrade"
    sound(load, door, [reader])
    installed.verify()


def schema(release: Release) -> int:
    """The schema that the database is at."""
    return int(release.sql("SELECT max(version) FROM schema_version"))


def test_uninstall_and_the_namespace_go_within_a_minute_and_crds_stay(installed: Release, figures: Figures) -> None:
    began = time.monotonic()
    uninstall(installed)
    installed.cluster.kubectl("delete", "namespace", NAMESPACE, timeout=LEAVE_SECONDS + 30)
    took = time.monotonic() - began
    figures.say(f"uninstall and namespace gone after {took:.1f} s")
    assert took < LEAVE_SECONDS
    crds = json.loads(installed.cluster.kubectl("get", "crds", "-o", "json"))["items"]
    assert {"agents.kubeharness.dev", "modelproviders.kubeharness.dev", "toolservers.kubeharness.dev"} <= {
        crd["metadata"]["name"] for crd in crds
    }
    assert "assistant" in installed.kubectl("get", "kha", "-o", "name", namespace="default")


def uninstall(release: Release) -> None:
    """The release; its CRDs' chart stays."""
    release.helm("uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", "60s")
