"""What a log must look like on its own: pure, fed one record at a time, in order (I3, I6, I7, I8, I12)."""

from dataclasses import dataclass, field

from kubeharness.core.codec import decode_record
from kubeharness.core.ids import CallId, ConversationId, SubmissionId, TurnId
from kubeharness.core.records import (
    AssistantMessageAborted,
    AssistantMessageCompleted,
    AssistantMessageStarted,
    AssistantTextDelta,
    AssistantThinkingDelta,
    AssistantToolCall,
    Compaction,
    ConversationCreated,
    Record,
    RunWarning,
    Signal,
    StoredRecord,
    SubmissionSettled,
    ToolOutcome,
    UserMessage,
)


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold somewhere."""

    invariant: str
    conversation: ConversationId
    what: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.invariant} {self.conversation}: {self.what}"


@dataclass(slots=True)
class LogRules:
    """Reads one log and collects what is wrong with it, and what the rows must agree with."""

    conversation: ConversationId
    positions: dict[SubmissionId, int]
    """Those that the rows know."""
    pruned_to: int = 0
    violations: list[Violation] = field(default_factory=list)
    last: StoredRecord | None = None
    settled: dict[SubmissionId, StoredRecord] = field(default_factory=dict)
    open_turn: TurnId | None = None
    open_calls: dict[CallId, SubmissionId] = field(default_factory=dict)
    _closed: set[CallId] = field(default_factory=set)
    _ended: set[TurnId] = field(default_factory=set)
    _current: SubmissionId | None = None
    """Whose records are being written: of one submission at a time."""
    _reached: int = 0
    _inputs: set[SubmissionId] = field(default_factory=set)

    def wrong(self, invariant: str, what: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(invariant, self.conversation, what))

    def feed(self, stored: StoredRecord) -> None:
        """Look at the next record."""
        self._order(stored)
        self.last = stored
        try:
            record = decode_record(stored)
        except (ValueError, KeyError, TypeError) as error:
            self.wrong("I15", f"record {stored.seq} cannot be read: {error}")
            return
        if record.kind != stored.kind or record.conversation_id != self.conversation:
            self.wrong("I6", f"record {stored.seq} says kind {record.kind} of {record.conversation_id}")
        if isinstance(record.payload, ConversationCreated) != (stored.seq == 1):
            self.wrong("I1", f"record {stored.seq} is a {record.kind}")
        if record.submission_id is not None:
            self._of_submission(record, stored)

    def _order(self, stored: StoredRecord) -> None:
        last = self.last
        expected = last.seq + 1 if last else 1
        if stored.seq != expected and not (expected < stored.seq and stored.seq - 1 <= self.pruned_to):
            self.wrong("I6", f"record {stored.seq} where {expected} was expected")
        if last is not None and stored.milliseconds < last.milliseconds:
            self.wrong("I6", f"the id of record {stored.seq} is not greater than the one before")

    def _of_submission(self, record: Record, stored: StoredRecord) -> None:
        submission = record.submission_id
        assert submission is not None
        if submission not in self.positions:
            self.wrong("I1", f"record {record.seq} is of {submission}, which was never admitted")
            return
        if submission in self.settled:
            self.wrong("I7", f"record {record.seq} ({record.kind}) follows the settlement of {submission}")
            return
        if submission != self._current:
            if isinstance(record.payload, SubmissionSettled):  # its only record: cancelled before it began
                self._alone(submission, stored)
                return
            self._begin(submission, record)
        self._content(record, submission)
        if isinstance(record.payload, SubmissionSettled):
            self._settle(submission, stored)

    def _alone(self, submission: SubmissionId, stored: StoredRecord) -> None:
        """A settlement without a run may stand among another's records, of one that comes before it in the queue."""
        self.settled[submission] = stored
        if self.positions[submission] <= self._reached:
            self.wrong("I3", f"position {self.positions[submission]} settles after position {self._reached} began")

    def _begin(self, submission: SubmissionId, record: Record) -> None:
        if self._current is not None and self._current not in self.settled:
            self.wrong("I3", f"record {record.seq} of {submission} stands among those of {self._current}")
        if self.positions[submission] <= self._reached:
            self.wrong("I3", f"position {self.positions[submission]} begins after position {self._reached}")
        self._reached = max(self._reached, self.positions[submission])
        self._current = submission

    def _settle(self, submission: SubmissionId, stored: StoredRecord) -> None:
        self.settled[submission] = stored
        if self.open_turn is not None:
            self.wrong("I12", f"{submission} settled while the message of turn {self.open_turn} was open")
            self.open_turn = None
        for call in [call for call, of in self.open_calls.items() if of == submission]:
            self.wrong("I8", f"{submission} settled without an outcome of call {call}")
            del self.open_calls[call]

    # --- content ---------------------------------------------------------------------------------------------------

    def _content(self, record: Record, submission: SubmissionId) -> None:
        payload = record.payload
        match payload:
            case UserMessage() if payload.via not in (None, "dispatch"):
                if payload.undelivered is None and submission not in self._inputs:
                    self.wrong("I12", f"record {record.seq} ({payload.via}) comes before the input of {submission}")
            case UserMessage() | Signal():
                if submission in self._inputs:
                    self.wrong("I5", f"record {record.seq} is a second input of {submission}")
                self._inputs.add(submission)
            case SubmissionSettled() | RunWarning() | ConversationCreated():
                pass
            case AssistantMessageStarted():
                self._needs_input(record, submission)
                self._start(record)
            case AssistantTextDelta() | AssistantThinkingDelta():
                if record.turn_id != self.open_turn:
                    self.wrong("I12", f"record {record.seq} is a fragment of turn {record.turn_id}, which is not open")
            case AssistantMessageCompleted():
                self._end(record, record.turn_id)
            case AssistantMessageAborted():
                self._end(record, payload.turn_id)
            case AssistantToolCall():
                self._open(record, payload.call_id, submission)
            case ToolOutcome():
                self._close(record, payload.call_id)
            case Compaction():
                self._needs_input(record, submission)
            case _:
                pass  # a later release's kind

    def _needs_input(self, record: Record, submission: SubmissionId) -> None:
        if submission not in self._inputs:
            self.wrong("I12", f"record {record.seq} ({record.kind}) comes before the input of {submission}")

    def _start(self, record: Record) -> None:
        if self.open_turn is not None:
            self.wrong("I12", f"record {record.seq} begins a message while that of turn {self.open_turn} is open")
        if record.turn_id in self._ended:
            self.wrong("I12", f"record {record.seq} begins turn {record.turn_id} again")
        self.open_turn = record.turn_id

    def _end(self, record: Record, turn: TurnId | None) -> None:
        if turn is None or turn != self.open_turn:
            self.wrong("I12", f"record {record.seq} ({record.kind}) ends turn {turn}, which is not open")
        else:
            self._ended.add(turn)
        self.open_turn = None

    def _open(self, record: Record, call: CallId, submission: SubmissionId) -> None:
        if call in self.open_calls or call in self._closed:
            self.wrong("I8", f"record {record.seq} records call {call} again")
            return
        self.open_calls[call] = submission

    def _close(self, record: Record, call: CallId) -> None:
        if call in self._closed:
            self.wrong("I8", f"record {record.seq} is a second outcome of call {call}")
        elif self.open_calls.pop(call, None) is None:
            self.wrong("I8", f"record {record.seq} is the outcome of call {call}, which nobody asked for")
        self._closed.add(call)
