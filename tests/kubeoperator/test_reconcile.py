"""The use case for one key, in a world of dicts and the memory store."""

import asyncio
import dataclasses
from typing import Any

import pytest

from kubeharness.core.errors import Conflict
from kubeharness.engine import ports as engine
from kubeharness_operator import ports
from kubeharness_operator.objects import AGENTS, CONFIG_MAPS, Key
from kubeharness_operator.ports import EpochOver
from kubeoperator.running import agent, provider, tool_server
from kubeoperator.world import World

DEMO = Key(AGENTS, "ns", "demo")


def config_map(**data: str) -> ports.Document:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prompts"}, "data": data}


FROM_CONFIG_MAP: dict[str, Any] = {"systemPromptFrom": {"configMapKeyRef": {"name": "prompts", "key": "short"}}}


def test_what_the_operator_writes_has_the_fields_of_the_engines_ports() -> None:
    """The operator may not import them, so this holds both together."""
    for ours, theirs in ((ports.HeadWrite, engine.HeadWrite), (ports.CheckPut, engine.CheckPut)):
        assert [(field.name, field.default) for field in dataclasses.fields(ours)] == [
            (field.name, field.default) for field in dataclasses.fields(theirs)
        ]
    for seen, given in (
        (ports.Head, engine.Head),
        (ports.CheckResult, engine.CheckResult),
        (ports.Acknowledgement, engine.Acknowledgement),
    ):
        fields = {name for name, value in vars(seen).items() if isinstance(value, property)}
        assert fields <= {field.name for field in dataclasses.fields(given)} | {"complete"}


@pytest.mark.parametrize("order", [0, 1, 2])
async def test_an_agent_becomes_ready_in_any_order_and_not_before_answers_and_acknowledgements(order: int) -> None:
    documents = [agent(tools=[{"name": "t", "toolServer": {"ref": {"name": "files"}}}])]
    documents += [provider(secret="key"), tool_server()]
    async with World().working() as world:
        for document in [*documents[order:], *documents[:order]]:
            world.apply(document)
            await world.settled()

        assert world.said("Agent", "demo", "ResolvedRefs") == ("Unknown", "ChecksPending")
        assert world.said("Agent", "demo", "Programmed") == ("False", "NoLiveGateways")
        assert world.said("ToolServer", "files", "Reachable") == ("Unknown", "ChecksPending")

        await world.answer()
        await world.settled()

        assert world.said("Agent", "demo", "ResolvedRefs") == ("True", "ResolvedRefs")
        assert world.said("Agent", "demo", "Ready") == ("False", "NoLiveGateways")

        await world.load()
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
        assert world.said("ModelProvider", "models", "Ready") == ("True", "Ready")
        assert world.said("ToolServer", "files", "Ready") == ("True", "Ready")
        assert world.status("Agent", "demo")["tools"] == {"resolved": 1, "total": 1}


async def test_a_repeat_and_a_restart_write_nothing() -> None:
    async with World().working() as world:
        world.apply(agent(), provider(secret="key"))
        await world.all_well()
        written = len(world.cluster.status_writes)
        world.list_all()
        await world.settled()
        clock = await world.store.head_clock()

        assert len(world.cluster.status_writes) == written

    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.list_all()
        await again.settled()
        again.list_all()
        await again.settled()

    assert len(again.cluster.status_writes) == written
    assert await again.store.head_clock() == clock
    assert "check_put" not in again.database.calls


async def test_a_restart_asks_nobody_again_even_if_nobody_lives() -> None:
    """Programmed latches per revision: pods that went never turn it False."""
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        await world.load(workers=0, gateways=0)
    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.list_all()
        await again.settled()

    assert again.said("Agent", "demo", "Ready") == ("True", "Ready")
    assert "acknowledged" not in again.database.calls


async def test_a_missing_provider_leaves_the_old_revision_serving() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        active = world.status("Agent", "demo")["activeRevision"]
        world.apply(agent(model_provider="gone"))
        await world.settled()
        [head] = await world.store.heads(after=0)

        assert world.said("Agent", "demo", "Ready") == ("False", "ProviderNotFound")
        assert world.said("Agent", "demo", "Available") == ("True", "OlderRevision")
        assert (head.active, head.desired) == (active, None)
        assert "gone" in head.note

        world.apply(provider("gone"))
        await world.settled()

        assert world.said("Agent", "demo", "Ready")[0] == "False"

        await world.load()
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")


async def test_what_no_watch_has_shown_yet_is_asked_for_before_it_is_called_missing() -> None:
    async with World().working() as world:
        world.apply(provider(), shown=False)
        world.apply(agent())
        await world.settled()

        assert world.said("Agent", "demo", "ResolvedRefs") == ("True", "ResolvedRefs")


async def test_an_api_server_that_does_not_answer_makes_nothing_missing() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        before = dict(world.status("Agent", "demo"))
    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.cluster.down = True
        again.show(again.cluster.documents[DEMO], listed=True)
        await _passes(again, 5)
        again.cluster.down = False
        again.list_all()
        await again.settled()

    assert again.status("Agent", "demo") == before


