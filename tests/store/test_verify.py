"""`verify` finds what is planted, names the invariant, and finds nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kubeharness.core import codec
from kubeharness.core.ids import AttemptId, CallId, ConversationId, RevisionId, SubmissionId, TurnId, conversation_id
from kubeharness.core.lane import CallState, Lane, LaneState
from kubeharness.core.messages import Usage
from kubeharness.core.records import AbortReason, AssistantMessageAborted, AssistantTextDelta, Signal, StoredRecord
from kubeharness.engine.ports import Store
from kubeharness.store.conformance.run import Run
from kubeharness.store.conformance.world import World
from kubeharness.store.memory import MemoryBackend, Tables
from kubeharness.store.verify import verify
from store.subjects import MemorySubject

TURN = TurnId("1.1.1")


@dataclass
class Scene:
    """A session in full swing: one settled, one cancelled in the queue, one running with all that can be open."""

    world: World
    tables: Tables
    run: Run
    settled: SubmissionId

    @property
    def id(self) -> ConversationId:
        return self.run.conversation

    @property
    def lane(self) -> Lane:
        return self.tables.lanes[self.id]

    def lane_is(self, **changes: object) -> None:
        self.tables.set_lane(replace(self.lane, **changes))  # type: ignore[arg-type]  # each plant knows its fields

    @property
    def log(self) -> list[StoredRecord]:
        return self.tables.records[self.id]

    def add(self, record: StoredRecord) -> None:
        self.log.append(replace(record, seq=self.log[-1].seq + 1, milliseconds=self.log[-1].milliseconds))
        self.lane_is(last_seq=self.log[-1].seq)

    def write(self, payload: object, *, turn: TurnId | None = None) -> None:
        draft = self.run.draft(payload, turn=turn)  # type: ignore[arg-type]  # a payload
        self.add(StoredRecord(seq=0, milliseconds=0, bits=draft.bits, kind=draft.kind, body=draft.body))


async def scene() -> tuple[Scene, Store]:
    subject = MemorySubject()
    world = World(subject)
    await world.set_up()
    first = await world.started("d1")
    call = first.call("1.1.1.0")
    await first.append(first.write(first.begun(TURN), open_turn=TURN))
    await first.append(first.write(first.aborted(TURN), *first.called(call), opened=[call]))
    await first.append(first.write(first.outcome("1.1.1.0"), closed=["1.1.1.0"]))
    await first.settle()
    receipts = await world.admit("d2", "d3", "d4")
    run = await world.claim()
    await run.begin()
    await world.cancel(receipts[1].submission_id)
    await world.lost(run)
    run = await world.claim()
    calls = [run.call("2.2.1.0"), run.call("2.2.1.1", state=CallState.RECORDED)]
    turn = TurnId("2.2.1")
    await run.append(run.write(*run.called(*calls), run.begun(turn), opened=calls, open_turn=turn))
    await world.steer("m1")
    assert isinstance(subject.backend, MemoryBackend)
    return Scene(world, subject.backend.tables, run, first.submission), world.store


def _conversation_lost(s: Scene) -> None:
    del s.tables.conversations[s.id]


def _lane_lost(s: Scene) -> None:
    del s.tables.busy[s.lane.state][s.id], s.tables.lanes[s.id]


def _created_twice(s: Scene) -> None:
    s.add(s.log[0])


def _submission_lost(s: Scene) -> None:
    del s.tables.submissions[s.run.submission]


def _hole_in_the_queue(s: Scene) -> None:
    s.lane_is(last_position=5)


def _key_lost(s: Scene) -> None:
    del s.tables.dispatches[s.run.submission]


def _key_of_other_content(s: Scene) -> None:
    s.tables.dispatches[s.settled] = replace(s.tables.dispatches[s.settled], digest="sha256:other")


def _asleep(s: Scene) -> None:
    s.lane_is(state=LaneState.IDLE, head=0, attempt=None, owner=None, lease_until=None)


def _head_passed_over(s: Scene) -> None:
    s.lane_is(head=4)


def _steps_over_nothing(s: Scene) -> None:
    s.lane_is(cancelled_positions=())


def _interleaved(s: Scene) -> None:
    queued = s.tables.positions[s.id][4]
    draft = s.world.draft(Signal(type="t", body="b"), s.world.key(), submission=queued)
    s.add(StoredRecord(seq=0, milliseconds=0, bits=1, kind=draft.kind, body=draft.body))


def _attempt_lost(s: Scene) -> None:
    del s.tables.attempts[s.run.attempt]


def _owner_without_attempt(s: Scene) -> None:
    s.lane_is(attempt=None)


def _ran_another_revision(s: Scene) -> None:
    row = s.tables.attempts[s.run.attempt]
    s.tables.attempts[row.id] = replace(row, revision=RevisionId("sha256:other"))


def _write_of_another(s: Scene) -> None:
    assert s.lane.write is not None
    s.lane_is(write=replace(s.lane.write, attempt=AttemptId("att_other")))


def _second_input(s: Scene) -> None:
    s.write(Signal(type="t", body="again"))


def _record_lost(s: Scene) -> None:
    del s.log[3]


def _record_twice(s: Scene) -> None:
    s.log.insert(4, s.log[3])


def _clock_back(s: Scene) -> None:
    s.log[4] = replace(s.log[4], milliseconds=s.log[4].milliseconds - 1)


def _lane_behind_its_log(s: Scene) -> None:
    s.lane_is(last_seq=s.lane.last_seq - 1)


def _settlement_lost(s: Scene) -> None:
    del s.tables.settlements[s.settled]


def _settled_record_lost(s: Scene) -> None:
    at = next(n for n, record in enumerate(s.log) if record.kind == "submission_settled")
    s.log[at] = replace(s.log[at], kind="warning", body=s.run.note().body)


def _settled_twice(s: Scene) -> None:
    s.add(next(record for record in s.log if record.kind == "submission_settled"))


def _goes_on_after_settlement(s: Scene) -> None:
    draft = s.world.draft(Signal(type="t", body="late"), s.world.key(), submission=s.settled)
    s.add(StoredRecord(seq=0, milliseconds=0, bits=1, kind=draft.kind, body=draft.body))


def _unread_miscounted(s: Scene) -> None:
    s.lane_is(unread=0)


def _outcome_twice(s: Scene) -> None:
    outcome = codec.decode_record(next(record for record in s.log if record.kind == "tool_outcome")).payload
    s.write(outcome)


def _outcome_of_nothing(s: Scene) -> None:
    outcome = s.run.outcome("2.2.1.9")
    s.add(StoredRecord(seq=0, milliseconds=0, bits=1, kind=outcome.kind, body=outcome.body))


def _ledger_row_lost(s: Scene) -> None:
    del s.tables.calls[s.id][CallId("2.2.1.0")]
    s.lane_is(open_calls=1)


def _calls_miscounted(s: Scene) -> None:
    s.lane_is(open_calls=3)


def _failures_below_zero(s: Scene) -> None:
    s.lane_is(counters=replace(s.lane.counters, failures=-1, usage=Usage()))


def _more_failures_than_claims(s: Scene) -> None:
    s.lane_is(counters=replace(s.lane.counters, failures=s.lane.claim + 1))


def _fragment_of_a_dead_try(s: Scene) -> None:
    s.write(AssistantTextDelta(text="dead"), turn=TURN)


def _aborted_twice(s: Scene) -> None:
    s.write(AssistantMessageAborted(turn_id=TURN, reason=AbortReason.ATTEMPT_DIED), turn=TURN)


def _open_turn_forgotten(s: Scene) -> None:
    s.lane_is(open_turn=None)


def _unreadable(s: Scene) -> None:
    s.log[2] = replace(s.log[2], body=b'{"kind":')


PLANTS: tuple[tuple[str, Callable[[Scene], None]], ...] = (
    ("I1", _conversation_lost),
    ("I1", _lane_lost),
    ("I1", _created_twice),
    ("I1", _submission_lost),
    ("I2", _hole_in_the_queue),
    ("I2", _key_lost),
    ("I2", _key_of_other_content),
    ("I3", _asleep),
    ("I3", _head_passed_over),
    ("I3", _steps_over_nothing),
    ("I3", _interleaved),
    ("I4", _attempt_lost),
    ("I4", _owner_without_attempt),
    ("I4", _ran_another_revision),
    ("I5", _write_of_another),
    ("I5", _second_input),
    ("I6", _record_lost),
    ("I6", _record_twice),
    ("I6", _clock_back),
    ("I6", _lane_behind_its_log),
    ("I7", _settlement_lost),
    ("I7", _settled_record_lost),
    ("I7", _settled_twice),
    ("I7", _goes_on_after_settlement),
    ("I7", _unread_miscounted),
    ("I8", _outcome_twice),
    ("I8", _outcome_of_nothing),
    ("I8", _ledger_row_lost),
    ("I8", _calls_miscounted),
    ("I10", _failures_below_zero),
    ("I10", _more_failures_than_claims),
    ("I12", _fragment_of_a_dead_try),
    ("I12", _aborted_twice),
    ("I12", _open_turn_forgotten),
    ("I15", _unreadable),
)


@pytest.mark.parametrize(("invariant", "plant"), PLANTS, ids=[f"{i}-{p.__name__.strip('_')}" for i, p in PLANTS])
async def test_a_planted_violation_is_found(invariant: str, plant: Callable[[Scene], None]) -> None:
    there, store = await scene()
    plant(there)
    found = await verify(store)

    assert invariant in {violation.invariant for violation in found}, [str(violation) for violation in found]
    assert {violation.conversation for violation in found} == {conversation_id(there.world.key())}


async def test_a_session_in_full_swing_is_clean() -> None:
    _, store = await scene()

    assert await verify(store) == []


async def test_pruned_records_are_no_hole() -> None:
    there, store = await scene()
    there.lane_is(pruned_to=5)
    del there.log[2:4]

    found = await verify(store)
    assert {violation.invariant for violation in found} <= {"I8", "I12"}, "what the pruned ones said is missing, no seq"


async def test_keys_alone_outlive_their_data() -> None:
    there, store = await scene()
    for name in Tables.__slots__:
        if name != "dispatches":
            getattr(there.tables, name).clear()

    assert await verify(store) == []
