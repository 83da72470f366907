"""The operator as a process of its own ServiceAccount, on a real API server and a real Postgres."""

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE, install_accounts
from cluster.audit import Write
from cluster.processes import free_ports
from kubeoperator.proxies import Forwarder, api_proxy
from kubeoperator.running import (
    OPERATOR_USER,
    ROOT,
    Fleet,
    OperatorProcess,
    Room,
    agent,
    fleet_of,
    operator_process,
    patience,
    provider,
    says,
    tool_server,
)

pytestmark = pytest.mark.timeout(180)  # the first test waits for a control plane

NOBODY_THERE = "nothing listens at the host and port of the DSN"
TOOLS: dict[str, Any] = {"tools": [{"name": "files", "toolServer": {"ref": {"name": "files"}}}]}


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


class Stage:
    """What a test needs to start operators."""

    def __init__(self, kubeconfig: Path, url: str, room: Room, folder: Path) -> None:
        self.kubeconfig, self.url, self.room, self.folder = kubeconfig, url, room, folder

    @asynccontextmanager
    async def operator(
        self,
        *,
        kubeconfig: Path | None = None,
        url: str | None = None,
        ready: bool = True,
        installation: str = "test",
        more: Mapping[str, str] | None = None,
    ) -> AsyncIterator[OperatorProcess]:
        async with operator_process(
            kubeconfig or self.kubeconfig,
            url or self.url,
            folder=self.folder,
            namespaces=(self.room.namespace,),
            ready=ready,
            installation=installation,
            more=more,
        ) as process:
            yield process

    async def writes(self, since: datetime.datetime) -> list[Write]:
        """What the operator's account wrote, once the log had time to tell."""
        await asyncio.sleep(0.5)
        return await asyncio.to_thread(self.room.cluster.audit_writes, since, [OPERATOR_USER])


@pytest.fixture
def stage(operator_kubeconfig: Path, postgres_url: str, room: Room, tmp_path: Path) -> Stage:
    return Stage(operator_kubeconfig, postgres_url, room, tmp_path)


@pytest.fixture
async def fleet(postgres_url: str) -> AsyncIterator[Fleet]:
    async with fleet_of(postgres_url) as fleet:
        yield fleet


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def test_an_agent_is_ready_only_once_it_was_acknowledged(stage: Stage, room: Room, fleet: Fleet) -> None:
    fleet.acknowledging = False
    async with stage.operator():
        await room.apply(agent(**TOOLS), provider(secret="key"), tool_server())
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
        await room.reaches("agent", "demo", "Ready", "True", seconds=15)
        found = await room.get("agent", "demo")

        assert await room.condition("agent", "demo", "Reconciling") == {}
        assert (await room.condition("agent", "demo", "Available"))["status"] == "True"
        assert (await room.condition("toolserver", "files", "Reachable"))["status"] == "True"
        assert found["status"]["desiredRevision"] == found["status"]["activeRevision"]
        assert found["status"]["tools"] == {"resolved": 1, "total": 1}
        assert "finalizers" not in found["metadata"]
        assert "annotations" not in found["metadata"]
        assert {lease.kind for lease in fleet.answered} == {"secret", "tools"}


async def test_status_stays_true_to_the_resource_c45(stage: Stage, room: Room, fleet: Fleet) -> None:
    async with stage.operator():
        await room.apply(agent(**TOOLS), provider(secret="key"), tool_server())
        await room.reaches("agent", "demo", "Ready", "True")

        fleet.missing.add("other/key")  # (1) a Secret that does not exist
        await room.apply(provider(secret="other"))
        bad = await room.reaches("agent", "demo", "Ready", "False", reason="SecretNotFound", seconds=30)
        assert "other" in bad["message"]
        assert bad["observedGeneration"] == (await room.get("agent", "demo"))["metadata"]["generation"]
        await room.apply(provider(secret="key"))
        await room.reaches("agent", "demo", "Ready", "True", seconds=30)

        fleet.missing.add("key/key")  # (2) the Secret in use is deleted
        gone = await room.reaches("agent", "demo", "ResolvedRefs", "False", seconds=40)
        assert gone["reason"] == "SecretNotFound"
        assert "key" in gone["message"]
        assert (await room.condition("agent", "demo", "Ready"))["status"] == "False"
        await asyncio.sleep(2)
        again = await room.condition("agent", "demo", "ResolvedRefs")
        assert again["lastTransitionTime"] == gone["lastTransitionTime"]
        fleet.missing.clear()
        await room.reaches("agent", "demo", "Ready", "True", seconds=30)

        await room.apply(agent(tools=[{"name": "files", "toolServer": {"ref": {"name": "unknown"}}}]))  # (3)
        bad = await room.reaches("agent", "demo", "Ready", "False", reason="ToolServerNotFound")
        assert "unknown" in bad["message"]
        assert bad["observedGeneration"] == 2
        assert (await room.condition("agent", "demo", "Available"))["status"] == "True"

        await room.apply(agent(**TOOLS))  # (4) back
        good = await room.reaches("agent", "demo", "Ready", "True", seconds=30)
        assert good["observedGeneration"] == 3