async def test_a_second_revision_is_asked_for_anew_and_a_reverted_one_too() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        world.apply(agent(prompt="Another."))
        await world.settled()
        second = world.said("Agent", "demo", "Programmed")
        world.apply(agent())
        await world.settled()

        assert second == ("False", "AwaitingAcknowledgement")
        assert world.said("Agent", "demo", "Programmed") == ("False", "AwaitingAcknowledgement")

        await world.load()
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")


async def test_a_refused_revision_says_why() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.settled()
        [head] = await world.store.heads(after=0)
        assert head.active is not None
        await world.load()
        await world.store.refuse("worker0", head.active, "format 9 is not known here")
        await world.settled()

        assert world.said("Agent", "demo", "Programmed") == ("False", "RevisionRefused")


async def test_no_live_worker_is_no_obstacle_and_is_said() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.settled()
        await world.load(workers=0)
        await world.settled()

        assert world.said("Agent", "demo", "Programmed") == ("True", "NoLiveWorkers")
        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")


async def test_a_spec_that_no_schema_saw_is_a_condition_and_stops_nobody_c48() -> None:
    bad = agent("bad")
    for name, spec in {"a": {}, "b": None, "c": {"model": {"contextWindow": "big"}}, "d": [1]}.items():
        bad = {**bad, "metadata": {"name": name}, "spec": spec}
        async with World().working() as world:
            world.apply(bad, agent(), provider())
            await world.all_well()
            heads = {head.name: head for head in await world.store.heads(after=0)}

            assert world.said("Agent", name, "Accepted") == ("False", "InvalidSpec")
            assert world.said("Agent", name, "Stalled")[0] == "True"
            assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
            assert heads[name].active is None
            assert heads[name].note


async def test_a_reference_that_is_a_path_is_a_missing_object_c48() -> None:
    async with World().working() as world:
        world.apply(agent(model_provider="../../a/b"))
        await world.settled()

        assert world.said("Agent", "demo", "Ready")[0] == "False"


async def test_agents_of_one_name_in_two_namespaces_are_two_c47() -> None:
    async with World().working() as world:
        for namespace in ("team-a", "team-b"):
            world.apply(agent(prompt=namespace), provider(secret=f"key-{namespace}"), namespace=namespace)
        await world.all_well()
        heads = {head.namespace: head for head in await world.store.heads(after=0)}
        document = world.cluster.delete(Key(AGENTS, "team-b", "demo"))
        world.queue.add(world.objects.remove(AGENTS, document))
        await world.settled()
        after = {head.namespace: head for head in await world.store.heads(after=0)}

        assert heads["team-a"].active != heads["team-b"].active
        assert after["team-a"] == heads["team-a"]
        assert after["team-b"].retired
        assert world.said("Agent", "demo", "Ready", namespace="team-a") == ("True", "Ready")


async def test_a_deleted_agent_is_retired_only_if_the_server_says_that_it_is_gone() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        document = world.cluster.documents[DEMO]
        world.objects.forget(DEMO, document["metadata"]["uid"])  # the watch was wrong
        world.queue.add(DEMO)
        await world.settled()

        assert not (await world.store.heads(after=0))[0].retired
        assert world.objects.get(DEMO) is not None

        world.cluster.served = False  # somebody removed the CRD: no word about this object
        world.objects.forget(DEMO, document["metadata"]["uid"])
        world.queue.add(DEMO)
        await _passes(world, 3)

        assert not (await world.store.heads(after=0))[0].retired

        world.cluster.served = True
        world.delete("Agent", "demo")
        await world.settled()

        assert (await world.store.heads(after=0))[0].retired


async def test_a_recreated_agent_is_another_incarnation() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        world.delete("Agent", "demo", shown=False)
        world.apply(agent())
        await world.settled()
        heads = await world.store.heads(after=0)

        assert sorted(head.retired for head in heads) == [False, True]
        assert world.said("Agent", "demo", "Ready")[0] == "False"


async def test_a_secret_that_went_and_came_back_c45() -> None:
    async with World().working() as world:
        world.apply(agent(), provider(secret="key"))
        await world.all_well()
        ready = world.status("Agent", "demo")
        world.missing.add("key/key")
        await _ask_again(world)

        assert world.said("Agent", "demo", "ResolvedRefs") == ("False", "SecretNotFound")
        assert world.said("Agent", "demo", "Ready") == ("False", "SecretNotFound")
        assert world.said("Agent", "demo", "Programmed") == ("True", "Programmed")
        assert world.said("ModelProvider", "models", "ResolvedRefs") == ("False", "SecretNotFound")
        assert len(world.cluster.events) >= 2

        world.missing.clear()
        await _ask_again(world)

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
        assert world.status("Agent", "demo")["activeRevision"] == ready["activeRevision"]


async def test_the_checks_of_the_revision_in_force_outlive_the_objects_it_came_from() -> None:
    async with World().working() as world:
        world.apply(agent(), provider(secret="key"))
        await world.all_well()
        world.delete("ModelProvider", "models")
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("False", "ProviderNotFound")
        assert world.said("Agent", "demo", "Available") == ("True", "OlderRevision")
        assert await world.store.check_get("secret", "ns", "key/key") is not None

        world.delete("Agent", "demo")
        await world.settled()

        assert await world.store.check_get("secret", "ns", "key/key") is None


