"""An operator over a database that it cannot use: up, alive, unready, saying why in log and Event, well by itself."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE, install_accounts
from kubeharness.store.migrate import BUILD, migrate
from kubeoperator.running import ROOT, OperatorProcess, operator_process

pytestmark = pytest.mark.timeout(180)

CANARY = "CANARY123"


@pytest.fixture(scope="module")
def kubeconfig(control_plane: Cluster) -> Path:
    install_accounts(control_plane)
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
    return control_plane.service_account_kubeconfig(SYSTEM_NAMESPACE, OPERATOR)


async def reaches(process: OperatorProcess, status: int, says: str, seconds: float = 60.0) -> None:
    """Readiness gets there, and liveness stays."""
    async with asyncio.timeout(seconds):
        while True:
            assert process.alive(), process.log()
            found = await asyncio.to_thread(process.get, "/readyz")
            if found[0] == status and says in found[1]:
                break
            await asyncio.sleep(0.1)
    assert process.get("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("dsn", "says"),
    [
        ("postgresql://u:CANARY123@no-such-host.invalid/d", "the host of the DSN is not known to DNS"),
        ("postgresql://u:CANARY123@host:port/d", "the DSN cannot be read"),
        ("sqlite:///CANARY123", "the DSN cannot be read"),
    ],
)
async def test_a_dsn_that_leads_nowhere_is_said_and_shown_to_nobody(
    kubeconfig: Path, tmp_path: Path, namespace: str, dsn: str, says: str
) -> None:
    async with operator_process(
        kubeconfig, dsn, folder=tmp_path, namespaces=(namespace,), ready=False, more={"KUBEHARNESS_LOG_LEVEL": "debug"}
    ) as process:
        await reaches(process, 503, f"the database cannot be used: {says}")
        await asyncio.sleep(3)

        assert process.alive()
        assert process.log().count(f"WARNING kubeharness_operator.reconcile: the database cannot be used: {says}") == 1
        assert CANARY not in process.log() + process.get("/readyz")[1] + process.get("/metrics")[1]
        assert "Traceback" not in process.log()


async def test_schemas_that_are_not_ours_are_waited_out(
    kubeconfig: Path, tmp_path: Path, namespace: str, empty_postgres_url: str
) -> None:
    async with operator_process(
        kubeconfig, empty_postgres_url, folder=tmp_path, namespaces=(namespace,), ready=False
    ) as process:
        await reaches(process, 503, f"schema is 0 and this build needs {BUILD}; run `kubeharness migrate`")
        await migrate(empty_postgres_url)
        await reaches(process, 200, "ok")

        connection = await asyncpg.connect(empty_postgres_url)
        await connection.execute("INSERT INTO schema_version VALUES ($1, $1, 0)", BUILD + 1)
        await reaches(process, 503, f"needs build {BUILD + 1} or later")
        await connection.execute("DELETE FROM schema_version WHERE version > $1", BUILD)
        await reaches(process, 200, "ok")
        await connection.close()


async def test_its_own_pod_has_an_event_with_the_reason_and_one_when_it_is_over(
    control_plane: Cluster, kubeconfig: Path, tmp_path: Path, empty_postgres_url: str
) -> None:
    name, uid = "kubeharness-operator-0", "11111111-2222-3333-4444-555555555555"
    pod = {"NAME": name, "NAMESPACE": SYSTEM_NAMESPACE, "UID": uid}

    async def event(fits: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(40):
            while True:
                text = await asyncio.to_thread(
                    control_plane.kubectl,
                    *("get", "events", "-n", SYSTEM_NAMESPACE, "-o", "json"),
                    f"--field-selector=involvedObject.uid={uid},involvedObject.kind=Pod",  # as `kubectl describe` does
                )
                for found in json.loads(text)["items"]:
                    if fits(found):
                        return found
                await asyncio.sleep(0.3)

    async with operator_process(
        kubeconfig,
        empty_postgres_url,
        folder=tmp_path,
        ready=False,
        more={f"KUBEHARNESS_POD_{key}": value for key, value in pod.items()},
    ) as process:
        warning = await event(
            lambda found: found["type"] == "Warning" and "run `kubeharness migrate`" in found["message"]
        )
        await migrate(empty_postgres_url)
        await reaches(process, 200, "ok")
        normal = await event(lambda found: found["type"] == "Normal")

    assert (warning["reason"], normal["reason"]) == ("NotReady", "Ready")
    assert warning["involvedObject"]["name"] == name
