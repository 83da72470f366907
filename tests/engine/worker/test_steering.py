"""Messages into a run in flight: at the next seam, once, or told that they came too late."""

import asyncio

from kubeharness.core.errors import KubeharnessError
from kubeharness.core.json import JsonObject
from kubeharness.core.records import (
    AssistantMessageCompleted,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.revision import Durability
from kubeharness.engine.ports import Appended, Loaded, Settle
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from support.house import House, calls, rule, tool, until


class Held:
    """A tool that runs until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, arguments: JsonObject) -> str:
        self.begun.set()
        await self.go.wait()
        return "held"


async def test_a_steer_in_mid_run_is_in_the_next_request_once_after_the_outcomes_c34() -> None:
    held = Held()
    script = [rule(*calls("held", "held"), contains="begin"), rule({"text": "you said {{input}}"})]
    async with House(rules=script, tools=[tool("held", held)]).open() as house:
        submission = await house.dispatch("begin")
        await held.begun.wait()
        await house.steer("turn left")
        held.go.set()
        await house.settled(submission)

        assert house.said() == [
            ("user", "begin"),
            ("assistant", ""),
            ("tool", "success: held"),
            ("tool", "success: held"),
            ("user", "turn left"),
        ]
        said = await house.payloads(UserMessage)
        assert [(m.body, m.via, m.undelivered) for m in said] == [("begin", None, None), ("turn left", "steer", None)]
        assert len(house.models.requests) == 2


async def test_a_followup_waits_for_the_end_of_the_exchange() -> None:
    held = Held()
    script = [
        rule(*calls("held"), contains="begin", turn=1),
        rule({"text": "done"}, contains="begin"),
        rule({"text": "and {{input}}"}),
    ]
    async with House(rules=script, tools=[tool("held", held)]).open() as house:
        submission = await house.dispatch("begin")
        await held.begun.wait()
        await house.steer("more", via="followup")
        held.go.set()
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert [text for _, text in house.said(1)] == ["begin", "", "success: held"]
        assert [text for _, text in house.said(2)] == ["begin", "", "success: held", "done", "more"]
        assert await house.kinds() == [
            "user_message",
            "assistant_message_started",
            "assistant_message_completed",
            "assistant_tool_call",
            "tool_outcome",
            "assistant_message_started",
            "assistant_message_completed",
            "user_message",
            "assistant_message_started",
            "assistant_message_completed",
            "submission_settled",
        ]


class SteersFirst(TransactionalStore):
    """Somebody says something just before the first settlement."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.before: list[object] = []
        self.house: House | None = None

    async def settle(self, items: list[Settle]) -> list[Appended | KubeharnessError]:  # type: ignore[override]
        if self.house is not None:
            house, self.house = self.house, None
            await house.steer("wait", via="steer")
        return list(await super().settle(items))


async def test_a_steer_that_beats_the_settlement_is_answered() -> None:
    async with House(rules=[rule({"text": "re {{input}}"})], wrapped=SteersFirst).open() as house:
        assert isinstance(house.store, SteersFirst)
        house.store.house = house
        ended = await house.ask("hello")

        assert ended.status is SettledStatus.SUCCEEDED
        answers = [m.message.body.parts[0].text for m in await house.payloads(AssistantMessageCompleted)]
        assert answers == ["re hello", "re wait"]
        assert len(await house.payloads(SubmissionSettled)) == 1


async def test_a_failing_settlement_lists_what_it_could_not_deliver_and_later_runs_do_not_read_it() -> None:
    held = Held()
    script = [rule(*calls("held"), contains="begin"), rule({"text": "ok"})]
    budget = Durability(max_turns=1)
    async with House(rules=script, tools=[tool("held", held)], durability=budget).open() as house:
        submission = await house.dispatch("begin")
        await held.begun.wait()
        message = await house.steer("too late", via="followup")
        held.go.set()
        ended = await house.settled(submission)
        after = await house.ask("again")

        assert ended.error_code is SettledCode.MAX_STEPS_REACHED
        assert ended.undelivered == (message,)
        said = [(m.body, m.undelivered) for m in await house.payloads(UserMessage)]
        assert said == [("begin", None), ("too late", True), ("again", None)]
        assert after.status is SettledStatus.SUCCEEDED
        assert "too late" not in [text for _, text in house.said()]


async def test_a_steer_ends_a_back_off_and_is_said_once() -> None:
    script = [rule({"error": {"kind": "Transient", "retryAfterSeconds": 60}}, contains="begin"), rule({"text": "ok"})]
    async with House(rules=script).open() as house:
        submission = await house.dispatch("begin")
        await until(lambda: _is(house, "delayed"))
        await house.steer("hurry")
        ended = await house.settled(submission)

        assert ended.status is SettledStatus.SUCCEEDED
        assert [text for _, text in house.said()] == ["begin", "hurry"]


async def test_a_waiting_followup_does_not_turn_a_back_off_into_a_hot_loop() -> None:
    held = Held()
    script = [
        rule(*calls("held"), turn=1),
        rule({"error": {"kind": "Transient", "retryAfterSeconds": 0.2}}, **{"try": 1}),
        rule({"error": {"kind": "Transient", "retryAfterSeconds": 0.2}}, **{"try": 2}),
        rule({"text": "ok"}),
    ]
    async with House(rules=script, tools=[tool("held", held)]).open() as house:
        submission = await house.dispatch("begin")
        await held.begun.wait()
        await house.steer("more", via="followup")
        began = asyncio.get_running_loop().time()
        held.go.set()

        async def answered() -> bool:
            return len(house.models.requests) >= 4

        await until(answered)
        took = asyncio.get_running_loop().time() - began
        assert await house.cancel(submission) is not None
        await house.settled(submission)

        assert took >= 0.4


async def test_reading_the_inbox_does_not_load_the_log() -> None:
    loads = 0

    class Counts(TransactionalStore):
        async def load(self, conversation: object) -> Loaded | None:
            nonlocal loads
            loads += 1
            return await super().load(conversation)  # type: ignore[arg-type]

    held = Held()
    script = [rule(*calls("held"), contains="begin"), rule({"text": "ok"})]
    async with House(rules=script, tools=[tool("held", held)], wrapped=Counts).open() as house:
        submission = await house.dispatch("begin")
        await held.begun.wait()
        await house.steer("left")
        held.go.set()
        await house.settled(submission)

        assert loads == 1
        assert len(await house.payloads(ToolOutcome)) == 1


async def _is(house: House, state: str) -> bool:
    return (await house.lane()).state.value == state