async def test_the_answer_to_an_older_question_is_no_answer() -> None:
    """The Agent may be looked at before the ToolServer whose edit made it look."""
    async with World().working() as world:
        world.apply(agent(tools=[{"name": "t", "toolServer": {"ref": {"name": "files"}}}]), provider(), tool_server())
        await world.all_well()
        plural, edited = world.cluster.apply(tool_server(url="https://elsewhere.test/mcp"))
        world.objects.put(plural, edited)
        world.queue.add(DEMO)
        await world.settled()

        assert world.said("Agent", "demo", "ResolvedRefs") == ("Unknown", "ChecksPending")


async def test_an_optional_tool_server_that_is_away_holds_nobody_back() -> None:
    async with World().working() as world:
        world.missing.add("files")
        world.apply(
            agent(tools=[{"name": "t", "toolServer": {"ref": {"name": "files"}}}]),
            provider(),
            tool_server(discovery={"mode": "Optional"}),
        )
        await world.all_well()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
        assert world.said("ToolServer", "files", "Reachable") == ("False", "ToolServerUnreachable")
        assert world.status("Agent", "demo")["tools"] == {"resolved": 0, "total": 1}


async def test_a_prompt_from_a_config_map_follows_its_edits() -> None:
    async with World().working() as world:
        world.apply(agent(**FROM_CONFIG_MAP), provider())
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("False", "ConfigMapNotFound")

        world.apply(config_map(long="x"))  # labelled, so a watch shows it
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("False", "ConfigMapKeyNotFound")

        world.apply(config_map(short="Be brief."))
        await world.all_well()
        first = world.status("Agent", "demo")["activeRevision"]
        world.apply(config_map(short="Be briefer."))
        await world.all_well()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
        assert world.status("Agent", "demo")["activeRevision"] != first
        assert world.objects.get(Key(CONFIG_MAPS, "ns", "prompts")) is not None


async def test_without_a_database_the_pending_turn_unknown_and_come_back_by_themselves() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        world.apply(agent("second"))
        await world.settled()
        world.database.down = True
        world.apply(agent("third"))
        await world.settled()

        assert world.said("Agent", "demo", "Ready") == ("True", "Ready")
        assert world.said("Agent", "second", "Ready") == ("Unknown", "DatabaseUnavailable")
        assert world.said("Agent", "third", "Ready") == ("Unknown", "DatabaseUnavailable")

        world.database.down = False
        await world.settled()
        await world.load()
        await world.settled()

        assert world.said("Agent", "second", "Ready") == ("True", "Ready")
        assert world.said("Agent", "third", "Ready") == ("True", "Ready")


async def test_a_start_without_a_database_leaves_every_status_as_it_was() -> None:
    async with World().working() as world:
        world.apply(agent(), provider(secret="key"))
        await world.all_well()
        written = len(world.cluster.status_writes)
    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.database.down = True
        again.list_all()
        await again.settled()
        again.database.down = False
        await again.settled()

    assert len(again.cluster.status_writes) == written
    assert again.reconciler.heads.known


async def test_an_operator_whose_epoch_is_over_writes_nothing_more() -> None:
    async with World().working() as world:
        world.apply(agent(), provider())
        await world.all_well()
        await world.store.epoch("test")
        world.apply(agent(prompt="Another."))
        await _passes(world, 3)

        assert world.reconciler.heads.over.is_set()
        with pytest.raises(EpochOver):
            await world.reconciler.follow()
        assert (await world.store.heads(after=0))[0].generation == 1


async def test_the_database_of_another_installation_is_refused() -> None:
    world = World()
    await world.store.epoch("somebody else")

    with pytest.raises(Conflict, match="somebody else"):
        await world.reconciler.follow()


async def test_a_status_write_that_met_a_newer_object_reads_it_again() -> None:
    async with World().working() as world:
        world.apply(agent(), provider(), shown=False)
        world.show(world.cluster.documents[DEMO])
        world.cluster.apply(agent(prompt="Newer."))  # no watch has shown it
        await world.all_well()

        assert world.status("Agent", "demo")["observedGeneration"] == 2


async def test_orphaned_checks_go_once_everything_was_seen() -> None:
    async with World().working() as world:
        world.apply(provider(secret="key"), provider("other", secret="old"))
        await world.settled()
        world.delete("ModelProvider", "other", shown=False)
    async with World(cluster=world.cluster, store=world.store).working() as again:
        again.list_all()
        await again.settled()
        await again.reconciler.drop_orphans()

    assert await again.store.check_get("secret", "ns", "old/key") is None
    assert await again.store.check_get("secret", "ns", "key/key") is not None


async def _passes(world: World, times: int) -> None:
    """Let a key that cannot succeed be tried some times."""
    goal = world.queue.worked + times
    async with asyncio.timeout(5):
        while world.queue.worked < goal:
            await asyncio.sleep(0.005)


async def _ask_again(world: World) -> None:
    world.pass_time(21)
    await world.answer()
    await world.settled()
