"""What only a worker may answer is asked by rows that say all a worker needs."""

from typing import Any

from kinds import samples
from kubeharness.core.codec import decode
from kubeharness.core.revision import SecretKeyRef, ToolServerSpec
from kubeharness.kinds.checks import CheckSpec, checks_for, checks_of
from kubeharness.kinds.compiler import Compiled, compile_agent


def tools_check(**spec: Any) -> CheckSpec:
    [check] = [check for check in checks_for(samples.tool_server(**spec)) if check.kind == "tools"]
    return check


def test_a_provider_needs_its_secret() -> None:
    [check] = checks_for(samples.provider())

    assert check.key == ("secret", "default", "model-key/token")
    assert (check.uid, check.interval_seconds) == ("", 20)
    assert decode(SecretKeyRef, check.payload) == SecretKeyRef(name="model-key", key="token")


def test_a_tool_server_needs_the_secrets_of_its_headers_and_a_discovery_at_its_interval() -> None:
    server = samples.full_tool_server()
    server["metadata"] |= {"namespace": "team-a", "uid": "u-1"}
    secret, tools = checks_for(server)
    asked = decode(ToolServerSpec, tools.payload)

    assert secret.key == ("secret", "team-a", "tool-key/header")
    assert tools.key == ("tools", "team-a", "everything")
    assert (tools.uid, tools.interval_seconds) == ("u-1", 60)
    assert asked.url == "http://everything.team-a.svc:3001/mcp"
    assert [header.name for header in asked.headers] == ["Authorization", "X-Team"]


def test_two_headers_from_one_key_are_one_question() -> None:
    ref = {"secretKeyRef": {"name": "s", "key": "k"}}
    server = samples.tool_server(headers=[{"name": "A", **ref}, {"name": "B", **ref}])

    assert [check.kind for check in checks_for(server)] == ["secret", "tools"]


def test_a_change_of_what_is_asked_is_another_digest_and_a_policy_is_not() -> None:
    assert tools_check().digest != tools_check(url="https://other.example/mcp").digest
    assert tools_check().digest == tools_check(tools=[{"name": "echo", "idempotent": True}]).digest


def test_what_does_not_compile_or_needs_nothing_asks_nothing() -> None:
    assert checks_for(samples.scripted()) == []
    assert checks_for(samples.tool_server(url=None)) == []
    assert checks_for(samples.agent()) == []
    assert checks_for({"kind": "ToolServer", "metadata": None}) == []


def test_a_revision_stands_on_the_checks_of_all_that_it_names() -> None:
    server = samples.full_tool_server()
    compiled = compile_agent(
        samples.full_agent(),
        providers={"demo": samples.provider()},
        tool_servers={"everything": server},
        config_maps={"prompts": samples.config_map()},
    )

    assert isinstance(compiled, Compiled)
    asked = [check.key for document in (samples.provider(), server) for check in checks_for(document)]
    assert checks_of(compiled.revision, "default") == asked
