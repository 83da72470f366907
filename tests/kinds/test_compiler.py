"""compile is pure: the same input gives the same revision, and whatever is wrong is said at once."""

import copy
import json
from typing import Any

import pytest

from kinds import samples
from kubeharness.core.codec import load_revision
from kubeharness.core.revision import AgentRevision, HeaderSpec, ProviderSpec, SecretKeyRef, ToolPolicy, ToolServerSpec
from kubeharness.kinds.compiler import Compiled, compile_agent, compile_provider, compile_tool_server
from kubeharness.kinds.conditions import MESSAGE_LIMIT, Reason
from kubeharness.kinds.problems import ProblemKind, Problems

Json = dict[str, Any]

PROVIDERS = {"demo": samples.provider()}
SERVERS = {"everything": samples.full_tool_server()}
CONFIG_MAPS = {"prompts": samples.config_map()}


def compiled(agent: Json, **there: dict[str, Json]) -> Compiled | Problems:
    world = {"providers": PROVIDERS, "tool_servers": SERVERS, "config_maps": CONFIG_MAPS, **there}
    return compile_agent(agent, **world)


def sound(agent: Json, **there: dict[str, Json]) -> Compiled:
    result = compiled(agent, **there)
    assert isinstance(result, Compiled), list(result)
    return result


def revision(agent: Json, **there: dict[str, Json]) -> AgentRevision:
    return sound(agent, **there).revision


def problems(agent: Json, **there: dict[str, Json]) -> Problems:
    result = compiled(agent, **there)
    assert isinstance(result, Problems)
    return result


def fields(found: Problems, kind: ProblemKind | None = None) -> set[str]:
    return {item.field for item in found if kind in (None, item.kind)}