async def test_a_missing_provider_is_named_while_the_old_revision_serves(
    stage: Stage, room: Room, fleet: Fleet
) -> None:
    async with stage.operator():
        await room.apply(agent(), provider())
        await room.reaches("agent", "demo", "Ready", "True")
        active = (await room.get("agent", "demo"))["status"]["activeRevision"]
        await room.apply(agent(model_provider="nowhere"))
        bad = await room.reaches("agent", "demo", "Ready", "False", reason="ProviderNotFound")
        status = (await room.get("agent", "demo"))["status"]
        events = await room.kubectl("get", "events", "-o", "jsonpath={range .items[*]}{.type} {.reason}{'\\n'}{end}")
        [head] = await fleet.publisher.heads(after=0)

        assert "nowhere" in bad["message"]
        assert (await room.condition("agent", "demo", "Available"))["reason"] == "OlderRevision"
        assert (status["activeRevision"], status.get("desiredRevision")) == (active, None)
        assert (head.active, head.desired) == (active, None)
        assert "Warning ProviderNotFound" in events
        assert "Normal Ready" in events


async def test_a_labelled_config_map_is_watched_and_its_edit_is_a_new_revision(
    stage: Stage, room: Room, fleet: Fleet
) -> None:
    def prompts(text: str) -> dict[str, Any]:
        metadata = {"name": "prompts", "labels": {"kubeharness.dev/watch": "true"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"short": text}}

    async with stage.operator():
        where = {"configMapKeyRef": {"name": "prompts", "key": "short"}}
        await room.apply(agent(systemPromptFrom=where), provider())
        await room.reaches("agent", "demo", "Ready", "False", reason="ConfigMapNotFound")
        await room.apply(prompts("Be brief."))
        await room.reaches("agent", "demo", "Ready", "True", seconds=15)
        first = (await room.get("agent", "demo"))["status"]["activeRevision"]
        await room.apply(prompts("Be briefer."))
        async with asyncio.timeout(15):
            while (await room.get("agent", "demo"))["status"]["activeRevision"] == first:
                await asyncio.sleep(0.1)
        await room.reaches("agent", "demo", "Ready", "True")


async def test_a_restart_and_an_idle_time_write_nothing(stage: Stage, room: Room, fleet: Fleet) -> None:
    documents = [agent(f"a{number}", **TOOLS) for number in range(10)]
    async with stage.operator() as first:
        await room.apply(*documents, provider(secret="key"), tool_server())
        for document in documents:
            await room.reaches("agent", document["metadata"]["name"], "Ready", "True")
        took = await asyncio.to_thread(first.terminate)
        assert first.wait() == 0, first.log()
        assert took < 5  # what kopf alone would take
    clock = await fleet.publisher.head_clock()
    began = now()
    async with stage.operator() as second:
        await asyncio.sleep(15)
        async with asyncio.timeout(30):
            while second.metric("sweeps_total") < 1:  # it comes after 10 s, and writes nothing either
                await asyncio.sleep(0.5)

        assert await stage.writes(began) == []
        assert await fleet.publisher.head_clock() == clock
        assert second.metric("status_writes_total") == 0
        assert second.metric("agents") == 10
        assert second.metric("agents_pending") == 0
        assert "failed" not in second.log()


async def test_deletion_needs_no_operator_and_is_noticed_by_the_next_one(
    stage: Stage, room: Room, fleet: Fleet
) -> None:
    async with stage.operator():
        await room.apply(agent("kept"), agent("gone"), agent("again"), provider())
        for name in ("kept", "gone", "again"):
            await room.reaches("agent", name, "Ready", "True")
    with patience(10):
        await room.kubectl("delete", "agent", "gone", "again", "--timeout=5s")
    await room.apply(agent("again"))
    async with stage.operator():
        async with asyncio.timeout(40):
            while True:
                heads = {head.uid: head for head in await fleet.publisher.heads(after=0)}
                if sum(head.retired for head in heads.values()) == 2:
                    break
                await asyncio.sleep(0.2)
        await room.reaches("agent", "again", "Ready", "True")

        standing = {head.name for head in await fleet.publisher.heads(after=0) if not head.retired}
        assert standing == {"kept", "again"}

        await room.kubectl("delete", "agent", "kept", "--timeout=5s")
        async with asyncio.timeout(15):
            while len([head for head in await fleet.publisher.heads(after=0) if not head.retired]) > 1:
                await asyncio.sleep(0.1)


