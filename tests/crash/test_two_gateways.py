"""Gateways meet only in Postgres: hints are fast, polls suffice without them, and every reader gets the same bytes."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from support.site import Site, of_kind

pytestmark = pytest.mark.timeout(180)

PARTS = "".join(f"part {n:03d} of a long answer. " for n in range(300))


def first_frame_after(url: str, started: threading.Event, got: list[float]) -> None:
    """Read a stream until its first frame; notes when that came."""
    with httpx2.stream("GET", url, timeout=30) as answer:
        started.set()
        seen = b""
        for chunk in answer.iter_raw():
            seen += chunk
            if b"event:" in seen:
                got.append(time.monotonic())
                return


def test_a_record_written_through_one_gateway_reaches_a_reader_of_the_other_within_a_second(here: Site) -> None:
    here.mock.answer([{"match": {"userMessage": "hi"}, "response": {"content": "Hi."}}])
    here.gateway(POLL_MILLISECONDS="60000")
    here.gateway(POLL_MILLISECONDS="60000")
    started, got = threading.Event(), list[float]()
    reader = threading.Thread(
        target=first_frame_after, args=(f"{here.gateways[1].url}/agents/demo/s1", started, got), daemon=True
    )
    reader.start()
    assert started.wait(10)
    time.sleep(0.3)

    here.post("hi", gateway=0)
    posted = time.monotonic()
    reader.join(10)

    assert got, "no frame came"
    assert got[0] - posted < 1.0


def test_with_hints_cut_the_poll_still_brings_everything(here: Site) -> None:
    here.mock.answer([{"match": {"userMessage": "hi"}, "response": {"content": "Hi."}}])
    here.gateway(POLL_MILLISECONDS="1000", HINTS="false")
    here.gateway(POLL_MILLISECONDS="1000", HINTS="false")
    here.worker(HINTS="false")
    submission = here.post("hi", gateway=0)

    answer = httpx2.get(f"{here.gateways[1].url}/submissions/{submission}?wait=true", timeout=30)

    assert answer.status_code == 200
    assert here.stream(gateway=0) == here.stream(gateway=1)
    assert b"submission_settled" in here.stream(gateway=1)


def test_fifty_equal_posts_at_once_through_two_gateways_are_one_submission_c19(here: Site) -> None:
    here.mock.answer([{"match": {"userMessage": "pay"}, "response": {"content": "Paid."}}])
    here.gateway()
    here.gateway()
    here.worker()
    body = {"kind": "user", "body": "pay", "dispatchId": "k1"}

    def post(n: int) -> tuple[int, str]:
        url = f"{here.gateways[n % 2].url}/agents/demo/new-instance"
        answer = httpx2.post(url, json=dict(reversed(body.items())) if n % 3 else body, timeout=30)
        return answer.status_code, answer.text

    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(post, range(50)))

    assert {status for status, _ in answers} == {202}
    assert len({text for _, text in answers}) == 1
    other = httpx2.post(f"{here.gateways[0].url}/agents/demo/new-instance", json={**body, "body": "pay "}, timeout=30)
    assert other.status_code == 409
    assert other.json()["code"] == "dispatch_conflict"
    submission = httpx2.post(f"{here.gateways[0].url}/agents/demo/new-instance", json=body, timeout=30).json()
    end = time.monotonic() + 20
    while here.submission(submission["submissionId"])["state"] != "settled" and time.monotonic() < end:
        time.sleep(0.1)
    records = here.records("/agents/demo/new-instance")
    assert len(of_kind(records, "user_message")) == 1
    assert len(of_kind(records, "submission_settled")) == 1
    assert len(here.mock.requests()) == 1
    again = httpx2.post(f"{here.gateways[1].url}/agents/demo/new-instance", json=body, timeout=30)
    assert again.json() == submission
    here.verify()


def test_two_readers_with_reconnects_restarts_and_a_kill_get_the_same_frames_c23(here: Site) -> None:
    here.mock.answer(
        [{"match": {"userMessage": "long"}, "response": {"content": PARTS}, "latency": 12, "chunkSize": 24}]
    )
    here.gateway()
    here.gateway()
    doomed = here.worker()
    spare = here.worker()
    submission = here.post("long")
    frames: list[bytes] = []

    def read_in_pieces() -> None:
        """B: leaves after every seventh frame and comes back with Last-Event-ID."""
        last = ""
        while not any(b"submission_settled" in frame for frame in frames):
            headers = {"Last-Event-ID": last} if last else {}
            try:
                with httpx2.stream(
                    "GET", f"{here.gateways[1].url}/agents/demo/s1", headers=headers, timeout=20
                ) as answer:
                    seen, count = b"", 0
                    for chunk in answer.iter_raw():
                        seen += chunk
                        while b"\n\n" in seen:
                            frame, seen = seen.split(b"\n\n", 1)
                            if b"event:" in frame:
                                frames.append(frame.removeprefix(b"retry: 2000\n"))
                                last = frame.split(b"id: ")[1].split(b"\n")[0].decode()
                                count += 1
                        if count >= 7:
                            break
            except (httpx2.HTTPError, OSError):
                time.sleep(0.2)

    reader = threading.Thread(target=read_in_pieces, daemon=True)
    reader.start()
    time.sleep(1.5)
    doomed.kill()
    time.sleep(1)
    ports = [gateway.port for gateway in here.gateways]
    for index, gateway in enumerate(list(here.gateways)):
        gateway.stop()
        here.gateways[index] = here.processes.start("gateway", AUTH="none", PORT=str(ports[index])).wait_ready()
    here.settled(submission, within=90)
    reader.join(30)
    whole = [frame for frame in here.stream(gateway=0).split(b"\n\n") if frame]

    assert frames == whole
    ids = [frame.split(b"id: ")[1].split(b"\n")[0] for frame in whole]
    assert ids == sorted(set(ids))
    assert spare.alive()
    here.verify()
