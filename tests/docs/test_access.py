"""docs/howto/access.md: its keys are read, its Role grants what the text says, its seconds are those of the code."""

import json
import re
import subprocess
from pathlib import Path

from cluster.access import Cluster
from kubeharness.api.tokens import parse_tokens
from kubeharness.core.principal import RIGHTS
from kubeharness.kube import review

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "howto" / "access.md").read_text()


def blocks(kind: str) -> list[str]:
    """The blocks of one kind, those marked otherwise left out."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


async def test_the_tokens_file_of_the_text_is_read_and_grants_what_it_shows() -> None:
    [content] = blocks("json")
    ci, support = [principal for _, principal in parse_tokens(content.encode())]

    assert await ci.access.allows("dispatch", "team-a", "any")
    assert not await ci.access.allows("cancel", "team-a", "any")
    assert not await ci.access.allows("read", "team-b", "any")
    assert await support.access.allows("read", "team-b", "any")


def test_a_key_made_as_the_text_says_fits_into_the_file() -> None:
    [block] = blocks("sh")
    done = subprocess.run(["bash", "-ec", block], capture_output=True, text=True, timeout=20, check=True)
    entry = {"name": "x", "sha256": done.stdout.strip()}

    assert len(parse_tokens(json.dumps([entry]).encode())) == 1


def test_every_right_is_told() -> None:
    table = TEXT.partition("## What each right allows")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == RIGHTS


def test_the_role_of_the_text_lets_send_to_one_agent_and_nothing_else(control_plane: Cluster, namespace: str) -> None:
    [documents] = blocks("yaml")
    control_plane.kubectl("create", "serviceaccount", "webhook", "--namespace", namespace)
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))  # `can-i` looks the kind up
    control_plane.kubectl("wait", "--for=condition=Established", "crd/agents.kubeharness.dev", "--timeout=30s")
    control_plane.kubectl("apply", "-f", "-", input=documents.replace("team-a", namespace))
    webhook = control_plane.service_account_kubeconfig(namespace, "webhook")

    def may(verb: str, agent: str) -> bool:
        resource = f"agents.kubeharness.dev/{agent}"
        return control_plane.can_i(verb, resource, namespace=namespace, kubeconfig=webhook)

    assert may("dispatch", "assistant")
    assert not may("read", "assistant")
    assert not may("dispatch", "other")


def test_the_seconds_of_the_text_are_those_of_the_code() -> None:
    told = re.search(r"a token for (\d+), a permission for (\d+), a refusal of either for (\d+)", TEXT)

    assert told is not None
    assert [float(seconds) for seconds in told.groups()] == [
        review.KNOWN_SECONDS,
        review.ALLOWED_SECONDS,
        review.UNKNOWN_SECONDS,
    ]
    assert review.UNKNOWN_SECONDS == review.DENIED_SECONDS