async def test_without_a_database_it_leads_and_says_so_and_recovers_by_itself(
    stage: Stage, room: Room, fleet: Fleet
) -> None:
    parts = urlsplit(stage.url)
    [port] = free_ports(1)
    door = Forwarder(parts.hostname or "", parts.port or 0, port)
    url = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
    async with stage.operator(url=url, ready=False) as process:
        await room.apply(agent(), provider())
        unknown = await room.reaches("agent", "demo", "Ready", "Unknown", reason="DatabaseUnavailable")
        assert unknown["observedGeneration"] == 1

        await door.up()
        await room.reaches("agent", "demo", "Ready", "True")
        door.down()
        await room.apply(agent("second"))
        await room.reaches("agent", "second", "Ready", "Unknown", reason="DatabaseUnavailable")
        assert (await room.condition("agent", "demo", "Ready"))["status"] == "True"
        await says(process, 503, f"the database cannot be used: {NOBODY_THERE}\n")
        assert process.get("/healthz")[0] == 200

        await door.up()
        await room.reaches("agent", "second", "Ready", "True")
        await says(process, 200, "ok")
        assert process.log().count(f"the database cannot be used: {NOBODY_THERE}") <= 4
        door.down()


async def test_one_database_has_one_operator_and_one_installation(stage: Stage, room: Room, fleet: Fleet) -> None:
    async with stage.operator() as first:
        await room.apply(agent(), provider())
        await room.reaches("agent", "demo", "Ready", "True")
        async with stage.operator(installation="another", ready=False) as foreign:
            assert await asyncio.to_thread(foreign.wait) == 1
            assert "belongs to installation 'test'" in foreign.log()
        async with stage.operator() as second:
            await room.apply(agent(prompt="Another."))
            assert await asyncio.to_thread(first.wait) == 1
            assert "is over" in first.log()
            await room.reaches("agent", "demo", "Ready", "True")
            assert second.alive()


async def test_an_account_without_rights_is_unready_and_says_which_are_missing(stage: Stage, room: Room) -> None:
    await room.kubectl("create", "serviceaccount", "nobody")
    nobody = await asyncio.to_thread(room.cluster.service_account_kubeconfig, room.namespace, "nobody")
    async with stage.operator(kubeconfig=nobody, ready=False) as process:
        async with asyncio.timeout(60):
            while "cannot list resource" not in process.get("/readyz")[1]:
                await asyncio.sleep(0.2)

        assert process.get("/readyz")[0] == 503
        assert process.get("/healthz")[0] == 200
        assert process.alive()


async def test_watches_that_break_come_back_c43(stage: Stage, room: Room, fleet: Fleet, control_plane: Cluster) -> None:
    """(a) reset, and the next reads are answered with 503; (c) 410 Gone, and the next lists with 503."""
    async with (
        api_proxy(control_plane, stage.kubeconfig) as (proxy, kubeconfig),
        stage.operator(kubeconfig=kubeconfig) as process,
    ):
        await room.apply(agent(), provider())
        await room.reaches("agent", "demo", "Ready", "True")

        proxy.refuse = 3
        proxy.reset()
        await room.apply(agent("a"), agent(prompt="After a reset."))
        await room.reaches("agent", "a", "Ready", "True", seconds=60)
        edited = await room.reaches("agent", "demo", "Ready", "True", seconds=60)
        assert edited["observedGeneration"] == 2

        watches = proxy.watches
        proxy.expire_watches, proxy.refuse = 4, 3
        proxy.reset()
        await room.apply(agent("c"), agent(prompt="After a 410."))
        await room.reaches("agent", "c", "Ready", "True", seconds=60)
        async with asyncio.timeout(60):
            while (await room.condition("agent", "demo", "Ready")).get("observedGeneration") != 3:
                await asyncio.sleep(0.2)

        assert proxy.watches > watches
        assert (proxy.refused, proxy.expire_watches) == (6, 0)
        assert process.alive()


async def test_a_silent_watch_is_noticed_c43(stage: Stage, room: Room, fleet: Fleet, control_plane: Cluster) -> None:
    """(b) a black hole without FIN: the streams that were open never speak again."""
    silence = {"KUBEHARNESS_WATCH_SILENCE_SECONDS": "5"}  # of 70, which nobody wants to wait for
    async with (
        api_proxy(control_plane, stage.kubeconfig) as (proxy, kubeconfig),
        stage.operator(kubeconfig=kubeconfig, more=silence) as process,
    ):
        await room.apply(agent(), provider())
        await room.reaches("agent", "demo", "Ready", "True")
        proxy.black_hole = True
        await asyncio.sleep(8)
        proxy.black_hole = False
        await room.apply(agent("b"), agent(prompt="After the hole."))
        await room.reaches("agent", "b", "Ready", "True", seconds=60)
        async with asyncio.timeout(60):
            while (await room.condition("agent", "demo", "Ready")).get("observedGeneration") != 2:
                await asyncio.sleep(0.5)

        assert process.alive()
