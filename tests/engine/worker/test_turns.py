"""A run of turns and tools, as the log shows it."""

import asyncio

from kubeharness.core.json import JsonObject
from kubeharness.core.messages import ToolResult
from kubeharness.core.records import (
    AssistantMessageCompleted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    AssistantToolCall,
    OutcomeCause,
    RunWarning,
    SettledCode,
    SettledStatus,
    ToolOutcome,
)
from kubeharness.core.revision import Durability
from support.house import House, calls, rule, tool, until


async def quick(arguments: JsonObject) -> str:
    return "done"


async def test_a_tool_turn_and_its_answer_are_one_run() -> None:
    steps: list[JsonObject] = [{"reasoning": "I shall look."}, *calls("look")]
    script = [rule(*steps, turn=1), rule({"text": "I saw {{tool}}."}, {"usage": {"input": 3, "output": 2}})]
    async with House(rules=script, tools=[tool("look", quick)]).open() as house:
        ended = await house.ask("look")

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 1, 0)
        assert ended.usage is not None
        assert (ended.usage.input, ended.usage.output) == (3, 2)
        assert await house.kinds() == [
            "user_message",
            "assistant_message_started",
            "assistant_message_completed",
            "assistant_tool_call",
            "tool_outcome",
            "assistant_message_started",
            "assistant_message_completed",
            "submission_settled",
        ]
        assert house.said() == [("user", "look"), ("assistant", ""), ("tool", "success: done")]
        thoughts = await house.payloads(AssistantThinkingDelta)
        assert "".join(delta.text for delta in thoughts) == "I shall look."


