"""Clients as users write them: a dispatch is repeated under its id, a stream goes on from its last record."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

Json = dict[str, Any]

SECONDS = 70.0
"""Beyond the cap of ?wait=true."""
PAUSE = 0.2
IDLE_SECONDS = 30.0
"""A stream that says nothing for so long is dead: heartbeats come each 15 s."""


@dataclass(frozen=True, slots=True)
class Door:
    """The API as it is reached through one way in."""

    url: str
    """With the path prefix."""
    host: str
    """What the router knows it by."""
    token: str

    def client(self, **options: Any) -> httpx2.Client:
        """A client that carries the token. Where `host` does not resolve, the router is reached by its address."""
        headers = {"Host": self.host, "Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=SECONDS, trust_env=False, **options)

    def get(self, path: str, **query: Any) -> Json:
        """Something that must be there."""
        with self.client() as client:
            answer = client.get(path, params=query, headers={"Accept": "application/json"})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return dict(answer.json())

    def records(self, instance: str, agent: str = "assistant") -> list[Json]:
        """The whole log of an instance."""
        records: list[Json] = []
        after: str | None = None
        while True:
            query = {"limit": 500} | ({"after": after} if after else {})
            page = self.get(f"/agents/{agent}/{instance}/records", **query)
            records += page["records"]
            if not page.get("next"):
                return records
            after = records[-1]["id"]


@dataclass(slots=True)
class Frame:
    """One SSE frame as it came."""

    at: float
    id: str
    event: str
    data: str

    @property
    def record(self) -> Json:
        """What is in it."""
        return dict(json.loads(self.data))


class Reader:
    """Follows a conversation in a thread; after each end of a stream it goes on from the last record."""

    def __init__(self, door: Door, instance: str, agent: str = "assistant", *, after: str | None = None) -> None:
        self._door, self._path = door, f"/agents/{agent}/{instance}"
        self.instance = instance
        self._after = after
        self.frames: list[Frame] = []
        self.reconnects = 0
        self.refused: list[str] = []
        """Answers that were no stream: each is a failure of the installation."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Reader":
        """Begin to read."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop at the next frame or heartbeat, at the latest after a heartbeat's time."""
        self._stopped.set()

    def kinds(self) -> list[str]:
        """Which records came."""
        return [frame.event for frame in self.frames]

    def settled(self) -> int:
        """How many submissions have ended."""
        return self.kinds().count("submission_settled")

    def _follow(self) -> None:
        with self._door.client() as client:
            while not self._stopped.is_set():
                with suppress(httpx2.TransportError):
                    self._read(client)
                if not self._stopped.is_set():
                    self.reconnects += 1
                    time.sleep(PAUSE)

    def _read(self, client: httpx2.Client) -> None:
        last = self.frames[-1].id if self.frames else self._after
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        timeout = httpx2.Timeout(SECONDS, read=IDLE_SECONDS)
        with client.stream("GET", self._path, headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                answer.read()
                self.refused.append(f"{answer.status_code} {answer.text[:200]}")
                return
            frame: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if self._stopped.is_set():
                    return
                if name and not line.startswith(":"):
                    frame[name] = value
                elif "data" in frame:
                    self.frames.append(Frame(time.time(), frame["id"], frame["event"], frame["data"]))
                    frame = {}


@dataclass(slots=True)
class Sent:
    """What became of one dispatch."""

    dispatch: str
    instance: str
    submission: str
    status: str
    seconds: float


@dataclass(slots=True)
class Load:
    """Callers that each wait for an answer before the next dispatch, so many dispatches a second in all."""

    door: Door
    body: str = "hello there"
    agent: str = "assistant"
    rate: float = 10.0
    callers: int = 16
    sent: list[Sent] = field(default_factory=list)
    reconnects: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Answers that no client has to expect."""
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    _stopped: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: float = 0.0

    @contextmanager
    def running(self) -> Iterator["Load"]:
        """Send until the block ends; what is on its way is waited for."""
        self._next = time.monotonic()
        threads = [threading.Thread(target=self._call, args=(n,), daemon=True) for n in range(self.callers)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join(2 * SECONDS)
        assert not any(thread.is_alive() for thread in threads), "a caller got no answer"

    def instances(self) -> list[str]:
        """The instances that were spoken to."""
        return sorted({one.instance for one in self.sent})

    def said(self) -> str:
        """A line for people."""
        slowest = max((one.seconds for one in self.sent), default=0.0)
        return (
            f"{len(self.sent)} dispatches, {len(self.reconnects)} reconnects, {len(self.failed)} failed, "
            f"slowest {slowest:.1f} s"
        )

    def _call(self, number: int) -> None:
        instance = f"load-{self.run}-{number}"
        with self.door.client() as client:
            while self._turn():
                dispatch = uuid.uuid4().hex
                began = time.monotonic()
                answer = self._insist(client, "POST", f"/agents/{self.agent}/{instance}?wait=true", dispatch)
                while answer is not None and answer.status_code == 202:  # past the cap: ask on
                    path = f"/submissions/{answer.json()['submissionId']}?wait=true"
                    answer = self._insist(client, "GET", path, dispatch)
                if answer is None:
                    continue
                said = answer.json()
                status = said.get("status") or (said.get("settled") or {}).get("status", said.get("state"))
                sent = Sent(dispatch, instance, said["submissionId"], status, time.monotonic() - began)
                with self._lock:
                    self.sent.append(sent)

    def _turn(self) -> bool:
        """Wait for this caller's turn; False once the load is over."""
        with self._lock:
            at = self._next = max(self._next + 1 / self.rate, time.monotonic())
        self._stopped.wait(max(0.0, at - time.monotonic()))
        return not self._stopped.is_set()

    def _insist(self, client: httpx2.Client, method: str, path: str, dispatch: str) -> httpx2.Response | None:
        """Ask until an answer comes; a broken connection is a reconnect, an answer that is not right a failure."""
        content = {"kind": "user", "body": self.body, "dispatchId": dispatch} if method == "POST" else None
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                answer = client.request(method, path, json=content)
            except httpx2.TransportError as error:
                with self._lock:
                    self.reconnects.append(f"{type(error).__name__}: {error}")
                time.sleep(PAUSE)
                continue
            if answer.status_code in (200, 202):
                return answer
            with self._lock:
                self.failed.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
            return None
        with self._lock:
            self.failed.append(f"{method} {path}: no answer within {SECONDS:.0f} s")
        return None
