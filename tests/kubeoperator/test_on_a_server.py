"""The operator as a process of its own ServiceAccount, on a real API server and a real Postgres."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE, install_accounts
from kubeoperator.running import (
    ROOT,
    OperatorProcess,
    Room,
    agent,
    fleet_of,
    operator_process,
    provider,
)

pytestmark = pytest.mark.timeout(180)  # the first test waits for a control plane


@pytest.fixture(scope="module")
def operator_kubeconfig(control_plane: Cluster) -> Path:
    """CRDs and accounts are there; the file bears the operator's own rights."""
    install_accounts(control_plane)
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
    return control_plane.service_account_kubeconfig(SYSTEM_NAMESPACE, OPERATOR)


@pytest.fixture
def room(control_plane: Cluster, namespace: str) -> Room:
    return Room(control_plane, namespace)


@pytest.fixture
def running(operator_kubeconfig: Path, postgres_url: str, room: Room, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operator_process(operator_kubeconfig, postgres_url, folder=tmp_path, namespaces=(room.namespace,)) as process:
        yield process


async def test_an_agent_is_ready_only_once_it_was_acknowledged(
    running: OperatorProcess, room: Room, postgres_url: str
) -> None:
    async with fleet_of(postgres_url) as fleet:
        fleet.acknowledging = False
        await room.apply(agent(), provider(secret="key"))
        accepted = await room.reaches("agent", "demo", "Accepted", "True")
        await room.reaches("agent", "demo", "ResolvedRefs", "True")
        programmed = await room.reaches("agent", "demo", "Programmed", "False")
        await asyncio.sleep(2)
        still = await room.condition("agent", "demo", "Ready")

        assert accepted["observedGeneration"] == 1
        assert programmed["reason"] == "AwaitingAcknowledgement"
        assert (still["status"], still["reason"]) == ("False", "AwaitingAcknowledgement")
        assert (await room.condition("agent", "demo", "Reconciling"))["status"] == "True"

        fleet.acknowledging = True
        await room.reaches("agent", "demo", "Ready", "True", seconds=5)
        status = (await room.get("agent", "demo"))["status"]

        assert await room.condition("agent", "demo", "Reconciling") == {}
        assert (await room.condition("agent", "demo", "Available"))["status"] == "True"
        assert status["desiredRevision"] == status["activeRevision"]
        print(await room.kubectl("get", "kha,khm", "-o", "yaml"))
