"""What `kubectl` shows of an Agent is true: after bad edits, after good ones, and for whoever only reads columns."""

import re
import time
from typing import Any

import pytest

from e2e import manifests
from e2e.rooms import CONDITIONS, Room, statuses, system_of

pytestmark = pytest.mark.timeout(120)

Json = dict[str, Any]

NO_TOOL = {"name": "tools", "toolServer": {"ref": {"name": "everything"}, "include": ["echo", "no-such-tool"]}}
NO_SERVER = {"name": "tools", "toolServer": {"ref": {"name": "no-such-server"}}}
GOOD = {"name": "tools", "toolServer": {"ref": {"name": "everything"}}}


def times(conditions: dict[str, Json]) -> dict[str, str]:
    return {of: conditions[of]["lastTransitionTime"] for of in CONDITIONS}


def next_second() -> None:
    """A transition now has another time than any before: they are told in whole seconds."""
    time.sleep(1.1)


def test_a_reference_to_nothing_is_said_and_the_old_revision_serves_until_it_is_mended_c45(room: Room) -> None:
    room.installation.mock.answer(
        [
            {"match": {"userMessage": "slowly"}, "response": {"content": "word " * 30}, "latency": 100, "chunkSize": 5},
            {"match": {"userMessage": "at once"}, "response": {"content": "Done."}},
        ]
    )
    room.apply(room.wire(), room.tools(), manifests.agent(prompt="The old one.", tools="everything"))
    good = room.ready()
    begun = room.post("slowly", to="before")
    room.until_asked("slowly")
    next_second()

    generation = room.edit(model={"providerRef": {"name": "nowhere"}}, systemPrompt="The new one.")
    bad = room.reaches("Ready", "False", generation=generation)
    status = room.get()["status"]
    assert status["observedGeneration"] == generation
    assert {said["observedGeneration"] for said in bad.values()} == {generation}
    assert statuses(bad) == {
        "Accepted": "True",
        "ResolvedRefs": "False",
        "Programmed": "False",
        "Ready": "False",
        "Available": "True",
    }
    assert (bad["Ready"]["reason"], bad["Available"]["reason"]) == ("ProviderNotFound", "OlderRevision")
    assert "ModelProvider nowhere" in bad["Ready"]["message"]
    moved = {of for of in CONDITIONS if times(bad)[of] != times(good)[of]}
    assert moved == {"ResolvedRefs", "Programmed", "Ready"}

    room.succeeds("at once", to="after")
    assert system_of(room.requests("at once")[0]) == "The old one."
    assert room.settled(begun)["status"] == "succeeded"
    next_second()

    generation = room.point("nowhere-else")
    still = room.reaches("Ready", "False", generation=generation)
    assert "ModelProvider nowhere-else" in still["Ready"]["message"]
    assert times(still) == times(bad), "a transition time moved without a transition"

    generation = room.point("wire")
    mended = room.reaches("Ready", "True", generation=generation)
    assert statuses(mended) == dict.fromkeys(CONDITIONS, "True")
    assert {of for of in CONDITIONS if times(mended)[of] != times(still)[of]} == moved
    assert mended["Available"]["reason"] == "Available"
    room.succeeds("at once", to="mended")
    assert system_of(room.requests("at once")[-1]) == "The new one."


@pytest.mark.parametrize(
    ("tool", "reason", "named"),
    [(NO_SERVER, "ToolServerNotFound", "no-such-server"), (NO_TOOL, "ToolNotFound", "no-such-tool")],
    ids=["server", "tool"],
)
def test_an_unknown_tool_reference_is_said_and_the_old_revision_serves_c45(
    room: Room, tool: Json, reason: str, named: str
) -> None:
    room.installation.mock.answer([{"match": {"userMessage": "at once"}, "response": {"content": "Done."}}])
    room.apply(room.wire(), room.tools(), manifests.agent(tools="everything"))
    room.ready()

    generation = room.edit(tools=[tool])
    bad = room.reaches("Ready", "False", generation=generation, reason=reason)
    assert bad["ResolvedRefs"]["status"] == "False"
    assert named in bad["Ready"]["message"]
    assert room.get()["status"]["observedGeneration"] == generation
    assert bad["Available"]["status"] == "True"
    room.succeeds("at once")

    generation = room.edit(tools=[GOOD])
    assert statuses(room.reaches("Ready", "True", generation=generation)) == dict.fromkeys(CONDITIONS, "True")


def test_a_provider_that_is_edited_to_a_missing_secret_is_said_of_the_agent_and_of_itself_c45(room: Room) -> None:
    room.installation.mock.answer(
        [{"match": {"userMessage": "slowly"}, "response": {"content": "word " * 30}, "latency": 100, "chunkSize": 5}]
    )
    room.apply(room.wire(), manifests.agent())
    room.ready()
    begun = room.post("slowly")
    room.until_asked("slowly")

    room.edit("wire", kind="ModelProvider", apiKeySecretRef={"name": "no-such-secret", "key": "apiKey"})
    bad = room.reaches("Ready", "False", reason="SecretNotFound")
    source = room.reaches("Ready", "False", "wire", kind="ModelProvider", reason="SecretNotFound")
    assert "no-such-secret" in bad["Ready"]["message"]
    assert "no-such-secret" in source["ResolvedRefs"]["message"]
    assert room.settled(begun)["status"] == "succeeded", "a run under the good spec was disturbed"

    room.edit("wire", kind="ModelProvider", apiKeySecretRef=None)
    room.reaches("Ready", "True", "wire", kind="ModelProvider")
    assert statuses(room.ready()) == dict.fromkeys(CONDITIONS, "True")


def test_kubectl_get_wait_and_describe_tell_people_what_is_so(room: Room) -> None:
    room.apply(manifests.agent("broken", provider="nowhere"), manifests.scripted(), manifests.agent(provider="script"))
    room.kubectl("wait", "kha/demo", "--for=condition=Ready", "--timeout=20s")
    room.reaches("Ready", "False", "broken")

    head, *rows = columns(room.kubectl("get", "kha"))
    assert head == ["NAME", "READY", "REASON", "AVAILABLE", "MODEL", "AGE"]
    assert [row[:5] for row in rows] == [
        ["broken", "False", "ProviderNotFound", "False", "test-model"],
        ["demo", "True", "Ready", "True", "test-model"],
    ]
    wide = room.kubectl("get", "kha", "broken", "-o", "wide")
    assert "ModelProvider nowhere does not exist" in wide
    [_, provider] = columns(room.kubectl("get", "khm"))
    assert provider[:4] == ["script", "True", "Ready", "Scripted"]

    described = room.kubectl("describe", "kha", "broken")
    assert re.search(r"Type:\s+Ready", described)
    assert re.search(r"Reason:\s+ProviderNotFound", described)
    assert re.search(r"Warning\s+ProviderNotFound .*nowhere", described), "no Event tells of it"
    good = room.kubectl("describe", "kha", "demo")
    assert re.search(r"Normal\s+Ready ", good)
    for word in ("Be brief.", "finalizers", "last-applied"):
        assert word not in str(room.get()["status"])
        assert word == "Be brief." or word not in str(room.get()["metadata"])


def columns(printed: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