def turned(value: Any) -> Any:
    """The same JSON with the keys of every object in the opposite order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


# --- the same input, the same id ---------------------------------------------------------------------------------


def test_the_order_of_keys_does_not_change_a_revision() -> None:
    there = {"providers": {"demo": samples.full_scripted()}}
    turned_there = {"providers": {"demo": turned(samples.full_scripted())}}

    assert sound(samples.full_agent(), **there).stored == sound(turned(samples.full_agent()), **turned_there).stored


def test_the_order_of_what_is_keyed_by_name_does_not_change_a_revision() -> None:
    server = samples.full_tool_server()
    server["spec"]["headers"].reverse()
    server["spec"]["tools"] += [{"name": "add"}]
    other = copy.deepcopy(server)
    other["spec"]["headers"].reverse()
    other["spec"]["tools"].reverse()
    agent = samples.full_agent()
    agent["spec"]["tools"][1]["toolServer"]["include"].reverse()

    first = sound(samples.full_agent(), tool_servers={"everything": server})
    assert first.stored == sound(agent, tool_servers={"everything": other}).stored


def test_a_default_written_out_is_the_default() -> None:
    written = samples.agent(durability={"maxAttempts": 10, "submissionTimeoutSeconds": 3600, "maxTurns": 32}, tools=[])

    assert sound(written).stored.id == sound(samples.agent()).stored.id


def test_generation_labels_and_status_are_no_part_of_a_revision() -> None:
    agent = samples.agent()
    agent["metadata"] |= {"generation": 7, "uid": "u", "labels": {"a": "b"}}
    agent["status"] = {"conditions": "whatever"}

    assert sound(agent).stored.id == sound(samples.agent()).stored.id


def test_an_edit_of_the_prompt_is_another_revision() -> None:
    assert sound(samples.agent(systemPrompt="Be long.")).stored.id != sound(samples.agent()).stored.id


def test_an_edit_of_a_prompt_in_a_config_map_is_another_revision_and_its_text_is_the_prompt() -> None:
    agent = samples.full_agent()
    edited = {"prompts": samples.config_map(**{"assistant.md": "You are another."})}

    assert revision(agent).system_prompt == "You are an assistant."
    assert sound(agent, config_maps=edited).stored.id != sound(agent).stored.id


def test_a_stored_revision_loads_as_what_was_compiled() -> None:
    result = sound(samples.full_agent(), providers={"demo": samples.full_scripted()})

    assert load_revision(result.stored) == result.revision


# --- each field of the spec reaches the run ----------------------------------------------------------------------


def test_the_model_is_asked_as_the_agent_says() -> None:
    model = revision(samples.full_agent()).model

    assert (model.name, model.context_window, model.max_tokens) == ("large", 200_000, 4_096)
    assert (model.temperature, model.top_p, model.reasoning_effort) == (0.7, 0.95, "high")


def test_what_is_not_set_is_left_to_the_provider() -> None:
    model = revision(samples.agent()).model

    assert (model.max_tokens, model.temperature, model.top_p, model.reasoning_effort) == (None, None, None, None)


def test_budgets_description_and_prompt_are_the_agents() -> None:
    durability = revision(samples.full_agent()).durability

    assert (durability.max_attempts, durability.submission_timeout_seconds, durability.max_turns) == (3, 600, 8)
    assert revision(samples.full_agent()).description == "Does everything."
    assert revision(samples.agent()).system_prompt == "Be brief."


def test_tools_are_granted_as_the_agent_says() -> None:
    clock, everything = revision(samples.full_agent()).tools

    assert (clock.name, clock.builtin, clock.server) == ("clock", "clock", None)
    assert (everything.name, everything.builtin, everything.include) == ("everything", None, ("add", "echo"))
    assert everything.server == compile_tool_server(SERVERS["everything"])


def test_a_provider_compiles_to_what_a_run_needs() -> None:
    assert compile_provider(samples.provider()) == ProviderSpec(
        name="demo",
        type="OpenAICompatible",
        base_url="https://models.example/v1",
        api_key=SecretKeyRef(name="model-key", key="token"),
    )


def test_a_provider_may_go_without_a_key() -> None:
    spec = compile_provider(samples.provider(apiKeySecretRef=None, baseURL="http://ollama.ai.svc:11434/v1/"))

    assert spec == ProviderSpec(name="demo", type="OpenAICompatible", base_url="http://ollama.ai.svc:11434/v1")


def test_a_script_reaches_the_run_as_it_was_written_with_its_defaults() -> None:
    written = samples.full_scripted()["spec"]["scripted"]
    spec = compile_provider(samples.full_scripted())
    bare = compile_provider(samples.scripted())

    assert isinstance(spec, ProviderSpec)
    assert spec.scripted is not None
    assert isinstance(bare, ProviderSpec)
    second, third = dict(written["rules"][1], when={}), dict(written["rules"][2], when={})
    assert spec.scripted == {**written, "rules": [written["rules"][0], second, third]}
    assert bare.scripted == {"chunkCharacters": 12, "chunkDelayMilliseconds": 0, "rules": []}


def test_a_service_is_a_url_in_the_servers_namespace() -> None:
    server = samples.full_tool_server()
    server["metadata"]["namespace"] = "team-a"

    assert compile_tool_server(server) == ToolServerSpec(
        name="everything",
        url="http://everything.team-a.svc:3001/mcp",
        headers=(
            HeaderSpec(name="Authorization", secret=SecretKeyRef(name="tool-key", key="header")),
            HeaderSpec(name="X-Team", value="a"),
        ),
        required=False,
        policies=(ToolPolicy(name="echo", idempotent=True, timeout_seconds=5),),
    )


@pytest.mark.parametrize(
    ("url", "insecure", "taken"),
    [
        ("https://a.example/x", "Deny", True),
        ("http://a.example/x", "Deny", False),
        ("http://a.example/x", "Allow", True),
        ("http://127.0.0.1:9/x", "Deny", False),
        ("http://a.b.svc/x", "Deny", True),
        ("http://a.b.svc.cluster.local:80/x", "Deny", True),
        ("http://a.b.svc.example/x", "Deny", False),
        ("http://a.b.svc@evil.example/x", "Deny", False),
        ("http://a.b.svc\n", "Deny", False),
        ("https://user:word@a.example", "Allow", False),
        ("ftp://a.example", "Allow", False),
    ],
)
def test_plain_http_needs_a_service_or_leave(url: str, insecure: str, taken: bool) -> None:
    provider = compile_provider(samples.provider(baseURL=url, insecure=insecure))
    server = compile_tool_server(samples.tool_server(url=url, insecure=insecure))

    assert isinstance(provider, ProviderSpec) is taken
    assert isinstance(server, ToolServerSpec) is taken
    if isinstance(provider, Problems) and isinstance(server, Problems):
        assert fields(provider) == {"spec.baseURL"}
        assert fields(server) == {"spec.url"}


# --- everything that is wrong, at once ---------------------------------------------------------------------------


def test_every_problem_of_a_spec_and_of_its_references_is_found_at_once() -> None:
    agent = samples.full_agent()
    agent["metadata"]["name"] = "No_Label"
    agent["spec"]["model"] |= {
        "contextWindow": 10,
        "maxTokens": 20,
        "temperature": 0.7,
        "providerRef": {"name": "gone"},
    }
    agent["spec"]["systemPrompt"] = "both"
    agent["spec"]["tools"] += [
        {"name": "clock", "builtin": {"name": "clock"}},
        {"name": "two", "builtin": {"name": "clock"}, "toolServer": {"ref": {"name": "lost"}}},
    ]
    agent["spec"]["durability"] = {"maxAttempts": 0, "maxTurns": "3"}

    found = problems(agent, config_maps={})
    assert fields(found, ProblemKind.NOT_COMPILING) == {
        "metadata.name",
        "spec",
        "spec.model.contextWindow",
        "spec.model.maxTokens",
        "spec.model.temperature",
        "spec.tools[2].name",
        "spec.tools[3]",
        "spec.durability.maxAttempts",
        "spec.durability.maxTurns",
    }
    assert fields(found, ProblemKind.UNRESOLVED) == {
        "spec.model.providerRef.name",
        "spec.systemPromptFrom.configMapKeyRef",
        "spec.tools[3].toolServer.ref.name",
    }
    assert not found.compiles


BROKEN_REFERENCES = [
    ({"providers": {}}, Reason.PROVIDER_NOT_FOUND, "ModelProvider demo does not exist in namespace default"),
    ({"tool_servers": {}}, Reason.TOOL_SERVER_NOT_FOUND, "ToolServer everything does not exist in namespace default"),
    ({"config_maps": {}}, Reason.CONFIG_MAP_NOT_FOUND, "ConfigMap prompts does not exist in namespace default"),
    (
        {"config_maps": {"prompts": samples.config_map(other="x")}},
        Reason.CONFIG_MAP_KEY_NOT_FOUND,
        "ConfigMap prompts has no key 'assistant.md'",
    ),
    (
        {"config_maps": {"prompts": samples.config_map(**{"assistant.md": "x" * 32_769})}},
        Reason.CONFIG_MAP_VALUE_INVALID,
        "ConfigMap prompts key 'assistant.md' has 32769 characters; at most 32768 are allowed",
    ),
    (
        {"config_maps": {"prompts": {"binaryData": {"assistant.md": "AAAA"}}}},
        Reason.CONFIG_MAP_VALUE_INVALID,
        "ConfigMap prompts key 'assistant.md' is binary; put text under data",
    ),
    (
        {"config_maps": {"prompts": samples.config_map(**{"assistant.md": "a\x00b"})}},
        Reason.CONFIG_MAP_VALUE_INVALID,
        "ConfigMap prompts key 'assistant.md' holds a NUL or an unpaired surrogate; remove it",
    ),
    (
        {"providers": {"demo": samples.provider(baseURL="http://models.example")}},
        Reason.PROVIDER_NOT_ACCEPTED,
        "ModelProvider demo is not accepted: spec.baseURL: use https",
    ),
    (
        {"tool_servers": {"everything": samples.tool_server(url=None)}},
        Reason.TOOL_SERVER_NOT_ACCEPTED,
        "ToolServer everything is not accepted: spec: set exactly one of url, serviceRef",
    ),
]


@pytest.mark.parametrize(("there", "reason", "message"), BROKEN_REFERENCES)
def test_a_broken_reference_is_unresolved_and_names_object_and_key(
    there: dict[str, dict[str, Json]], reason: Reason, message: str
) -> None:
    found = problems(samples.full_agent(), **there)

    assert [(item.kind, item.reason) for item in found] == [(ProblemKind.UNRESOLVED, reason)]
    assert message in found.message()
    assert found.compiles


TOO_BIG = "x" * 1_400_000

LOOSE_SPECS: list[tuple[Any, set[str]]] = [
    ({}, {"spec", "spec.model"}),
    (None, {"spec"}),
    ([], {"spec"}),
    ("text", {"spec"}),
    ({"model": None, "systemPrompt": None}, {"spec", "spec.model"}),
    ({"model": "gpt", "systemPrompt": 1, "tools": {"a": 1}}, {"spec.model", "spec.systemPrompt", "spec.tools"}),
    (samples.agent(systemPrompt=TOO_BIG)["spec"], {"spec.systemPrompt"}),
    (samples.agent(systemPrompt="a\ud800b")["spec"], {"spec.systemPrompt"}),
    (samples.agent(tools=[None, 3, "clock"])["spec"], {"spec.tools[0]", "spec.tools[1]", "spec.tools[2]"}),
    (
        samples.agent(tools=[{"name": "a", "builtin": {"name": "clock"}}] * 2)["spec"],
        {"spec.tools[1].name"},
    ),
]


@pytest.mark.parametrize(("spec", "expected"), LOOSE_SPECS, ids=range(len(LOOSE_SPECS)))
def test_a_spec_that_no_schema_checked_is_problems_never_an_exception_c48(spec: Any, expected: set[str]) -> None:
    found = problems({"kind": "Agent", "metadata": {"name": "bad"}, "spec": spec})

    assert expected <= fields(found, ProblemKind.NOT_COMPILING)
    assert all(item.reason is Reason.INVALID_SPEC for item in found.of(ProblemKind.NOT_COMPILING))
    assert len(found.message()) <= MESSAGE_LIMIT


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("contextWindow", -1),
        ("contextWindow", "big"),
        ("contextWindow", True),
        ("contextWindow", 10**30),
        ("contextWindow", 8_000.5),
        ("maxTokens", 8_000),
        ("temperature", "hot"),
        ("temperature", "2.1"),
        ("topP", "1.1"),
        ("reasoningEffort", "Extreme"),
        ("name", ""),
    ],
)
def test_a_model_that_cannot_be_asked_so_names_its_field_c48(field: str, value: object) -> None:
    agent = samples.agent()
    agent["spec"]["model"][field] = value

    assert fields(problems(agent)) == {f"spec.model.{field}"}


def test_a_reference_with_slashes_is_a_problem_of_its_field_c48() -> None:
    agent = samples.agent()
    agent["spec"]["model"]["providerRef"]["name"] = "a/b/c/d"

    assert fields(problems(agent), ProblemKind.NOT_COMPILING) == {"spec.model.providerRef.name"}


@pytest.mark.parametrize("document", [{}, {"metadata": None}, {"metadata": []}, {"metadata": {"name": 4}}])
def test_an_object_without_a_name_is_a_problem_never_an_exception_c48(document: Json) -> None:
    assert "metadata.name" in fields(problems(document))
    for result in (compile_provider(document), compile_tool_server(document)):
        assert isinstance(result, Problems)
        assert "metadata.name" in fields(result)


@pytest.mark.parametrize(
    "broken", [{"prompts": {}}, {"prompts": {"data": []}}, {"prompts": {"data": {"assistant.md": 1}}}]
)
def test_a_config_map_of_any_shape_is_a_problem_never_an_exception_c48(broken: dict[str, Json]) -> None:
    assert fields(problems(samples.full_agent(), config_maps=broken)) == {"spec.systemPromptFrom.configMapKeyRef"}


def test_a_field_of_a_later_release_does_not_stop_an_object_from_the_server() -> None:
    agent = samples.agent(retention={"settledSeconds": 1})

    assert sound(agent).stored.id == sound(samples.agent()).stored.id


def test_a_source_of_tools_that_is_granted_twice_is_a_problem() -> None:
    ref = {"ref": {"name": "everything"}}
    found = problems(
        samples.agent(
            tools=[
                {"name": "a", "toolServer": ref},
                {"name": "b", "toolServer": ref},
                {"name": "c", "builtin": {"name": "clock"}},
                {"name": "d", "builtin": {"name": "clock"}},
            ]
        )
    )

    assert fields(found) == {"spec.tools[1].toolServer.ref.name", "spec.tools[3].builtin.name"}


def test_a_script_has_a_size_as_a_whole_and_in_each_call() -> None:
    call = {"toolCall": {"name": "clock", "arguments": {"text": "x" * 20_000}}}
    large_call = compile_provider(samples.scripted(rules=[{"steps": [{"text": "a"}, call]}]))
    large = compile_provider(samples.scripted(rules=[{"steps": [{"text": "x" * 8_000}] * 20}]))

    assert isinstance(large_call, Problems)
    assert fields(large_call) == {"spec.scripted.rules[0].steps[1].toolCall.arguments"}
    assert isinstance(large, Problems)
    assert fields(large) == {"spec.scripted"}


def test_headers_are_told_apart_in_any_case() -> None:
    found = compile_tool_server(
        samples.tool_server(headers=[{"name": "X-A", "value": "1"}, {"name": "x-a", "value": "2"}])
    )

    assert isinstance(found, Problems)
    assert fields(found) == {"spec.headers[1].name"}


def test_no_message_repeats_what_was_written() -> None:
    written = "hunter2"
    found = compile_tool_server(
        samples.tool_server(headers=[{"name": "X", "value": f"{written}\n"}], transport=written)
    )

    assert isinstance(found, Problems)
    assert fields(found) == {"spec.headers[0].value", "spec.transport"}
    assert written not in json.dumps([str(item) for item in found])
