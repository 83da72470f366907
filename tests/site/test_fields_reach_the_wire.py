"""What a manifest says of the model, the tools and the budgets is what a run does, over real sockets."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.site import Site, everything_said, of_kind

pytestmark = pytest.mark.timeout(120)

AGENT = """
apiVersion: kubeharness.dev/v1alpha1
kind: ModelProvider
metadata: {{name: wire}}
spec: {{type: OpenAICompatible, baseURL: {base_url}, insecure: Allow}}
---
apiVersion: kubeharness.dev/v1alpha1
kind: ToolServer
metadata: {{name: everything}}
spec:
  type: MCP
  url: {tool_url}
  insecure: Allow
  tools: [{{name: trigger-long-running-operation, timeoutSeconds: 1}}]
---
apiVersion: kubeharness.dev/v1alpha1
kind: Agent
metadata: {{name: demo}}
spec:
  model:
    providerRef: {{name: wire}}
    name: the-model
    contextWindow: {window}
    maxTokens: 321
    temperature: "0.25"
    topP: "0.5"
    reasoningEffort: Low
  systemPrompt: The prompt of this test.
  tools:
  - name: clock
    builtin: {{name: clock}}
  - name: some
    toolServer: {{ref: {{name: everything}}, include: [echo, trigger-long-running-operation]}}
  durability: {{maxTurns: {turns}, submissionTimeoutSeconds: {lifetime}}}
"""


def publish(here: Site, *, window: int = 100_000, turns: int = 32, lifetime: int = 3600) -> None:
    """Publish the agent of this file over the site's own."""
    path: Path = here.folder / "manifests.yaml"
    path.write_text(
        AGENT.format(
            base_url=here.mock.base_url, tool_url=here.everything.url, window=window, turns=turns, lifetime=lifetime
        )
    )
    here.processes.run("publish", "-f", str(path))


def again(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A model that asks for one call for ever."""
    return [{"match": {}, "response": {"content": "Again.", "toolCalls": [call]}}]


def test_model_settings_prompt_and_granted_tools_are_in_the_request(here: Site) -> None:
    here.mock.answer([{"match": {"userMessage": "hello"}, "response": {"content": "Hi."}}])
    publish(here)
    here.gateway()
    here.worker()

    here.settled(here.post("hello"))

    [request] = here.mock.requests()
    assert request["model"] == "the-model"
    assert 321 in (request.get("max_tokens"), request.get("max_completion_tokens"))
    assert request["temperature"] == 0.25
    assert request["top_p"] == 0.5
    assert request["reasoning_effort"] == "low"
    assert request["messages"][0] == {"role": "system", "content": "The prompt of this test."}
    names = sorted(tool["function"]["name"] for tool in request["tools"])
    assert names == ["clock", "echo", "trigger-long-running-operation"]


def test_a_tools_timeout_is_an_error_outcome_and_the_run_stops_at_its_turns_c11(here: Site) -> None:
    slow = {"id": "c", "name": "trigger-long-running-operation", "arguments": {"duration": 20, "steps": 2}}
    here.mock.answer(again(slow))
    publish(here, turns=2)
    here.gateway()
    here.worker()

    settled = here.settled(here.post("go"))

    assert settled["payload"]["errorCode"] == "max_steps_reached"
    outcomes = of_kind(here.records(), "tool_outcome")
    assert [record["payload"]["cause"] for record in outcomes] == ["timeout", "timeout"]
    assert len(here.mock.requests()) == 2
    here.verify()


def test_a_conversation_beyond_the_window_settles_with_a_code_that_says_so(here: Site) -> None:
    here.mock.answer([])
    publish(here, window=1024)
    here.gateway()
    here.worker()

    settled = here.settled(here.post("word " * 2000))

    assert settled["payload"]["errorCode"] == "context_too_large"
    assert "contextWindow is 1024" in settled["payload"]["error"]
    assert here.mock.requests() == []


def test_a_run_is_over_when_its_lifetime_is(here: Site) -> None:
    here.mock.answer([{"match": {}, "response": {"content": "slow " * 200}, "latency": 500, "chunkSize": 5}])
    publish(here, lifetime=10)
    here.gateway()
    here.worker()

    settled = here.settled(here.post("go"), within=30)

    assert settled["payload"]["errorCode"] == "timeout_exceeded"
    assert len(of_kind(here.records(), "assistant_message_aborted")) == 1
    here.verify()


def test_nul_and_lone_surrogates_are_stored_streamed_and_sent_again_clean_c12_c13(here: Site) -> None:
    bad = "a\u0000b \ud83d end"
    here.mock.answer(
        [
            {
                "match": {"hasToolResult": False, "turnIndex": 0},
                "response": {
                    "content": f"text {bad}",
                    "toolCalls": [{"id": "c", "name": "echo", "arguments": {"message": f"tool {bad}"}}],
                },
            },
            {"match": {}, "response": {"content": f"last {bad}"}},
        ]
    )
    publish(here)
    here.gateway()
    here.worker()
    raw = b'{"kind":"user","body":"body a\\u0000b \\ud83d end"}'

    first = _post_raw(here, raw)
    assert here.settled(first)["payload"]["status"] == "succeeded"
    second = here.post("and again")
    assert here.settled(second)["payload"]["status"] == "succeeded"

    clean = "a\N{REPLACEMENT CHARACTER}b \N{REPLACEMENT CHARACTER} end"
    records = here.records()
    assert of_kind(records, "user_message")[0]["payload"]["body"] == f"body {clean}"
    assert f"tool {clean}" in of_kind(records, "tool_outcome")[0]["payload"]["content"]
    texts = [r["payload"]["message"]["body"]["parts"] for r in of_kind(records, "assistant_message_completed")]
    assert any(part.get("text") == f"text {clean}" for parts in texts for part in parts)
    stream = here.stream()
    assert stream.decode("utf-8").count(clean) >= 4
    sent = everything_said(here.mock.requests()[-1])
    assert f"body {clean}" in sent
    assert f"tool {clean}" in sent
    assert f"text {clean}" in sent
    here.verify()


def _post_raw(here: Site, raw: bytes) -> str:
    answer = httpx2.post(f"{here.gateways[0].url}/agents/demo/s1", content=raw, timeout=10)
    assert answer.status_code == 202, answer.text
    submission: str = answer.json()["submissionId"]
    return submission
