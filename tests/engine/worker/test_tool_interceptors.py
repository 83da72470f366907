"""Interceptors around a call: an onion in the order of registration, which may keep the call from running."""

from kubeharness.core.records import OutcomeCause, SettledCode, SettledStatus, ToolOutcome
from kubeharness.core.revision import Durability
from kubeharness.engine.seams import Next, Operation, Seams
from support.house import House, calls, rule, tool


async def test_interceptors_stand_around_each_call_the_first_registered_outermost() -> None:
    seen: list[str] = []

    async def run(arguments: object) -> str:
        seen.append("the tool")
        return "done"

    async def outer(operation: Operation, proceed: Next) -> None:
        if operation.kind == "tool":
            seen.append(f"outer {operation.name} {operation.at.call}")
        await proceed()
        if operation.kind == "tool":
            seen.append("outer again")

    async def inner(operation: Operation, proceed: Next) -> None:
        if operation.kind == "tool":
            seen.append("inner")
        await proceed()

    script = [rule(*calls("look"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("look", run)], seams=Seams((), [outer, inner])).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert seen == ["outer look 1.1.1.0", "inner", "the tool", "outer again"]


async def test_a_call_that_an_interceptor_does_not_let_through_is_blocked_and_the_run_goes_on() -> None:
    async def run(arguments: object) -> str:
        raise AssertionError("it ran")

    async def guard(operation: Operation, proceed: Next) -> None:
        if operation.kind != "tool":
            await proceed()

    script = [rule(*calls("look"), turn=1), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("look", run)], seams=Seams((), [guard])).open() as house:
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        [outcome] = await house.payloads(ToolOutcome)
        assert (outcome.cause, outcome.content) == (OutcomeCause.BLOCKED, "blocked, was not run")


async def test_an_interceptor_of_a_call_that_raises_counts_like_a_failure_of_the_attempt() -> None:
    async def breaks(operation: Operation, proceed: Next) -> None:
        if operation.kind == "tool":
            raise ValueError("no such budget")
        await proceed()

    async def run(arguments: object) -> str:
        return "done"

    one = Durability(max_attempts=1)
    script = [rule(*calls("look"), turn=1), rule({"text": "ok"})]
    seams = Seams((), [breaks])
    async with House(rules=script, tools=[tool("look", run)], seams=seams, durability=one).open() as house:
        ended = await house.ask("go")

        assert ended.error_code is SettledCode.ATTEMPT_BUDGET_EXHAUSTED
        assert ended.error == "gave up after 1 failed attempts: ValueError: no such budget"
        [outcome] = await house.payloads(ToolOutcome)
        assert outcome.cause is OutcomeCause.INTERRUPTED
