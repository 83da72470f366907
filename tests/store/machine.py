"""One Hypothesis machine that plays the same operations on memory and on another store, and compares all it can see.

Items are built once, from what the memory store says, and sent to both. What is accepted is a lawful log, so
`verify` must find nothing at the end, whatever was played.
"""

import asyncio
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kubeharness.core.errors import KubeharnessError
from kubeharness.core.ids import (
    AttemptId,
    CallId,
    ConversationId,
    InboxId,
    SubmissionId,
    TurnId,
    conversation_id,
    submission_id,
)
from kubeharness.core.lane import CallState, Claimed, LaneState
from kubeharness.core.messages import Usage
from kubeharness.core.records import (
    AbortReason,
    AssistantMessageAborted,
    Draft,
    Kind,
    SettledCode,
    SettledStatus,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)
from kubeharness.core.transitions import CounterChange, ReleaseCause
from kubeharness.engine.ports import Admission, Append, Cancel, Loaded, Page, Settle, Store, UsageRow
from kubeharness.store.conformance import Subject, World
from kubeharness.store.conformance.answers import INSTALLATION
from kubeharness.store.conformance.run import Run
from kubeharness.store.store import TransactionalStore
from kubeharness.store.verbs import Item
from kubeharness.store.verify import verify
from store.subjects import HeldClock, MemorySubject

T = TypeVar("T")
UNIT_MS = 100_000
"""All durations are multiples of it, so that a store on a real clock sees the same order of events."""
LEASE_MS = 3 * UNIT_MS
TIMES = {"now", "lease_until", "ready_at", "head_at", "not_before", "deadline", "last_ms", "milliseconds"}
SESSIONS = ("a", "b")
CAUSES: tuple[ReleaseCause, ...] = ("handover", "backoff", "blocked", "failure")
NO_CALL, NO_MESSAGE = CallId("9.9.9.9"), InboxId("nothing")
sessions = st.sampled_from(SESSIONS)


def slow_failures(failures: int) -> int:
    """The growth of a failure's delay, in units that a real clock cannot blur."""
    return 0 if failures <= 1 else UNIT_MS * min(8, 2 ** (failures - 2))


