"""A worker played by hand: what an attempt would write, one verb at a time, over any store."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kubeharness.core import codec
from kubeharness.core.ids import AttemptId, CallId, ConversationId, InboxId, TurnId, attempt_id, call_id, turn_id
from kubeharness.core.lane import CallState, Claimed, OpenCall
from kubeharness.core.messages import TextPart
from kubeharness.core.records import (
    AssistantBody,
    AssistantMessageCompleted,
    AssistantMessageStarted,
    AssistantTextDelta,
    AssistantToolCall,
    Draft,
    MessagePayload,
    Payload,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.revision import AgentRevision, ModelSettings, ProviderSpec
from kubeharness.engine.patience import only
from kubeharness.engine.ports import Append, Appended, HeadWrite, Release, Settle, Store, Waker

LEASE_MS = 60_000


class WallClock:
    """The process's own clock."""

    def now(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


def a_revision(agent: str = "demo") -> AgentRevision:
    """The least that can be published."""
    return AgentRevision(
        agent=agent,
        provider=ProviderSpec(name="script", type="Scripted", scripted={}),
        model=ModelSettings(name="scripted", context_window=8000),
    )


async def publish(
    store: Store,
    *agents: str,
    waker: Waker | None = None,
    namespace: str = "default",
    uid: str = "",
    generation: int = 1,
    active: bool = True,
    note: str = "",
    prompt: str = "",
) -> int:
    """Publish agents of this name; returns the head clock."""
    epoch = await store.epoch("test")
    writes = []
    for agent in agents:
        stored = codec.store_revision(
            AgentRevision(
                agent=agent,
                provider=a_revision().provider,
                model=a_revision().model,
                system_prompt=prompt,
            )
        )
        writes.append(
            HeadWrite(
                namespace=namespace,
                name=agent,
                uid=uid or f"uid-{namespace}-{agent}",
                generation=generation,
                desired=stored.id if active else None,
                activate=active,
                revision=stored if active else None,
                note=note,
            )
        )
    version = await store.publish(epoch, writes)
    if waker is not None:
        waker.touched([], work=True)
    return version


@dataclass
class Attempt:
    """One claimed lane, and what is written to it."""

    store: Store
    waker: Waker
    claimed: Claimed
    number: int = 0
    turns: int = 0
    turn: TurnId | None = None
    bits: Callable[[], int] = field(default=lambda: int.from_bytes(os.urandom(2), "big"))

    @property
    def conversation(self) -> ConversationId:
        """The lane."""
        return self.claimed.lane.id

    def draft(self, payload: Payload, *, turn: TurnId | None = None) -> Draft:
        """A record of this attempt."""
        return codec.draft(
            payload,
            conversation=self.conversation,
            session=self.claimed.key.session,
            submission=self.claimed.submission_id,
            turn=turn,
            attempt=self.claimed.attempt,
            time=datetime.now(UTC),
            bits=self.bits(),
        )

    async def write(
        self,
        *drafts: Draft,
        opened: Sequence[OpenCall] = (),
        closed: Sequence[CallId] = (),
        consumed: Sequence[InboxId] = (),
    ) -> Appended:
        """One numbered append."""
        self.number += 1
        item = Append(
            conversation=self.conversation,
            attempt=self.claimed.attempt,
            number=self.number,
            lease_ms=LEASE_MS,
            drafts=drafts,
            opened=opened,
            closed=closed,
            consumed=consumed,
            open_turn=self.turn,
        )
        done = only(await self.store.append([item]))
        self.waker.touched([self.conversation], work=False)
        return done

    async def hear(self) -> None:
        """Write what was dispatched."""
        message = codec.decode_message(self.claimed.message)
        await self.write(self.draft(UserMessage(body=message.body, via="dispatch")))

    async def start(self) -> TurnId:
        """Begin a message."""
        self.turns += 1
        self.turn = turn_id(self.claimed.position, self.claimed.lane.claim, self.turns)
        await self.write(self.draft(AssistantMessageStarted(model="scripted"), turn=self.turn))
        return self.turn

    async def delta(self, text: str) -> None:
        """A fragment."""
        await self.write(self.draft(AssistantTextDelta(text=text), turn=self.turn))

    async def complete(self, text: str) -> None:
        """The whole message; its turn is over."""
        turn, self.turn = self.turn, None
        body = AssistantBody(parts=(TextPart(text),), stop_reason="stop", model="scripted")
        await self.write(self.draft(AssistantMessageCompleted(message=MessagePayload(body=body)), turn=turn))

    async def say(self, *fragments: str) -> None:
        """A message in fragments, from start to end."""
        await self.start()
        for fragment in fragments:
            await self.delta(fragment)
        await self.complete("".join(fragments))

    async def call(self, tool: str, *, state: CallState = CallState.STARTED) -> CallId:
        """A recorded call that is open."""
        turn = turn_id(self.claimed.position, self.claimed.lane.claim, max(1, self.turns))
        id_ = call_id(turn, next(_indexes))
        opened = OpenCall(
            call_id=id_,
            conversation=self.conversation,
            submission_id=self.claimed.submission_id,
            tool_name=tool,
            state=state,
        )
        await self.write(self.draft(AssistantToolCall(call_id=id_, tool_name=tool), turn=turn), opened=[opened])
        return id_

    async def outcome(self, call: CallId, content: str) -> None:
        """The outcome of a call."""
        await self.write(self.draft(ToolOutcome(call_id=call, tool_name="tool", content=content)), closed=[call])

    async def settle(self, *, error: str | None = None) -> None:
        """The end: success, or run_failed with this error."""
        self.number += 1
        payload = SubmissionSettled(
            status=SettledStatus.FAILED if error else SettledStatus.SUCCEEDED,
            error=error,
            error_code=SettledCode.RUN_FAILED if error else None,
            attempts=self.claimed.lane.claim,
        )
        item = Settle(
            conversation=self.conversation,
            attempt=self.claimed.attempt,
            number=self.number,
            submission_id=self.claimed.submission_id,
            drafts=[self.draft(payload)],
            success=error is None,
        )
        only(await self.store.settle([item]))
        self.waker.touched([self.conversation], work=True)

    async def release(self, *, delay_ms: int = 0) -> None:
        """Give the lane back, as after a transient error of the model."""
        item = Release(conversation=self.conversation, attempt=self.claimed.attempt, cause="backoff", delay_ms=delay_ms)
        only(await self.store.release([item]))
        self.waker.touched([self.conversation], work=True)


_indexes = itertools.count()


async def claim(store: Store, waker: Waker, *, limit: int = 1) -> list[Attempt]:
    """Take ready lanes."""
    ids = [new_attempt() for _ in range(limit)]
    claimed = await store.claim(
        owner="player", pool="shared", attempts=ids, lease_ms=LEASE_MS, failed=limit, formats=(1,)
    )
    return [Attempt(store, waker, item) for item in claimed]


async def claim_one(store: Store, waker: Waker) -> Attempt:
    """Take the one lane that is ready."""
    (attempt,) = await claim(store, waker)
    return attempt


def new_attempt() -> AttemptId:
    """A name for an attempt."""
    return attempt_id(time.time_ns() // 1_000_000, os.urandom(10))


async def run_all(store: Store, waker: Waker, *fragments: str) -> int:
    """Answer everything that is ready; returns how much it was."""
    count = 0
    while attempts := await claim(store, waker, limit=8):
        for attempt in attempts:
            await attempt.hear()
            await attempt.say(*(fragments or ("Hello, ", "world.")))
            await attempt.settle()
            count += 1
    return count
