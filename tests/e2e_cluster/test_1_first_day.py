"""The first day: the tutorial as printed, then every door of the API, with streams that come one by one."""

import re
import secrets
import time

import pytest

from e2e_cluster.callers import Reader
from e2e_cluster.conftest import Figures, Shell
from e2e_cluster.release import INGRESS_HOST, NAME, NAMESPACE, PREFIX, ROUTE_HOST, TUTORIAL, Release, until

pytestmark = pytest.mark.timeout(600)


def test_the_tutorial_does_what_it_says(empty: Release, shell: Shell, figures: Figures) -> None:
    """On a cluster that has only a Postgres and a router."""
    said: dict[str, str] = {}
    began = time.monotonic()
    for block in re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL):
        said[block] = shell.run(block)
        if "kubectl wait kha/assistant" in block and not figures.lines:
            figures.say(f"install to Ready, by the tutorial's commands: {time.monotonic() - began:.1f} s")
    printed = "\n".join(said.values())
    assert "condition met" in printed
    assert re.search(r'"status": ?"succeeded"', printed)
    assert "event: submission_settled" in printed
    assert re.search(r'"status": ?"injected"', printed)
    assert "True" in printed
    empty.whole()


@pytest.mark.parametrize("host", [INGRESS_HOST, ROUTE_HOST])
def test_each_door_streams_frame_by_frame_and_resumes(installed: Release, figures: Figures, host: str) -> None:
    door = installed.door(host)
    instance = f"door-{secrets.token_hex(3)}"
    path = f"/agents/assistant/{instance}"
    with door.client() as client, Reader(door, instance) as reader:
        fired = client.post(path, json={"kind": "user", "body": "what time is it?"})
        assert fired.status_code == 202
        assert fired.headers["Location"].startswith(f"{PREFIX}/"), "a link without the prefix"
        where = fired.headers["Location"].removeprefix(PREFIX)
        assert door.get(where, wait="true")["state"] == "settled"
        waited = client.post(f"{path}/?wait=true", json={"kind": "user", "body": "hello there"})  # a trailing slash
        assert waited.status_code == 200, waited.text
        assert waited.json()["output"].startswith("Hello!")
        until(lambda: reader.settled() == 2, reader.kinds)

        story = client.post(path, json={"kind": "user", "body": "tell me a story"}).json()["submissionId"]
        until(lambda: "assistant_thinking_delta" in reader.kinds()[-3:], reader.kinds, pause=0.02)
        steered = client.post(f"{path}/steer", json={"body": "answer in French"})
        assert (steered.status_code, steered.json()["status"]) == (200, "injected")
        until(lambda: reader.settled() == 3, reader.kinds)

        frames = [frame for frame in reader.frames if frame.record.get("submissionId") == story]
        began = frames[0].at
        figures.say(f"{host}: frames of a story after {', '.join(f'{f.at - began:.2f}' for f in frames)} s")
        assert len({round(frame.at, 2) for frame in frames}) > len(frames) / 3, "frames came in one lump"
        assert frames[-1].at - began > 4
        assert reader.reconnects == 0
        middle = reader.frames[len(reader.frames) // 2]
    with Reader(door, instance, after=middle.id) as resumed:
        rest = [frame.data for frame in reader.frames if frame.id > middle.id]
        until(lambda: len(resumed.frames) >= len(rest), resumed.kinds)
        assert [frame.data for frame in resumed.frames] == rest


def test_helm_test_asks_the_api_through_its_service(installed: Release) -> None:
    assert "Phase:          Succeeded" in installed.helm("test", NAME, "--namespace", NAMESPACE, "--timeout", "60s")