async def test_each_outcome_is_durable_as_its_call_ends_and_the_model_reads_them_in_call_order_c34() -> None:
    go = asyncio.Event()

    async def slow(arguments: JsonObject) -> str:
        await go.wait()
        return "late"

    script = [rule(*calls("slow", "fast"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("slow", slow), tool("fast", quick)]).open() as house:
        submission = await house.dispatch("both")

        async def first() -> bool:
            return len(await house.payloads(ToolOutcome)) == 1

        await until(first)
        [early] = await house.payloads(ToolOutcome)
        go.set()
        await house.settled(submission)

        assert early.tool_name == "fast"
        assert [o.tool_name for o in await house.payloads(ToolOutcome)] == ["fast", "slow"]
        assert [text for role, text in house.said() if role == "tool"] == ["success: late", "success: done"]


async def test_sequential_tools_run_one_after_the_other_and_each_is_started_before_it_runs() -> None:
    running: list[str] = []
    most = 0
    states: list[list[str]] = []

    async def alone(arguments: JsonObject) -> str:
        nonlocal most
        running.append("x")
        most = max(most, len(running))
        loaded = await house.store.load(house.conversation)
        assert loaded is not None
        states.append([call.state.value for call in loaded.calls])
        await asyncio.sleep(0.02)
        running.pop()
        return "ok"

    script = [rule(*calls("alone", "alone"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("alone", alone, sequential=True)]).open() as house:
        await house.ask("go")

        assert most == 1
        assert states == [["started", "recorded"], ["started"]]


async def test_more_calls_than_the_bound_all_run() -> None:
    script = [rule(*calls(*["look"] * 12), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("look", quick)]).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert len(await house.payloads(ToolOutcome)) == 12


async def test_a_tool_that_takes_too_long_is_an_error_outcome() -> None:
    async def hangs(arguments: JsonObject) -> str:
        await asyncio.sleep(60)
        return "never"

    script = [rule(*calls("hangs"), turn=1), rule({"text": "{{tool}}"})]
    async with House(rules=script, tools=[tool("hangs", hangs, timeout_seconds=0.05)]).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        [outcome] = await house.payloads(ToolOutcome)
        assert (outcome.is_error, outcome.cause) == (True, OutcomeCause.TIMEOUT)


async def test_bad_calls_are_error_outcomes_and_the_run_goes_on_c31() -> None:
    needs_path: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    ran: list[JsonObject] = []

    async def write(arguments: JsonObject) -> str:
        ran.append(arguments)
        return "written"

    asked: list[JsonObject] = [
        *calls("write", path="a"),
        {"toolCall": {"name": "write", "arguments": '{"path":"b'}},
        *calls("write"),
        *calls("nothing"),
        {"end": "Length"},
    ]
    script = [rule(*asked, turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("write", write, parameters=needs_path)]).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert ran == [{"path": "a"}]
        causes = {o.call_id: o.cause for o in await house.payloads(ToolOutcome)}
        assert causes == {
            "1.1.1.0": None,
            "1.1.1.1": OutcomeCause.INVALID_ARGUMENTS,
            "1.1.1.2": OutcomeCause.INVALID_ARGUMENTS,
            "1.1.1.3": OutcomeCause.UNKNOWN_TOOL,
        }
        recorded = await house.payloads(AssistantToolCall)
        assert (recorded[1].args, recorded[1].raw_args) == ({}, '{"path":"b')
        assert len(house.models.requests) == 2


async def test_a_tool_that_raises_anything_or_gives_up_is_an_error_outcome() -> None:
    async def breaks(arguments: JsonObject) -> str:
        raise SystemExit("gone")

    async def gives_up(arguments: JsonObject) -> str:
        raise asyncio.CancelledError

    script = [rule(*calls("breaks", "gives_up"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("breaks", breaks), tool("gives_up", gives_up)]).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        outcomes = {o.tool_name: o for o in await house.payloads(ToolOutcome)}
        assert (outcomes["breaks"].is_error, outcomes["breaks"].content) == (True, "SystemExit: gone")
        assert (outcomes["gives_up"].is_error, outcomes["gives_up"].cause) == (True, OutcomeCause.CANCELLED)


async def test_an_oversized_result_is_cut_alike_in_the_log_and_in_the_next_request() -> None:
    async def much(arguments: JsonObject) -> ToolResult:
        return ToolResult("é" * 200_000, data={"much": "x" * 300_000})

    script = [rule(*calls("much"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("much", much)], window=1_000_000).open() as house:
        await house.ask("go")

        [outcome] = await house.payloads(ToolOutcome)
        assert outcome.truncated_from == 400_000
        assert outcome.data is None
        assert house.said()[-1] == ("tool", f"success: {outcome.content}")
        assert outcome.content.endswith("[cut: 400000 bytes in all]")


async def test_a_run_that_asks_for_ever_ends_at_max_turns() -> None:
    script = [rule(*calls("look"))]
    budget = Durability(max_turns=3)
    async with House(rules=script, tools=[tool("look", quick)], durability=budget).open() as house:
        ended = await house.ask("go")

        assert ended.error_code is SettledCode.MAX_STEPS_REACHED
        assert len(house.models.requests) == 3
        assert len(await house.payloads(ToolOutcome)) == 3


async def test_a_tool_that_asks_a_person_ends_the_run_with_its_question() -> None:
    async def asks(arguments: JsonObject) -> ToolResult:
        return ToolResult("may I?", requires_input=True)

    async with House(rules=[rule(*calls("asks"))], tools=[tool("asks", asks)]).open() as house:
        ended = await house.ask("go")

        assert ended.error_code is SettledCode.INPUT_REQUIRED
        assert "may I?" in (ended.error or "")


async def test_an_empty_answer_is_an_answer_and_the_next_message_works_c28() -> None:
    script = [rule({"reasoning": "hm"}, contains="first"), rule({"text": "ok"})]
    async with House(rules=script).open() as house:
        first = await house.ask("first")
        second = await house.ask("second")

        assert (first.status, second.status) == (SettledStatus.SUCCEEDED, SettledStatus.SUCCEEDED)


async def test_a_long_stream_is_written_in_batches_whose_text_is_the_message() -> None:
    text = "ab\N{SNOWMAN}" * 1500
    script = [rule({"reasoning": "first"}, {"text": text})]
    async with House(rules=script, chunk_characters=7).open() as house:
        await house.ask("go")

        deltas = await house.payloads(AssistantTextDelta)
        [completed] = await house.payloads(AssistantMessageCompleted)
        assert "".join(delta.text for delta in deltas) == text
        assert completed.message.body.parts[-1].text == text
        sizes = [len(delta.text.encode()) for delta in deltas]
        assert all(1024 <= size < 1024 + 40 for size in sizes[:-1])


async def test_a_slow_stream_is_written_after_200_milliseconds() -> None:
    async with House(rules=[rule({"text": "a slow answer, in many small pieces"})], chunk_delay_ms=100).open() as house:
        started = asyncio.get_running_loop().time()
        submission = await house.dispatch("go")

        async def streamed() -> bool:
            return bool(await house.payloads(AssistantTextDelta))

        await until(streamed)
        took = asyncio.get_running_loop().time() - started
        await house.settled(submission)

        assert took > 0.15
        assert len(await house.payloads(AssistantTextDelta)) >= 2


async def test_a_warning_of_the_toolbox_is_written_once_for_a_submission() -> None:
    script = [rule({"error": {"kind": "Transient", "retryAfterSeconds": 0}}, **{"try": 1}), rule({"text": "ok"})]
    async with House(rules=script, warnings=["server left out \ud83d"]).open() as house:
        ended = await house.ask("go")

        assert ended.attempts == 2
        [warning] = await house.payloads(RunWarning)
        assert warning.message == "server left out \N{REPLACEMENT CHARACTER}"
