"""A locked lane while its items are applied, with as much of its ledger and inbox as was read."""

from collections.abc import Sequence
from dataclasses import replace

from kubeharness.core.errors import Conflict
from kubeharness.core.ids import CallId, InboxId
from kubeharness.core.lane import CallState, InboxMessage, Lane, OpenCall
from kubeharness.engine.ports import Append
from kubeharness.store.backend import InboxRow, RaceLost, Writes

_RUNNABLE = (CallState.RECORDED, CallState.APPROVED)


class LockedLane:
    """The state of one lane in a transaction.

    Asking for a ledger or an inbox that was not read raises RaceLost: the batch is run again, singly.
    """

    def __init__(
        self,
        lane: Lane | None,
        calls: dict[CallId, OpenCall] | None,
        unread: dict[InboxId, InboxMessage] | None,
    ) -> None:
        self._before = lane
        self._lane = lane
        self._calls_before = calls or {}
        self._calls = None if calls is None else dict(calls)
        self._unread_before = unread or {}
        self._unread = None if unread is None else dict(unread)
        self.put: dict[InboxId, InboxRow] = {}
        """Messages of this very transaction."""

    @property
    def exists(self) -> bool:
        """Whether there is a lane yet."""
        return self._lane is not None

    @property
    def lane(self) -> Lane:
        """The lane as of the last item."""
        assert self._lane is not None
        return self._lane

    @lane.setter
    def lane(self, lane: Lane) -> None:
        self._lane = lane

    @property
    def calls(self) -> dict[CallId, OpenCall]:
        """The ledger as of the last item."""
        if self._calls is None:
            raise RaceLost("the ledger was not read")
        return self._calls

    @calls.setter
    def calls(self, calls: dict[CallId, OpenCall]) -> None:
        self._calls = calls

    @property
    def unread(self) -> dict[InboxId, InboxMessage]:
        """The inbox as of the last item."""
        if self._unread is None:
            raise RaceLost("the inbox was not read")
        return self._unread

    def consume(self, ids: Sequence[InboxId]) -> None:
        """Take messages out of the inbox. Raises Conflict, and takes none, if one is not in it."""
        left = dict(self.unread)
        for message in ids:
            if left.pop(message, None) is None:
                raise Conflict(f"message {message} is not unread")
        self._unread = left

    def receive(self, message: InboxMessage, *, at: int) -> None:
        """Put a message."""
        self.put[message.id] = InboxRow(message=message, at=at)
        if self._unread is not None:
            self._unread[message.id] = message

    def empty(self) -> None:
        """The head is settled: all that it had open is closed."""
        self._calls, self._unread = {}, {}

    def collect(self, writes: Writes) -> None:
        """What has changed, each row once: a call that was opened and closed leaves nothing."""
        lane = self._lane
        if lane is None:
            return
        if self._before is None:
            writes.lanes_new.append(lane)
        elif lane != self._before:
            writes.lanes.append(lane)
        if self._calls is not None:
            self._collect_calls(lane, self._calls, writes)
        unread = self._unread
        if unread is None:
            writes.inbox_put += self.put.values()
        else:
            writes.inbox_put += [replace(row, consumed=message not in unread) for message, row in self.put.items()]
            writes.inbox_consumed += [(lane.id, message) for message in self._unread_before if message not in unread]

    def _collect_calls(self, lane: Lane, calls: dict[CallId, OpenCall], writes: Writes) -> None:
        before = self._calls_before
        writes.calls_closed += [(lane.id, call) for call in before if call not in calls]
        for call_id, call in calls.items():
            if call_id not in before:
                writes.calls_opened.append(call)
            elif call.state is not before[call_id].state:
                writes.calls_changed.append((lane.id, call_id, call.state))


def ledger_after(item: Append, locked: LockedLane) -> dict[CallId, OpenCall]:
    """The ledger with an append's calls opened, started and closed. Raises Conflict where it does not fit (I8)."""
    calls = dict(locked.calls)
    for call in item.opened:
        if call.call_id in calls:
            raise Conflict(f"call {call.call_id} is open already")
        calls[call.call_id] = call
    for started in item.started:
        if started not in calls or calls[started].state not in _RUNNABLE:
            raise Conflict(f"call {started} does not wait to be started")
        calls[started] = replace(calls[started], state=CallState.STARTED)
    for closed in item.closed:
        if calls.pop(closed, None) is None:
            raise Conflict(f"call {closed} is not open")
    return calls
