"""From a revision to the tools of one attempt."""

import asyncio
from typing import Any

import pytest

from kubeharness.core.errors import ToolServerUnreachable
from kubeharness.core.messages import ToolCall, ToolResult
from kubeharness.core.revision import AgentRevision, ModelSettings, ProviderSpec, ToolGrant, ToolPolicy, ToolServerSpec
from kubeharness.tools.catalogue import CatalogueEntry, catalogue_json, read_catalogue
from kubeharness.tools.resolve import Toolboxes
from support.mcpwire import MCPWire, said
from support.rawwire import HANG, Answer, raw_wire

DEAD = "http://127.0.0.1:9/mcp"
LISTED = catalogue_json(
    [CatalogueEntry(name, f"Does {name}.", {"type": "object"}, idempotent_hint=True) for name in ("t", "u")]
)


def revision(*grants: ToolGrant) -> AgentRevision:
    return AgentRevision(
        agent="demo",
        provider=ProviderSpec(name="p", type="Scripted"),
        model=ModelSettings(name="m", context_window=1000),
        tools=grants,
    )


def granted(url: str, name: str = "s", include: tuple[str, ...] = (), **options: Any) -> ToolGrant:
    return ToolGrant(name=name, server=ToolServerSpec(name=name, url=url, **options), include=include)


CLOCK = ToolGrant(name="clock", builtin="clock")


async def test_a_catalogue_spares_the_connection_until_the_first_call() -> None:
    wire = MCPWire(lambda request: said(request, "hello"))
    async with raw_wire(wire) as served:
        opened = Toolboxes().open(
            revision(granted(served.url), CLOCK), catalogues={"s": LISTED}, headers={"s": {"x-key": "secret-1"}}
        )
        async with opened as box:
            assert [definition.name for definition in box.definitions()] == ["clock", "t", "u"]
            assert served.requests == []

            box.keyed("sub_1")
            result = await box.execute(ToolCall("1.1.1.0", "t"))

    assert result == ToolResult("hello")
    assert all(request.headers["x-key"] == "secret-1" for request in served.requests)
    assert (wire.sessions, wire.goodbyes) == (1, 1)
    assert list(wire.calls[0]["params"]["_meta"].values()) == ["sub_1:1.1.1.0"]


async def test_a_server_without_a_catalogue_is_asked_at_once() -> None:
    async with (
        raw_wire(MCPWire()) as served,
        Toolboxes().open(revision(granted(served.url)), catalogues={}, headers={}) as box,
    ):
        assert [definition.name for definition in box.definitions()] == ["t"]
        assert box.warnings == []


async def test_what_is_included_and_what_the_platform_says_of_it() -> None:
    policies = (ToolPolicy(name="t", idempotent=True, timeout_seconds=1), ToolPolicy(name="u"))
    both = granted(DEAD, include=("t", "missing"), policies=policies)
    async with Toolboxes().open(revision(both), catalogues={"s": LISTED}, headers={}) as box:
        assert [definition.name for definition in box.definitions()] == ["t"]
        assert box.policy("t") == (True, False)
        assert box.warnings == ["tool server 's' offers no tool 'missing'"]

    everything = granted(DEAD, policies=policies)
    async with Toolboxes().open(revision(everything, both), catalogues={"s": LISTED}, headers={}) as box:
        assert [definition.name for definition in box.definitions()] == ["t", "u"]
        assert box.policy("u") == (False, False)  # the server's own hint decides nothing


async def test_a_required_server_that_is_gone_is_named() -> None:
    with pytest.raises(ToolServerUnreachable, match="tool server 's' is not reachable") as raised:
        async with Toolboxes().open(revision(CLOCK, granted(DEAD)), catalogues={}, headers={}):
            pass
    assert raised.value.code == "tool_server_unreachable"


async def test_an_optional_server_that_is_silent_costs_a_warning_and_no_other_c36() -> None:
    silent = MCPWire(listed=lambda request: Answer([HANG]))
    async with raw_wire(silent) as bad, raw_wire(MCPWire()) as good, asyncio.timeout(5):
        grants = granted(bad.url, "bad", required=False), granted(good.url, "good"), CLOCK
        async with Toolboxes(connect_seconds=0.5).open(revision(*grants), catalogues={}, headers={}) as box:
            assert [definition.name for definition in box.definitions()] == ["clock", "t"]
            (warning,) = box.warnings
            assert warning.startswith("tool server 'bad' is not reachable")
            assert not (await box.execute(ToolCall("1", "t"))).is_error


async def test_a_call_to_a_server_that_has_gone_is_an_error_result() -> None:
    async with Toolboxes().open(revision(granted(DEAD)), catalogues={"s": LISTED}, headers={}) as box:
        result = await box.execute(ToolCall("1", "t"))

    assert result.is_error
    assert "tool server 's' is not reachable" in result.content


async def test_two_servers_with_one_tool_are_told_apart_c38() -> None:
    grants = granted(DEAD, "b"), granted(DEAD, "a")
    async with Toolboxes().open(revision(*grants), catalogues={"a": LISTED, "b": LISTED}, headers={}) as box:
        assert [definition.name for definition in box.definitions()] == ["a_t", "a_u", "b_t", "b_u"]


async def test_an_unknown_built_in_is_a_warning() -> None:
    grants = ToolGrant(name="x", builtin="teleport"), CLOCK
    async with Toolboxes().open(revision(*grants), catalogues={}, headers={}) as box:
        assert [definition.name for definition in box.definitions()] == ["clock"]
        assert box.warnings == ["there is no built-in tool 'teleport'"]


async def test_what_the_attempt_raises_goes_out_bare() -> None:
    async def attempt(url: str) -> None:
        async with Toolboxes().open(revision(granted(url)), catalogues={"s": LISTED}, headers={}) as box:
            await box.execute(ToolCall("1", "t"))
            raise KeyError("lane lost")

    async with raw_wire(MCPWire()) as served:
        with pytest.raises(KeyError):
            await attempt(served.url)


async def test_an_attempt_that_is_cancelled_leaves_promptly() -> None:
    async with raw_wire(MCPWire(lambda request: Answer([HANG]))) as served:
        with pytest.raises(TimeoutError):
            async with (
                asyncio.timeout(0.5),
                Toolboxes().open(revision(granted(served.url)), catalogues={"s": LISTED}, headers={}) as box,
            ):
                await box.execute(ToolCall("1", "t"))


def test_a_catalogue_round_trips_and_odd_ones_are_read_as_far_as_they_go() -> None:
    entries = [CatalogueEntry("t", "d", {"type": "object"}, True)]

    assert read_catalogue(catalogue_json(entries)) == entries
    assert read_catalogue({"tools": [{"name": "a", "inputSchema": {}}, {"name": 1}, "x", {"name": "b"}]}) == [
        CatalogueEntry("a", "", {})
    ]
    odd: list[Any] = [None, [], {}, {"tools": None}]
    assert [read_catalogue(value) for value in odd] == [None] * 4