class StoreMachine(RuleBasedStateMachine):
    """The operations. A subclass names the other store and the loop in which both live."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    other: ClassVar[Subject]
    real_clock: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemorySubject()
        if isinstance(self.other, HeldClock):
            self.memory.now = self.other.now  # earlier examples have moved it
        self.world = World(self.memory)
        self.stores: list[Store] = [self.memory.store, self.other.store]
        self.attempts: dict[str, list[Claimed]] = {session: [] for session in SESSIONS}
        self.last: dict[AttemptId, Append | Settle] = {}
        self.inputs: set[SubmissionId] = set()
        self.turns = 0
        self.dispatches = 9

    # --- plumbing --------------------------------------------------------------------------------------------------

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self.loop).result(30)

    def both(self, verb: Callable[[Store], Awaitable[T]]) -> T:
        """Ask both, compare, and give memory's answer."""

        async def ask() -> list[T]:
            return [await verb(store) for store in self.stores]

        mine, theirs = self.run(ask())
        assert self.shape(theirs) == self.shape(mine)
        return mine

    def shape(self, value: object) -> object:
        """What must be equal: everything, or all but the times if the other store has a clock of its own."""
        if isinstance(value, KubeharnessError):
            return (type(value).__name__, str(value))
        if isinstance(value, enum.Enum | str | bytes):
            return value
        if dataclasses.is_dataclass(value):
            return {
                field.name: self._time(field.name, self.shape(getattr(value, field.name)))
                for field in dataclasses.fields(value)
            }
        if isinstance(value, dict):
            return {key: self.shape(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.shape(item) for item in value]
        return value

    def _time(self, name: str, value: object) -> object:
        return value is not None if self.real_clock and name in TIMES else value

    def loaded(self, session: str) -> Loaded | None:
        return self.run(_waited(self.memory.store.load(conversation_id(self.world.key(session)))))

    def conversations(self) -> list[ConversationId]:
        return [conversation_id(self.world.key(session)) for session in SESSIONS]

    def pool(self, session: str) -> str:
        """A pool a session: the order of claims is no matter of two clocks."""
        return f"{self.world.pool}-{session}"

    def attempt(self, session: str, back: int) -> Run | None:
        """One of the session's attempts, the last if `back` is 0."""
        found = self.attempts[session]
        return Run(self.world, found[-1 - back % len(found)]) if found else None

    @initialize()
    def publish(self) -> None:
        async def set_up() -> None:
            for store in self.stores:
                epoch = await store.epoch(INSTALLATION)
                await store.publish(epoch, [self.world.head(self.world.revision("one"))])

        self.run(set_up())

    # --- admission -------------------------------------------------------------------------------------------------

    def admission(self, session: str, dispatch: int, body: str, *, closed: bool, full: bool) -> Admission:
        item = self.world.admission(
            f"d{dispatch}", self.world.key(session), body=body, closed=closed, max_queued=1 if full else None
        )
        return dataclasses.replace(item, pool=self.pool(session))

    @rule(
        dispatches=st.lists(
            st.tuples(sessions, st.integers(0, 8), st.sampled_from("xxy"), st.booleans(), st.booleans()),
            min_size=1,
            max_size=4,
        )
    )
    def admit(self, dispatches: Sequence[tuple[str, int, str, bool, bool]]) -> None:
        items = [
            self.admission(session, n, body, closed=closed and full, full=full)
            for session, n, body, closed, full in dispatches
        ]
        self.both(lambda store: store.admit(items))

    # --- the owner -------------------------------------------------------------------------------------------------

    @rule(session=sessions, failed=st.integers(0, 2))
    def claim(self, session: str, failed: int) -> None:
        attempts = [self.world.new_attempt()]
        found = self.both(
            lambda store: store.claim(
                owner="w",
                pool=self.pool(session),
                attempts=attempts,
                lease_ms=LEASE_MS,
                failed=failed,
                formats=[1],
                all_ready=True,
            )
        )
        self.attempts[session] += found
        self.both(lambda store: store.held(attempts))

    def number(self, run: Run, skip: int) -> int:
        loaded = self.loaded(run.claimed.key.session)
        write = loaded.lane.write if loaded else None
        return (write.number if write and write.attempt == run.attempt else 0) + skip

    def opening(self, run: Run) -> list[Draft]:
        return [] if run.submission in self.inputs else [run.text()]

    def writing(self, run: Run, what: int, skip: int, repeat: bool) -> Append | Settle:
        """An append that does one thing; sometimes the last one again, sometimes under a wrong number."""
        if repeat and run.attempt in self.last:
            return self.last[run.attempt]
        run.number = self.number(run, skip)
        loaded = self.loaded(run.claimed.key.session)
        assert loaded is not None
        drafts = self.opening(run)
        open_turn = loaded.lane.open_turn
        calls = [call.call_id for call in loaded.calls]
        unread = [message.id for message in loaded.inbox]
        self.turns += 1
        turn = TurnId(f"{run.claimed.position}.{run.claimed.lane.claim}.{self.turns}")
        match what % 8:
            case 1 if calls or what > 16:
                closed = calls[: 1 + what % 2] or [NO_CALL]
                outcomes = [run.outcome(call) for call in closed]
                return run.write(*drafts, *outcomes, closed=closed, open_turn=open_turn, lease_ms=LEASE_MS)
            case 2 if calls or what > 16:
                return run.write(*drafts, started=calls[:1] or [NO_CALL], open_turn=open_turn, lease_ms=LEASE_MS)
            case 3 if unread or what > 16:
                consumed = unread[: 1 + what % 2] or [NO_MESSAGE]
                steered = [run.steered() for _ in consumed]
                return run.write(*drafts, *steered, consumed=consumed, open_turn=open_turn, lease_ms=LEASE_MS)
            case 0 | 1 | 2:
                call = run.call(f"{turn}.0", state=CallState.RECORDED if what % 3 else CallState.STARTED)
                return run.write(*drafts, *run.called(call), opened=[call], open_turn=open_turn, lease_ms=LEASE_MS)
            case 4 if open_turn is None:
                return run.write(*drafts, run.begun(turn), open_turn=turn, lease_ms=LEASE_MS)
            case 4 | 5 if open_turn is not None:
                row = UsageRow(turn_id=turn, model="m", provider="p", usage=Usage(input=what))
                counters = CounterChange(steps=1, usage=row.usage)
                ended = [*drafts, run.aborted(open_turn)]
                return run.write(*ended, counters=counters, usage=row, lease_ms=LEASE_MS)
            case 6:
                counters = CounterChange(corrective=1, compactions=what % 2, children=1)
                return run.write(*drafts, counters=counters, open_turn=open_turn, lease_ms=LEASE_MS)
            case _:
                return run.write(*drafts, run.note(), run.note(), open_turn=open_turn, lease_ms=LEASE_MS)

    def ending(self, run: Run, success: bool, sloppy: bool, skip: int) -> Settle:
        run.number = self.number(run, skip) - 1
        loaded = self.loaded(run.claimed.key.session)
        assert loaded is not None
        drafts, closes, drains = self.closing(loaded, run.claimed.key.session, run.submission, sloppy=sloppy)
        item = run.ending(*self.opening(run), *drafts, success=success, closes=closes, drains=drains)
        return dataclasses.replace(item, number=run.number)

    def closing(
        self, loaded: Loaded, session: str, submission: SubmissionId, *, sloppy: bool
    ) -> tuple[list[Draft], list[CallId], list[InboxId]]:
        """What closes everything that is open; sloppy forgets the last call and message."""
        key = self.world.key(session)
        calls, inbox, turn = list(loaded.calls), list(loaded.inbox), loaded.lane.open_turn
        if sloppy:
            calls, inbox = calls[:-1], inbox[:-1]
        drafts = []
        if turn is not None:
            aborted = AssistantMessageAborted(turn_id=turn, reason=AbortReason.CANCELLED)
            drafts.append(self.world.draft(aborted, key, submission=submission, turn=turn))
        for call in calls:
            outcome = ToolOutcome(call_id=call.call_id, tool_name=call.tool_name)
            drafts.append(self.world.draft(outcome, key, submission=submission))
        for message in inbox:
            undelivered = UserMessage(body=message.body, via="steer", undelivered=True)
            drafts.append(self.world.draft(undelivered, key, submission=submission))
        return drafts, [call.call_id for call in calls], [message.id for message in inbox]

    def wrote(self, items: Sequence[Item], results: Sequence[object]) -> None:
        """Remember what was accepted."""
        for item, result in zip(items, results, strict=True):
            if isinstance(item, Append | Settle) and not isinstance(result, KubeharnessError):
                self.last[item.attempt] = item
                for draft in item.drafts:
                    if draft.kind == Kind.USER_MESSAGE and b'"via":"dispatch"' in draft.body and draft.submission_id:
                        self.inputs.add(draft.submission_id)

    def running(self, session: str) -> Run:
        """A run of the session: if nothing runs there, what it takes is done first."""
        for _ in range(4):
            loaded = self.loaded(session)
            state = loaded.lane.state if loaded else LaneState.IDLE
            match state:
                case LaneState.RUNNING:
                    break
                case LaneState.READY:
                    self.claim(session, failed=1)
                case LaneState.DELAYED:
                    self.advance(8)
                    self.tend()
                case _:
                    self.dispatches += 1
                    self.admit([(session, self.dispatches, "x", False, False)])
        run = self.attempt(session, 0)
        assert run is not None
        return run

    @rule(session=sessions, back=st.integers(0, 1), what=st.integers(0, 23), odd=st.integers(0, 9))
    def append(self, session: str, back: int, what: int, odd: int) -> None:
        run = self.running(session)
        run = (self.attempt(session, back) if odd == 0 else None) or run
        self.play([self.writing(run, what, skip=1 if odd == 1 else 0, repeat=odd == 2)])

    @rule(
        session=sessions,
        verb=st.sampled_from(("append", "append", "settle", "release", "renew")),
        n=st.integers(0, 23),
        odd=st.integers(0, 9),
    )
    def own(self, session: str, verb: str, n: int, odd: int) -> None:
        """What an owner does; now and then by one that has lost its lane, or with something left out."""
        run = self.running(session)
        run = (self.attempt(session, 1) if odd == 0 else None) or run
        match verb:
            case "append":
                self.play([self.writing(run, n, skip=0, repeat=False)])
            case "settle":
                success = n % 2 == 0
                self.play([self.ending(run, success, sloppy=odd == 1, skip=2 if odd == 2 else 1)])
            case "release":
                error = "because" if n % 3 else ""
                self.play([run.back(CAUSES[n % 4], delay_ms=n % 5 * UNIT_MS, last_error=error)])
            case _:
                attempts = [claimed.attempt for claimed in self.attempts[session][-2:]]
                self.both(lambda store: store.renew(owner="w", attempts=attempts, lease_ms=LEASE_MS))

    def play(self, items: Sequence[Item]) -> None:
        """Run a batch, mixed or not, in one transaction of each store."""
        results = self.both(lambda store: cast("TransactionalStore", store).execute(items))
        self.wrote(items, results)

    # --- the outside -----------------------------------------------------------------------------------------------

    def cancelling(self, session: str, position: int, sloppy: bool) -> Cancel | None:
        """Cancel the submission at a position, or the head; drafts for what memory says is open."""
        loaded = self.loaded(session)
        if loaded is None:
            return None
        found = self.run(_waited(self.memory.store.unsettled(loaded.lane.id)))
        at = {view.position: view.submission_id for view in found}
        submission = at.get(position)
        head = at.get(loaded.lane.head)
        key = self.world.key(session)
        target = submission or head or submission_id(key.of_instance, f"d{position}")
        is_head = target == head and loaded.lane.state is not LaneState.RUNNING
        drafts, closes, drains = self.closing(loaded, session, target, sloppy=sloppy) if is_head else ([], [], [])
        end = SubmissionSettled(status=SettledStatus.FAILED, error_code=SettledCode.CANCELLED)
        settled = self.world.draft(end, key, submission=target)
        item = self.world.cancelling(target if submission or not head else None, *drafts, key=key)
        return dataclasses.replace(item, drafts=[*drafts, settled], closes=closes, drains=drains)

    @rule(session=sessions, position=st.integers(1, 6), odd=st.integers(0, 4))
    def cancel(self, session: str, position: int, odd: int) -> None:
        item = self.cancelling(session, position, sloppy=odd == 0)
        if item is not None:
            self.play([item])

    @rule(session=sessions, n=st.integers(0, 4), body=st.sampled_from("xxy"))
    def steer(self, session: str, n: int, body: str) -> None:
        item = self.world.message(f"m{n}", body=body, key=self.world.key(session))
        self.both(lambda store: store.inbox_put([item]))

    @rule(picks=st.lists(st.tuples(sessions, st.integers(0, 5), st.integers(0, 23)), min_size=2, max_size=4))
    def mixed(self, picks: Sequence[tuple[str, int, int]]) -> None:
        """Several verbs of several sessions, also of one, in one batch."""
        items: list[Item] = []
        for session, verb, n in picks:
            run = self.attempt(session, 0)
            match verb:
                case 0:
                    items.append(self.admission(session, n % 9, "x", closed=False, full=False))
                case 1:
                    items.append(self.world.message(f"m{n % 5}", key=self.world.key(session)))
                case 2 if run is not None:
                    items.append(self.writing(run, n, skip=0, repeat=False))
                case 3 if run is not None:
                    items.append(run.back(CAUSES[n % 4], delay_ms=UNIT_MS))
                case 4 if run is not None:
                    items.append(self.ending(run, success=True, sloppy=False, skip=1))
                case 5:
                    cancel = self.cancelling(session, n % 7, sloppy=False)
                    items += [cancel] if cancel else []
                case _:
                    pass
        self.play(items)

    # --- time ------------------------------------------------------------------------------------------------------

    @rule(units=st.integers(1, 4))
    def advance(self, units: int) -> None:
        async def pass_by() -> None:
            for subject in (self.memory, self.other):
                await subject.advance(units * UNIT_MS)

        self.run(pass_by())

    @rule()
    def tend(self) -> None:
        """Reap and sweep. Another store may hold lanes of earlier examples: only ours are compared."""
        ours = set(self.conversations())

        async def ask() -> list[tuple[set[ConversationId], set[ConversationId]]]:
            return [
                (ours & set(await store.reap(limit=10_000)), ours & set(await store.sweep(limit=10_000)))
                for store in self.stores
            ]

        mine, theirs = self.run(ask())
        assert theirs == mine

    # --- looking ---------------------------------------------------------------------------------------------------

    @invariant()
    def lanes_ledgers_inboxes_and_contexts_are_equal(self) -> None:
        for conversation in self.conversations():
            self.both(partial(_load, conversation))

    @rule(session=sessions, after=st.integers(0, 6), limit=st.integers(1, 5), n=st.integers(0, 8))
    def look(self, session: str, after: int, limit: int, n: int) -> None:
        key = self.world.key(session)
        conversation = conversation_id(key)
        self.both(lambda store: store.read(conversation, after=after, limit=limit))
        self.both(lambda store: store.moved({conversation: after}))
        self.both(lambda store: store.unsettled(conversation, limit=limit))
        self.both(lambda store: store.lookup(submission_id(key.of_instance, f"d{n}")))

    def teardown(self) -> None:
        for conversation in self.conversations():
            self.both(partial(_log, conversation))
        assert [str(violation) for violation in self.run(verify(self.memory.store))] == []


async def _load(conversation: ConversationId, store: Store) -> Loaded | None:
    return await store.load(conversation)


async def _log(conversation: ConversationId, store: Store) -> Page | None:
    return await store.read(conversation, after=0, limit=1_000)


async def _waited(answer: Awaitable[T]) -> T:
    return await answer
