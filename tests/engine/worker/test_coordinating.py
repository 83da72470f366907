"""Claims, upkeep and poison: one worker's share of the lanes."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from kubeharness.core.errors import Unavailable
from kubeharness.core.events import CompletionEnd, CompletionStart, ProviderEvent
from kubeharness.core.ids import ConversationId
from kubeharness.core.lane import Claimed
from kubeharness.core.messages import ProviderMessage, TextPart, ToolDefinition
from kubeharness.core.records import SettledCode, SettledStatus, SubmissionSettled
from kubeharness.core.revision import Durability
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from support.house import House, rule, until

ECHO = [rule({"text": "re {{input}}"})]


async def test_the_answer_of_a_claim_that_was_lost_is_asked_for_by_the_ids_it_made() -> None:
    class Loses(TransactionalStore):
        lost = 1

        async def claim(self, **more: object) -> Sequence[Claimed]:
            claimed = await super().claim(**more)  # type: ignore[arg-type]
            if claimed and self.lost:
                self.lost -= 1
                raise Unavailable("the answer was lost")
            return claimed

    async with House(rules=ECHO, wrapped=Loses).open() as house:
        ended = await house.ask("go")

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 1, 0)


async def test_without_any_hint_the_poll_finds_the_work() -> None:
    async with House(rules=ECHO).open() as house:
        house.working[0].coordinator.rouse = lambda: None  # type: ignore[method-assign]
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED


async def test_a_lost_worker_is_reaped_after_half_a_lease_of_unbroken_connection() -> None:
    async with House(rules=ECHO, workers=0, lease_ms=600).open() as house:
        submission = await house.dispatch("go")
        await house.claim_by_hand()
        house.store_clock.ahead_ms = 61_000
        began = time.monotonic()
        house.start_worker()
        ended = await house.settled(submission)
        took = time.monotonic() - began

        assert (ended.status, ended.attempts, ended.failures) == (SettledStatus.SUCCEEDED, 2, 1)
        assert took >= 0.3


class Stands(TransactionalStore):
    """A database that stands still for a while: nobody could renew meanwhile."""

    def __init__(self, backend: MemoryBackend) -> None:
        super().__init__(backend)
        self.reaped_at: list[float] = []
        self.stood_until = 0.0

    async def sweep(self, *, limit: int = 1000) -> Sequence[ConversationId]:
        if not self.stood_until:
            await asyncio.sleep(0.4)
            self.stood_until = time.monotonic()
        return await super().sweep(limit=limit)

    async def reap(self, *, limit: int = 100) -> Sequence[ConversationId]:
        self.reaped_at.append(time.monotonic())
        return await super().reap(limit=limit)


async def test_after_a_standstill_of_the_database_nobody_is_reaped_at_once() -> None:
    async with House(rules=ECHO, wrapped=Stands, lease_ms=600).open() as house:
        assert isinstance(house.store, Stands)
        store = house.store
        await until(lambda: bool(store.reaped_at))

        assert store.reaped_at[0] - store.stood_until >= 0.3


async def test_a_worker_holds_one_lane_with_earlier_failures_and_the_healthy_ones_go_on_c06() -> None:
    poisoned: list[str] = []
    most = 0

    async def stream(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        nonlocal most
        body = messages[-1].content
        if body == "boom":
            poisoned.append(body)
            most = max(most, len(poisoned))
            await asyncio.sleep(0.03)
            poisoned.pop()
            raise ZeroDivisionError
        yield CompletionStart()
        yield CompletionEnd(ProviderMessage("assistant", "ok", parts=(TextPart("ok"),), stop_reason="stop"), 0)

    async with House(stream=stream, durability=Durability(max_attempts=2), workers=0).open() as house:
        for n in range(3):  # three lanes with an earlier failure each
            await house.dispatch("boom", session=f"bad{n}")
        for _ in range(3):
            await house.claim_by_hand()
        house.store_clock.ahead_ms += 120_000
        await house.store.reap()
        healthy = [await house.dispatch("fine", session=f"good{n}") for n in range(10)]
        house.start_worker()
        ended = [await house.settled(submission) for submission in healthy]
        await until(lambda: _all_idle(house))

        assert {end.status for end in ended} == {SettledStatus.SUCCEEDED}
        assert most == 1


async def _all_idle(house: House) -> bool:
    house.store_clock.ahead_ms += 500
    return all(code is SettledCode.ATTEMPT_BUDGET_EXHAUSTED for code in await _codes(house))


async def _codes(house: House) -> list[SettledCode | None]:
    found: list[SettledCode | None] = []
    for n in range(3):
        settled = await house.payloads(SubmissionSettled, session=f"bad{n}")
        found.append(settled[0].error_code if settled else None)
    return found


async def test_a_process_that_is_behind_claims_nothing_until_it_has_caught_up() -> None:
    async with House(rules=ECHO).open() as house:
        worker = house.working[0].coordinator
        worker.hold_back(True)
        submission = await house.dispatch("go")
        await asyncio.sleep(0.1)
        waiting = (await house.lane()).state
        worker.hold_back(False)
        ended = await house.settled(submission)

        assert waiting == "ready"
        assert ended.status is SettledStatus.SUCCEEDED
