"""The end of a pod's life, with real processes: a gateway's streams and requests, a worker's drain."""

import itertools
import signal
import socket
import threading
import time
from dataclasses import dataclass, field

import httpx2
import pytest

from support.fleet import Process
from support.site import Site

pytestmark = pytest.mark.timeout(150)

STREAMS = 20
LONG = "a long story " * 200
SLOW = {"id": "call_1", "name": "trigger-long-running-operation", "arguments": {"duration": 30, "steps": 2}}


@dataclass
class Reader:
    """A client of the stream: what it got, when it ended, and how."""

    url: str
    last: str = ""
    body: bytes = b""
    ended: float = 0.0
    error: str = ""
    begun: threading.Event = field(default_factory=threading.Event)

    def read(self, until: str = "") -> None:
        headers = {"Last-Event-ID": self.last} if self.last else {}
        try:
            with httpx2.stream("GET", f"{self.url}/agents/demo/s1{until}", headers=headers, timeout=40) as answer:
                for chunk in answer.iter_raw():
                    self.body += chunk
                    if b"event:" in self.body:
                        self.begun.set()
        except httpx2.HTTPError as error:
            self.error = repr(error)
        self.ended = time.monotonic()

    def frames(self) -> list[bytes]:
        """Whole frames; what is half of one fails."""
        assert self.body.endswith(b"\n\n"), self.body[-200:]
        return [frame for frame in self.body.split(b"\n\n") if frame.startswith(b"id:")]

    def resume(self, url: str) -> None:
        """As an EventSource does after a cut."""
        self.last = self.frames()[-1].split(b"\n")[0].removeprefix(b"id: ").decode()
        self.url = url
        self.read("?until=idle")


def term(process: Process) -> float:
    """SIGTERM; returns when."""
    process.popen.send_signal(signal.SIGTERM)
    return time.monotonic()


def readyz(port: int) -> tuple[int, str]:
    try:
        answer = httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=5)
    except httpx2.HTTPError as error:
        return 0, str(error)
    return answer.status_code, answer.text


def test_a_gateway_that_leaves_ends_its_streams_one_by_one_at_frames_and_answers_whoever_waits(here: Site) -> None:
    """In mid-run: readers come back elsewhere by the id that they have, and miss nothing."""
    here.mock.answer(
        [{"match": {"userMessage": "story"}, "response": {"content": LONG}, "latency": 20, "chunkSize": 20}]
    )
    leaving = here.gateway(STREAM_CLOSE_SECONDS="6")
    other = here.gateway()
    here.worker()
    here.post("story")
    readers = [Reader(leaving.url) for _ in range(STREAMS)]
    threads = [threading.Thread(target=reader.read) for reader in readers]
    for thread in threads:
        thread.start()
    assert all(reader.begun.wait(20) for reader in readers)
    waiting: list[httpx2.Response] = []
    waiter = threading.Thread(
        target=lambda: waiting.append(
            httpx2.post(
                f"{leaving.url}/agents/demo/s2?wait=true&timeout=40", json={"kind": "user", "body": "story"}, timeout=50
            )
        )
    )
    waiter.start()
    time.sleep(1)

    told = term(leaving)
    time.sleep(0.1)
    unready = readyz(leaving.health_port)
    late = httpx2.post(f"{leaving.url}/agents/demo/s3", json={"kind": "user", "body": "story"}, timeout=10)
    for thread in (*threads, waiter):
        thread.join(30)
    status = leaving.exit_status(within=15)
    ended = sorted(reader.ended - told for reader in readers)
    for reader in readers:
        reader.resume(other.url)
    whole = here.stream(gateway=1)

    assert unready[0] == 503
    assert "leaving" in unready[1]
    assert (late.status_code, late.headers["connection"]) == (202, "close")
    assert waiting[0].status_code in (200, 202), waiting[0].text
    assert [reader.error for reader in readers] == [""] * STREAMS
    assert ended[-1] < 6 + 3
    assert ended[-1] - ended[0] > 1, "a herd"
    assert max(later - sooner for sooner, later in itertools.pairwise(ended)) < 3
    assert status == 0
    assert b"retry: " in readers[0].body
    for reader in readers:
        assert b"\n\n".join(reader.frames()) == whole


def test_a_gateway_ends_within_its_grace_though_a_client_takes_nothing(here: Site) -> None:
    """One that reads no byte of its stream, one that stops in mid-request, one that keeps an idle connection."""
    leaving = here.gateway(STREAM_CLOSE_SECONDS="1")
    for n in range(8):
        here.post(f"{n}" + "x" * 1_000_000)
    stuck = socket.create_connection(("127.0.0.1", leaving.port))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(b"GET /agents/demo/s1 HTTP/1.1\r\nHost: x\r\n\r\n")
    half = socket.create_connection(("127.0.0.1", leaving.port))
    half.sendall(b"POST /agents/demo/s1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    idle = socket.create_connection(("127.0.0.1", leaving.port))
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(1)

    told = term(leaving)
    status = leaving.exit_status(within=20)
    took = time.monotonic() - told
    for client in (stuck, half, idle):
        client.close()

    assert status == 0
    assert took < 1 + 5 + 5, "STREAM_CLOSE_SECONDS, five for requests, and some to leave"


def test_a_worker_that_is_told_twice_hands_over_once_and_ends_well(here: Site) -> None:
    """A tool that outlasts the drain: given up at its end, the lane is another's at once and no failure is counted."""
    here.mock.answer(
        [
            {"match": {"userMessage": "slow", "sequenceIndex": 0}, "response": {"toolCalls": [SLOW]}},
            {"match": {"userMessage": "slow"}, "response": {"content": "Done."}},
        ]
    )
    here.gateway()
    first = here.worker(LEASE_SECONDS="60", DRAIN_SECONDS="2")
    submission = here.post("slow")
    end = time.monotonic() + 20
    while not [record for record in here.records() if record["kind"] == "assistant_tool_call"]:
        assert time.monotonic() < end, [record["kind"] for record in here.records()]
        time.sleep(0.1)

    told = term(first)
    time.sleep(0.3)
    unready = readyz(first.health_port)
    term(first)
    status = first.exit_status(within=20)
    took = time.monotonic() - told
    here.worker()
    settled = here.settled(submission, within=30)

    assert status == 0
    assert unready[0] == 503
    assert "draining" in unready[1]
    assert 2 <= took < 2 + 8
    assert settled["payload"]["status"] == "succeeded"
    assert here.submission(submission)["attempts"] == 2
    assert "drained: nothing is held" in first.said()


def test_a_worker_without_a_database_still_ends_within_its_grace(here: Site) -> None:
    """It can say goodbye to nobody, and hands nothing over: its leases run out."""
    lost = here.worker(ready=False, DATABASE_URL="postgresql://u@127.0.0.1:1/d", DRAIN_SECONDS="1")
    end = time.monotonic() + 20
    while "nothing listens" not in readyz(lost.health_port)[1]:
        assert time.monotonic() < end, lost.said()
        time.sleep(0.1)

    told = term(lost)

    assert lost.exit_status(within=20) == 0
    assert time.monotonic() - told < 8
