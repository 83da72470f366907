"""The guide's commands as printed, on a cluster that a release has left: two roles, upgrade, rollback, uninstall."""

import json
import re
import secrets

import pytest

from cluster.node import NodeCluster
from cluster.own_node import OwnNode
from e2e_cluster.conftest import Shell
from e2e_cluster.release import NAME, NAMESPACE, ROOT, Release

pytestmark = pytest.mark.timeout(600)

GUIDE = ROOT / "docs" / "howto" / "install.md"
OWNER = "postgresql://owner:SECRET@db.example.test:5432/kubeharness"
APP = "postgresql://app:SECRET@db.example.test:5432/kubeharness"
IMAGE = "--set image.repository=registry.example.test/kubeharness"
LOADED = "--set image.repository=localhost/kubeharness --set image.tag=dev --set image.pullPolicy=Never"


def test_the_guides_commands_install_upgrade_roll_back_and_uninstall(
    release: Release, node: NodeCluster, shell: Shell
) -> None:
    assert f"namespace/{NAMESPACE}" not in release.cluster.kubectl("get", "namespaces", "-o", "name").split()
    assert isinstance(node, OwnNode), "this test makes a role in the cluster's Postgres"
    owner = node.create_database()
    role, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    node.database.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
    app = re.sub(r"//[^@]+@", f"//{role}:{password}@", owner)
    given = {OWNER: owner, APP: app, IMAGE: LOADED, "database.appRole=app": f"database.appRole={role}"}

    printed = ""
    for block in re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        for text, value in given.items():
            block = block.replace(text, value)
        if "helm uninstall" in block:
            history = json.loads(release.helm("history", NAME, "--namespace", NAMESPACE, "-o", "json"))
            assert [one["description"] for one in history] == ["Install complete", "Upgrade complete", "Rollback to 1"]
            release.whole()
            release.verify()
        printed += shell.run(block)

    assert "Succeeded" in printed  # helm test
    assert '"ok"' in printed  # healthz, through the port
    assert all(pod.leaving for pod in release.pods("gateway"))
    kept = release.kubectl("get", "secrets", "-o", "name").split()
    assert {f"secret/{NAME}-tokens", f"secret/{NAME}-database"} <= set(kept)
    release.cluster.kubectl("delete", "namespace", NAMESPACE, timeout=90)
