"""The blocks of the README and of the walkthrough run as printed; only the port is another."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from support.fleet import Fleet, Process, fleet, free_port
from support.site import of_kind

pytestmark = pytest.mark.timeout(120)

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "basic"
PORT = "8484"
SECONDS = 40.0
LATE_SECONDS = 2.0
"""What a frame may be behind its record: much less than the pause within the story, even on a busy machine."""


def blocks(text: str) -> list[str]:
    """The ```sh blocks of a text, those marked `skip` left out."""
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def section(text: str, title: str) -> str:
    """A section with its heading's text."""
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


@dataclass(slots=True)
class Shell:
    """Runs blocks with bash in a folder, as somebody would in a second terminal."""

    folder: Path
    port: int

    def __post_init__(self) -> None:
        # The README's lines print bodies alone; curl's own settings file has it say the status too.
        (self.folder / ".curlrc").write_text('write-out = "%{stderr}%{http_code}\\n"\n')

    def run(self, block: str) -> tuple[str, list[int]]:
        """A block that ends: what it printed, and the status of each request."""
        done = subprocess.run(
            ["bash", "-c", self.ours(block)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{block}\nended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout, [int(line) for line in done.stderr.split() if line.isdigit()]

    def start(self, block: str) -> "subprocess.Popen[bytes]":
        """A block that does not end by itself."""
        return subprocess.Popen(
            ["bash", "-c", self.ours(block)],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ours(self, block: str) -> str:
        """The block with our port."""
        return block.replace(f"localhost:{PORT}", f"localhost:{self.port}")

    def environment(self) -> dict[str, str]:
        """Nothing of ours but where to listen."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("KUBEHARNESS_")}
        proxies = {"http_proxy": "", "HTTP_PROXY": "", "all_proxy": "", "ALL_PROXY": ""}
        return {**kept, **proxies, "CURL_HOME": str(self.folder), "KUBEHARNESS_PORT": str(self.port)}


@dataclass(slots=True)
class Watch:
    """The frames of a stream that stays open, each with the moment it came."""

    popen: "subprocess.Popen[bytes]"
    frames: list[tuple[float, Json]] = field(default_factory=list)

    def read(self) -> None:
        """Collect frames until the stream ends."""
        assert self.popen.stdout is not None
        frame: dict[str, str] = {}
        for line in self.popen.stdout:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                frame[name] = value
            elif "data" in frame:
                data = json.loads(frame["data"])
                assert (frame["id"], frame["event"]) == (data["id"], data["kind"])
                self.frames.append((time.time(), data))
                frame = {}

    def records(self) -> list[Json]:
        """What came so far."""
        return [record for _, record in self.frames]


@contextlib.contextmanager
def watching(shell: Shell, block: str) -> Iterator[Watch]:
    """Run a block that streams, and end it with what it started."""
    watch = Watch(shell.start(block))
    thread = threading.Thread(target=watch.read, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        os.killpg(watch.popen.pid, signal.SIGKILL)  # a group of our own making: bash and its curl
        watch.popen.wait(10)
        thread.join(10)
        if watch.popen.stdout is not None:
            watch.popen.stdout.close()


def until(holds: Callable[[], Any], why: Callable[[], object]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
    return found


def dev(processes: Fleet, port: int) -> Process:
    """What `make run` runs."""
    started = processes.start(f"dev -f {EXAMPLE}", name="dev", PORT=str(port))
    started.port = port
    return started.wait_ready()


@pytest.fixture
def readme() -> list[str]:
    """The blocks after `make run`."""
    first, *rest = blocks(section((ROOT / "README.md").read_text(), "Run it"))
    assert first.strip() == "make run"
    assert f"kubeharness dev -f {EXAMPLE.relative_to(ROOT)}" in (ROOT / "Makefile").read_text()
    return rest


def test_the_blocks_of_the_readme_do_what_it_says(readme: list[str], tmp_path: Path) -> None:
    fire, wait, watch, story, steer = readme
    shell = Shell(tmp_path, free_port())
    with fleet(tmp_path) as processes:
        process = dev(processes, shell.port)
        body, statuses = shell.run(fire)
        assert statuses == [202]
        assert set(json.loads(body)) == {"submissionId", "conversationId"}
        body, statuses = shell.run(wait)
        assert statuses == [200]
        assert json.loads(body)["status"] == "succeeded"
        assert json.loads(body)["output"].startswith("Hello!")

        with watching(shell, watch) as seen:
            until(lambda: len(of_kind(seen.records(), "submission_settled")) == 2, process.said)
            replayed = len(seen.frames)
            body, statuses = shell.run(story)
            assert statuses == [202]
            told = json.loads(body)["submissionId"]
            until(lambda: of_kind(seen.records()[replayed:], "assistant_thinking_delta"), process.said)
            body, statuses = shell.run(steer)
            assert statuses == [200]
            assert json.loads(body)["status"] == "injected"
            until(lambda: of_kind(seen.records()[replayed:], "submission_settled"), process.said)

        live = seen.frames[replayed:]
        assert {record["submissionId"] for _, record in live} == {told}
        ids = [record["id"] for record in seen.records()]
        assert ids == sorted(set(ids))
        late = [at - datetime.fromisoformat(record["time"]).timestamp() for at, record in live]
        assert max(late) < LATE_SECONDS, f"frames were held back: {late}"
        assert live[-1][0] - live[0][0] > 4, "the frames of a run of five seconds came all at once"
        [steered] = [r for r in of_kind(seen.records(), "user_message") if r["payload"].get("via") == "steer"]
        assert steered["payload"]["body"] == "answer in French"
        answer = of_kind(seen.records(), "assistant_message_completed")[-1]
        said = answer["payload"]["message"]["body"]["parts"][-1]["text"]
        assert said.startswith("D'accord, en français.")
        assert "answer in French" in said  # so it was in the model's request
        assert seen.records()[-1]["payload"]["status"] == "succeeded"
        assert process.stop() == 0


def test_a_story_whose_process_is_killed_settles_once_and_shows_both_attempts(
    readme: list[str], tmp_path: Path
) -> None:
    story = readme[3]
    shell = Shell(tmp_path, free_port())
    with fleet(tmp_path) as processes:
        process = dev(processes, shell.port)
        submission = json.loads(shell.run(story)[0])["submissionId"]
        until(lambda: of_kind(records(shell.port), "assistant_thinking_delta"), process.said)

        assert process.kill() == -9
        process = dev(processes, shell.port)
        until(lambda: of_kind(records(shell.port), "submission_settled"), process.said)

        log = records(shell.port)
        [settled] = of_kind(log, "submission_settled")
        assert settled["submissionId"] == submission
        assert settled["payload"]["status"] == "succeeded"
        assert (settled["payload"]["attempts"], settled["payload"]["failures"]) == (2, 1)
        assert len({record["attemptId"] for record in log if "attemptId" in record}) == 2
        assert len(of_kind(log, "user_message")) == 1
        assert [r["payload"]["reason"] for r in of_kind(log, "assistant_message_aborted")] == ["attempt_died"]
        process.stop()
        processes.run("verify", DATABASE_URL="sqlite:harness-data/kubeharness.sqlite")


def records(port: int) -> list[Json]:
    answer = httpx2.get(f"http://127.0.0.1:{port}/agents/assistant/demo/records?limit=1000", timeout=10)
    assert answer.status_code == 200, answer.text
    return cast("list[Json]", answer.json()["records"])


# What each block of the walkthrough prints, in its order.
WALKTHROUGH = (
    r"^$",
    r'"status":"(ok|ready)"',
    r'"submissionId":"sub_.*"conversationId":"conv_',
    r'"status":"succeeded".*"output":"Hello!',
    r"(?s)event: conversation_created.*event: tool_outcome.*(event: submission_settled.*){2}",
    r'"messages":\[.*"submissions":\[\]',
    r'(?s)"submissionId".*"status":"injected"',
    r"D'accord, en français. Vous avez dit : answer in French",
    r'"submissionId"',
    r'"status":"(ok|ready)"',
    r'"status":"succeeded".*"output":"Once upon a time',
    r'\A"attemptId":"att_\w+"\n"attemptId":"att_\w+"\n\Z',
    r"\A1\n\Z",
    r"^$",
)


def test_the_walkthrough_of_the_basic_example_goes_as_printed(tmp_path: Path) -> None:
    printed = blocks((EXAMPLE / "README.md").read_text())
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    shell = Shell(tmp_path, free_port())
    pids = tmp_path / "harness-data" / "dev.pid"
    started: list[int] = []
    try:
        for block, expected in zip(printed, WALKTHROUGH, strict=True):
            said, statuses = shell.run(block)
            if "dev.pid" in block and "&" in block:
                started.append(int(pids.read_text()))
            log = (tmp_path / "harness-data" / "dev.log").read_text()
            assert re.search(expected, said), f"{block}\nprinted {said}\nnot {expected}; the log says {log}"
            assert all(status in (200, 202) for status in statuses if status), (block, statuses)
        assert len(started) == 2
        until(lambda: not any(map(runs, started)), lambda: "it did not stop")
    finally:
        for pid in started:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether a process of ours is there and is no mere entry of a dead one."""
    try:
        return "kubeharness" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
