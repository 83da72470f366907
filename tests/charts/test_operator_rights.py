"""The operator runs with the chart's rights and no others: in one namespace, and in all of them."""

from pathlib import Path

import pytest

from charts.installing import installed
from charts.rendering import ROOT
from cluster.access import Cluster
from kubeoperator.running import Room, agent, fleet_of, operator_process, provider

pytestmark = pytest.mark.timeout(180)  # the first test waits for a control plane


@pytest.mark.parametrize("mode", ["namespaced", "cluster"])
async def test_an_agent_becomes_ready_and_events_tell_of_it(
    control_plane: Cluster, postgres_url: str, tmp_path: Path, mode: str
) -> None:
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
    with installed(control_plane, {}, namespaced=mode == "namespaced") as release:
        served = release.places["SERVED"]
        config = control_plane.service_account_kubeconfig(release.places["RELEASE"], f"{release.name}-operator")
        room = Room(control_plane, served)
        namespaces = (served,) if mode == "namespaced" else ()
        async with (
            fleet_of(postgres_url),
            operator_process(config, postgres_url, folder=tmp_path, namespaces=namespaces) as operator,
        ):
            await room.apply(agent(), provider())
            await room.reaches("agent", "demo", "Ready", "True")
            told = await room.kubectl("get", "events", "-o", "jsonpath={.items[*].involvedObject.name}")

            assert "demo" in told.split()
            assert "forbidden" not in operator.log().lower()
