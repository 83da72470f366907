"""CRDs that are missing, older, looser, or removed while the operator runs: on a control plane of these tests' own."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE, install_accounts
from cluster.control_plane import ControlPlane
from kubeoperator.running import ROOT, OperatorProcess, Room, agent, fleet_of, operator_process, provider, says

pytestmark = pytest.mark.timeout(180)

Json = dict[str, Any]


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """An API server that has never heard of us."""
    with ControlPlane() as cluster:
        install_accounts(cluster)
        cluster.kubectl("create", "namespace", "team")
        yield cluster


@pytest.fixture
def room(own_cluster: Cluster) -> Room:
    return Room(own_cluster, "team")


def crds() -> list[Json]:
    return [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


def older(crd: Json) -> Json:
    """Without fields that came later, of the status and of the spec."""
    crd = copy.deepcopy(crd)
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for name in ("tools", "desiredRevision"):
        properties["status"]["properties"].pop(name, None)
    if crd["spec"]["names"]["kind"] == "Agent":
        del properties["spec"]["properties"]["model"]["properties"]["topP"]
    return crd


def looser(crd: Json) -> Json:
    """Whose spec is anything: no schema, no rules."""
    crd = copy.deepcopy(crd)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("x-kubernetes-validations", None)
    schema.pop("required", None)
    schema["properties"]["spec"] = {
        "type": "object",
        "nullable": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return crd


async def install(cluster: Cluster, documents: list[Json]) -> None:
    def apply() -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)
        names = [f"crd/{document['metadata']['name']}" for document in documents]
        cluster.kubectl("wait", "--for=condition=Established", *names, "--timeout=20s")

    await asyncio.to_thread(apply)


@asynccontextmanager
async def operator(cluster: Cluster, url: str, folder: Path, *, ready: bool = True) -> AsyncIterator[OperatorProcess]:
    kubeconfig = await asyncio.to_thread(cluster.service_account_kubeconfig, SYSTEM_NAMESPACE, OPERATOR)
    async with operator_process(kubeconfig, url, folder=folder, ready=ready) as process:  # all namespaces
        yield process


async def test_it_waits_for_its_crds_and_survives_their_removal(
    own_cluster: Cluster, room: Room, postgres_url: str, tmp_path: Path
) -> None:
    async with operator(own_cluster, postgres_url, tmp_path, ready=False) as process, fleet_of(postgres_url) as fleet:
        await says(process, 503, "none of the CRDs")
        assert process.get("/healthz")[0] == 200

        documents = crds()
        await install(own_cluster, documents[:2])
        await says(process, 503, documents[2]["metadata"]["name"])
        await install(own_cluster, documents)
        await says(process, 200, "ok")
        await room.apply(agent(), provider())
        await room.reaches("agent", "demo", "Ready", "True")

        await room.kubectl("delete", "crd", documents[0]["metadata"]["name"], "--timeout=20s")
        await says(process, 503, documents[0]["metadata"]["name"])
        assert process.alive()
        await install(own_cluster, documents)
        await says(process, 200, "ok", seconds=30)
        await room.apply(agent("later"))
        await room.reaches("agent", "later", "Ready", "True", seconds=30)
        async with asyncio.timeout(40):  # the sweep retires what the removal took along
            while any(head.name == "demo" and not head.retired for head in await fleet.publisher.heads(after=0)):
                await asyncio.sleep(0.5)

        assert process.alive()


async def test_an_older_crd_is_named_written_as_far_as_it_goes_and_well_once_it_is_upgraded_c50(
    own_cluster: Cluster, room: Room, postgres_url: str, tmp_path: Path
) -> None:
    await install(own_cluster, [older(crd) for crd in crds()])
    said = "CRD agents.kubeharness.dev lacks spec.model.topP, status.desiredRevision, status.tools: older"
    async with operator(own_cluster, postgres_url, tmp_path, ready=False) as process, fleet_of(postgres_url):
        await says(process, 503, said)
        await room.apply(agent(tools=[{"name": "clock", "builtin": {"name": "clock"}}]), provider())
        await room.reaches("agent", "demo", "Ready", "True")
        status = (await room.get("agent", "demo"))["status"]

        assert "tools" not in status
        assert status["activeRevision"]
        assert process.get("/healthz")[0] == 200
        assert process.log().count(said) == 2  # the reports' word, and readiness'
        assert "upgrade the CRDs (chart kubeharness-crds)" in process.log()

        await install(own_cluster, crds())
        await says(process, 200, "ok", seconds=20)
        async with asyncio.timeout(20):
            while "tools" not in (await room.get("agent", "demo"))["status"]:
                await asyncio.sleep(0.1)


async def test_specs_that_a_looser_crd_let_in_stop_nobody_c48(
    own_cluster: Cluster, room: Room, postgres_url: str, tmp_path: Path
) -> None:
    await install(own_cluster, [looser(crd) for crd in crds()])
    good = agent()
    bad: dict[str, Any] = {
        "empty": {},
        "null": None,
        "slashes": {**good["spec"], "model": {**good["spec"]["model"], "providerRef": {"name": "a/b/../../c"}}},
        "negative": {**good["spec"], "model": {**good["spec"]["model"], "contextWindow": -1}},
        "text": {**good["spec"], "model": {**good["spec"]["model"], "contextWindow": "big"}},
        "twice": {**good["spec"], "tools": 2 * [{"name": "clock", "builtin": {"name": "clock"}}]},
        "long": {**good["spec"], "systemPrompt": 1_400_000 * "x"},
        "list": {**good["spec"], "tools": {"a": 1}},
    }
    async with fleet_of(postgres_url) as fleet:
        async with operator(own_cluster, postgres_url, tmp_path) as process:
            await room.apply(
                good, provider(), *({**good, "metadata": {"name": name}, "spec": spec} for name, spec in bad.items())
            )
            for name in bad:
                said = await room.reaches("agent", name, "Ready", "False")
                assert said["message"]
            await room.reaches("agent", "demo", "Ready", "True")
            assert process.alive()
        async with operator(own_cluster, postgres_url, tmp_path) as process:
            await room.apply(agent("later"))
            await room.reaches("agent", "later", "Ready", "True")
            heads = {head.name: head for head in await fleet.publisher.heads(after=0)}

            assert process.alive()
            assert "Traceback" not in process.log()
            assert {heads[name].active for name in bad} == {None}
            assert all(heads[name].note for name in bad)
