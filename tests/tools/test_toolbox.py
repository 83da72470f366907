"""The toolbox: what runs, what is refused, and what comes out."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ToolCall, ToolDefinition, ToolResult
from kubeharness.tools.builtin.clock import clock
from kubeharness.tools.toolbox import Tool, Toolbox

ANY: JsonObject = {"type": "object"}
PATH: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def tool(name: str, run: Any = None, *, parameters: JsonObject = ANY, **options: Any) -> Tool:
    async def ran(arguments: JsonObject, call_key: str) -> ToolResult:
        return ToolResult(f"{name} ran")

    return Tool(definition=ToolDefinition(name, f"Does {name}.", parameters), run=run or ran, **options)


def raising(error: BaseException) -> Any:
    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        raise error

    return run


async def test_the_clock_tells_the_time_in_utc() -> None:
    eastern = datetime(2026, 11, 30, 22, 5, 1, tzinfo=timezone(timedelta(hours=1)))
    box = Toolbox([clock(lambda: eastern)])

    assert await box.execute(ToolCall("1", "clock")) == ToolResult("2026-11-30T21:05:01Z")
    assert box.policy("clock") == (True, False)
    (definition,) = box.definitions()
    assert definition.name == "clock"
    told = await Toolbox([clock()]).execute(ToolCall("1", "clock"))
    assert abs(datetime.fromisoformat(told.content) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_arguments_and_the_idempotency_key_reach_the_tool() -> None:
    seen = []

    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        seen.append((arguments, call_key))
        return ToolResult("ok", data={"a": 1})

    box = Toolbox([tool("write", run, parameters=PATH)])
    box.keyed("sub_1")
    result = await box.execute(ToolCall("3.1.1.0", "write", {"path": "a"}))

    assert result == ToolResult("ok", data={"a": 1})
    assert seen == [({"path": "a"}, "sub_1:3.1.1.0")]


async def test_an_unknown_tool_is_an_error_that_says_which_there_are() -> None:
    result = await Toolbox([clock()]).execute(ToolCall("1", "clok"))

    assert (result.is_error, result.cause) == (True, "unknown_tool")
    assert result.content == "there is no tool 'clok'; there are: clock"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("1", "write", {}), '"path" is a required property'),
        (ToolCall("1", "write", {"path": 1}), '$.path: 1 is not of type "string"'),
        (ToolCall("1", "write", raw_arguments='{"path":"b'), "the arguments are not a JSON object: "),
        (ToolCall("1", "write", raw_arguments="[1]"), "got list"),
        (ToolCall("1", "write", raw_arguments="\ud83d"), "the arguments are not a JSON object: "),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_with_the_schema_c31(call: ToolCall, says: str) -> None:
    result = await Toolbox([tool("write", parameters=PATH)]).execute(call)

    assert (result.is_error, result.cause) == (True, "invalid_arguments")
    assert says in result.content
    assert '"required":["path"]' in result.content


async def test_the_refusal_is_bounded_c31() -> None:
    long: JsonObject = {"type": "object", "description": "d" * 100_000, "required": ["path"]}
    box = Toolbox([tool("write", parameters=long)])
    result = await box.execute(ToolCall("1", "write", raw_arguments='{"path":"' + "x" * 100_000))

    assert len(result.content) < 5_000


async def test_a_tool_without_parameters_takes_none_c31() -> None:
    assert (await Toolbox([clock()]).execute(ToolCall("1", "clock", {}))).is_error is False
    assert (await Toolbox([clock()]).execute(ToolCall("1", "clock", {"zone": "x"}))).cause == "invalid_arguments"


async def test_what_a_tool_raises_is_feedback() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [ValueError("broken")])])
    box = Toolbox(
        [tool("a", raising(ValueError("no such file"))), tool("b", raising(group)), tool("c", raising(TimeoutError()))]
    )

    assert await box.execute(ToolCall("1", "a")) == ToolResult("ValueError: no such file", is_error=True)
    assert (await box.execute(ToolCall("1", "b"))).content == "ValueError: broken"
    assert (await box.execute(ToolCall("1", "c"))).cause is None  # its own timeout, not ours


async def test_a_tool_that_takes_too_long_is_stopped() -> None:
    stopped = asyncio.Event()

    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()
        raise AssertionError

    result = await Toolbox([tool("slow", run, timeout_seconds=0.05)]).execute(ToolCall("1", "slow"))

    assert result == ToolResult("no answer within 0.05 s", is_error=True, cause="timeout")
    assert stopped.is_set()


async def test_cancelling_goes_through() -> None:
    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        await asyncio.sleep(60)
        raise AssertionError

    box = Toolbox([tool("slow", run)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await box.execute(ToolCall("1", "slow"))


async def test_what_cannot_be_stored_comes_out_clean_c12_c13() -> None:
    async def run(arguments: JsonObject, call_key: str) -> ToolResult:
        return ToolResult("A\x00B bad \ud83d end", data={"k\x00": ["\udc00"]})

    sign = "\N{REPLACEMENT CHARACTER}"
    result = await Toolbox([tool("odd", run)]).execute(ToolCall("1", "odd"))
    failed = await Toolbox([tool("odd", raising(ValueError("\x00\ud800")))]).execute(ToolCall("1", "odd"))

    assert result.content == f"A{sign}B bad {sign} end"
    assert result.data == {f"k{sign}": [sign]}
    assert failed.content == f"ValueError: {sign}{sign}"


@pytest.mark.parametrize(
    "bad", [{"$ref": "http://127.0.0.1:9/x"}, {"pattern": "(?=a)"}, {"type": "objekt"}, {"maximum": 10**30}]
)
async def test_a_bad_schema_costs_only_its_tool_c40_c42(bad: JsonObject) -> None:
    box = Toolbox([tool("bad", parameters=bad, server="s"), tool("good", server="s")])

    assert [definition.name for definition in box.definitions()] == ["good"]
    (warning,) = box.warnings
    assert warning.startswith("tool 'bad' of server 's' is left out")
    assert (await box.execute(ToolCall("1", "good"))).content == "good ran"


async def test_the_order_and_the_names_do_not_hang_on_who_connected_first_c38() -> None:
    tools = [
        tool("search", server="b"),
        clock(),
        tool("search", server="a"),
        tool("files/read", server="a"),
        tool("clock", server="a"),
    ]
    there, back = Toolbox(tools), Toolbox(tools[::-1])

    assert there.definitions() == back.definitions()
    names = [definition.name for definition in there.definitions()]
    assert names[0] == "clock"
    assert {"a_search", "b_search", "a_clock"} < set(names)


async def test_calls_are_routed_to_the_right_original_c38() -> None:
    def named(name: str) -> Any:
        async def run(arguments: JsonObject, call_key: str) -> ToolResult:
            return ToolResult(name)

        return run

    box = Toolbox(
        [tool("search", named("of a"), server="a"), tool("search", named("of b"), server="b", idempotent=True)]
    )

    assert (await box.execute(ToolCall("1", "a_search"))).content == "of a"
    assert (await box.execute(ToolCall("1", "b_search"))).content == "of b"
    assert (await box.execute(ToolCall("1", "search"))).cause == "unknown_tool"
    assert (box.policy("a_search"), box.policy("b_search"), box.policy("?")) == (
        (False, False),
        (True, False),
        (False, False),
    )


async def test_a_tool_offered_twice_is_one_tool() -> None:
    box = Toolbox([tool("a", server="s"), tool("a", server="s")])

    assert len(box.definitions()) == 1
    assert box.warnings == ["tool 'a' of server 's' is offered twice; the first is used"]
