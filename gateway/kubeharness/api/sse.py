"""Record to frame: the id is the offset, the event is the kind, the data is the record as it is stored, on one line."""

from kubeharness.core.ids import record_id
from kubeharness.core.records import StoredRecord

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
HEARTBEAT = b":\n\n"


def frame(record: StoredRecord) -> bytes:
    """The frame of a record. JSON escapes CR and LF, so each record is one frame for every client (C25)."""
    offset = record_id(record.milliseconds, record.seq, record.bits).encode()
    head = (b"id: ", offset, b"\nevent: ", record.kind.encode())
    return b"".join((*head, b'\ndata: {"id":"', offset, b'",', record.body[1:], b"\n\n"))


def opening(retry_milliseconds: int) -> bytes:
    """What a stream begins with: it leaves at once, so proxies pass the headers on."""
    return b"retry: %d\n\n" % retry_milliseconds
