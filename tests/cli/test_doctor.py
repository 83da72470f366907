"""`kubeharness doctor`, as a process, through real hops to a real gateway and worker: what is broken is named (C22)."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kubeharness.api.auth import Auth
from kubeharness.api.settings import ApiSettings
from kubeharness.api.tokens import Tokens
from kubeharness.cli import app
from kubeharness.cli.publication import publish
from kubeharness.composition import Stored, open_secrets, open_store, open_worker
from kubeharness.settings import Settings
from support.fleet import fleet
from support.gateways import Served, gateway
from support.hops import Hop, hop
from support.nginx import nginx

pytestmark = pytest.mark.timeout(180)  # streams are watched for seconds, several in a test

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "doctor"
HEARTBEAT = 1.2
WATCH = "4"
PREFIX = "/harness/eu"


@pytest.fixture
def hasty(tmp_path: Path) -> Path:
    """The example, spoken fast: for what is not about the stream."""
    folder = tmp_path / "hasty"
    folder.mkdir()
    for file in EXAMPLE.glob("*.yaml"):
        text = file.read_text()
        (folder / file.name).write_text(text.replace("chunkDelayMilliseconds: 125", "chunkDelayMilliseconds: 5"))
    return folder


@dataclass(frozen=True, slots=True)
class Report:
    """What doctor said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def codes(self) -> list[str]:
        return [finding["code"] for finding in self.json["findings"]]

    def finding(self, code: str) -> dict[str, str]:
        [one] = [finding for finding in self.json["findings"] if finding["code"] == code]
        found: dict[str, str] = one
        return found


async def doctor(url: str, *options: str, output: str = "json", watch: str = WATCH) -> Report:
    """In a thread with a loop of its own: a process would take longer to start than to look."""
    words = ["doctor", url, "--watch", watch, "--output", output, *options]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Report(done.exit_code, done.stdout, done.stderr)


async def doctor_process(url: str, *options: str) -> Report:
    env = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kubeharness", "doctor", url, "--watch", "1", "--output", "json", *options),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    return Report(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def installation(
    *, worker: bool = True, root_path: str = "", files: Path = EXAMPLE, auth: Auth | None = None
) -> AsyncIterator[Served]:
    """The example published, a gateway with a quick heartbeat, and a worker unless it is the one that lacks."""
    settings = Settings.model_validate({"database_url": "memory:", "secrets": "env", "poll_milliseconds": 50})
    api = ApiSettings(heartbeat_seconds=HEARTBEAT, root_path=root_path)
    async with open_store(settings) as stored:
        await publish(stored.store, await stored.store.epoch("test"), [files], namespace="default")
        async with (
            gateway(stored.store, stored.waker, settings=api, auth=auth) as served,
            _working(settings, stored) if worker else _nothing(),
        ):
            if worker:
                await _live(served, auth)
            yield served


async def _live(served: Served, auth: Auth | None) -> None:
    async with asyncio.timeout(10):
        while auth is None and (await served.runtime.agent("default", "doctor")).workers == 0:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _working(settings: Settings, stored: Stored) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with (
        open_secrets(settings) as secrets,
        open_worker(settings, stored, secrets) as worker,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(worker.run(stop))
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


async def test_a_way_that_is_well_has_no_findings_and_is_measured_c22() -> None:
    async with installation() as served, hop(Hop(served.url)) as plain:
        report = await doctor(plain.url)
        text = await doctor(plain.url, output="text", watch="1")

    [measured] = report.json["measured"]
    assert (report.code, report.json["well"], report.codes) == (0, True, [])
    assert measured["settled"] == "succeeded"
    assert measured["workers"] == 1
    assert measured["hop"] == "via: 1.1 test-hop"
    assert measured["records"] >= 10
    assert measured["writtenSeconds"] > 3
    assert abs(measured["writtenSeconds"] - measured["arrivedSeconds"]) < 1
    assert measured["idleFirstByteSeconds"] < 1
    assert len(measured["idleHeartbeatsAt"]) >= 2
    assert (text.code, "well: nothing is held back" in text.out) == (0, True)


async def test_a_hop_that_holds_the_stream_back_is_named_and_told_from_the_gateway_c22() -> None:
    async with installation() as served, hop(Hop(served.url, holds=True)) as holding:
        report = await doctor(holding.url, "--direct", served.url)
        alone = await doctor(holding.url, output="text")

    found = report.finding("buffering")
    assert (report.code, report.codes) == (1, ["buffering"])
    assert "records were written over" in found["seen"]
    assert f"between you and the gateway, since {served.url} does not show it" in found["hop"]
    assert "via: 1.1 test-hop" in found["hop"]
    assert "proxy_buffering off" in found["remedy"]
    assert alone.code == 1
    assert "buffering\n  seen" in alone.out
    assert "--direct tells" in alone.out


async def test_a_real_nginx_is_well_by_default_and_named_where_it_compresses_or_cuts_c22(tmp_path: Path) -> None:
    """nginx 1.22 passes frames on as they come even where it buffers; its gzip is what holds them back."""
    async with installation() as served:
        with (
            nginx(tmp_path / "plain", served.url) as plain,
            nginx(tmp_path / "gzip", served.url, GZIP) as compressing,
            nginx(tmp_path / "cut", served.url, "proxy_read_timeout 1s;") as cutting,
        ):
            well = await doctor(plain)
            held = await doctor(compressing, "--direct", served.url, watch="3.5")
            cut = await doctor(cutting)

    assert (well.code, well.codes) == (0, [])
    assert well.json["measured"][0]["hop"].startswith("server: nginx")
    assert (held.code, held.codes) == (1, ["compressed", "buffering"])
    assert "server: nginx" in held.finding("buffering")["hop"]
    assert (cut.code, cut.codes) == (1, ["idle_cut"])


GZIP = "proxy_ignore_headers X-Accel-Buffering; gzip on; gzip_types text/event-stream; gzip_proxied any;"
"""With the header heeded, nginx flushes what it compresses, too."""


async def test_a_hop_that_cuts_what_is_idle_is_named_with_its_time_c22() -> None:
    async with installation() as served, hop(Hop(served.url, cuts_after=0.9)) as cutting:
        report = await doctor(cutting.url, "--direct", served.url)

    found = report.finding("idle_cut")
    assert (report.code, report.codes) == (1, ["idle_cut"])
    assert "cut twice, after 0.9" in found["seen"] or "cut twice, after 1." in found["seen"]
    assert "proxy_read_timeout" in found["remedy"]
    assert "between you and the gateway" in found["hop"]


async def test_a_hop_that_limits_how_long_an_answer_lasts_is_not_called_idle_c22() -> None:
    async with installation() as served, hop(Hop(served.url, lasts=3.0)) as limiting:
        report = await doctor(limiting.url, watch="5")

    assert report.code == 1
    assert "lifetime_cut" in report.codes
    assert "idle_cut" not in report.codes
    assert "timeouts.request: 0s" in report.finding("lifetime_cut")["remedy"]


async def test_a_prefix_that_is_taken_off_without_the_gateways_knowledge_is_named_c51(hasty: Path) -> None:
    async with installation(files=hasty) as served, hop(Hop(served.url, strips=PREFIX)) as stripping:
        report = await doctor(stripping.url, watch="1")
    async with installation(root_path=PREFIX, files=hasty) as told, hop(Hop(told.url, strips=PREFIX)) as stripping:
        mended = await doctor(stripping.url, watch="1")
        passed_on = await doctor(told.url + PREFIX, watch="1")

    found = report.finding("prefix_stripped")
    assert (report.code, report.codes) == (1, ["prefix_stripped"])
    assert f"called under {PREFIX}, the gateway links to /submissions/" in found["seen"]
    assert f"pathPrefix: {PREFIX}" in found["remedy"]
    assert f"KUBEHARNESS_ROOT_PATH={PREFIX}" in found["remedy"]
    assert [(mended.code, mended.codes), (passed_on.code, passed_on.codes)] == [(0, [])] * 2


async def test_a_prefix_that_is_passed_on_to_a_gateway_that_does_not_know_it_is_named_c51() -> None:
    async with installation(worker=False) as served:
        report = await doctor(served.url + PREFIX)

    assert (report.code, report.codes) == (1, ["prefix_unknown"])
    assert PREFIX in report.finding("prefix_unknown")["seen"]


async def test_no_worker_is_told_from_a_slow_one() -> None:
    async with installation(worker=False) as served, hop(Hop(served.url)) as plain:
        report = await doctor(plain.url, watch="1")

    found = report.finding("no_worker")
    assert (report.code, report.codes) == (1, ["no_worker"])
    assert "admitted (202) and stays queued; no worker is alive" in found["seen"]
    assert found["hop"] == "behind the gateway: the workers"
    assert "<release>-worker" in found["remedy"]


async def test_a_wrong_dsn_is_named_as_the_database(tmp_path: Path) -> None:
    with fleet(tmp_path, AUTH="none") as processes:
        lost = processes.start("gateway", DATABASE_URL="postgresql://app:hunter22@127.0.0.1:1/nothing")
        async with hop(Hop(lost.url)) as plain:
            report = await _answering(plain.url)
        # What a cluster shows: the pod is not ready, so the proxy in front has nobody to ask.
        async with hop(Hop("", answers=NO_SERVER)) as empty:
            outside = await doctor(empty.url)
            both = await doctor(empty.url, "--direct", lost.url)

    found = report.finding("database")
    assert (report.code, report.codes) == (1, ["database"])
    assert "503" in found["seen"]
    assert "DSN" in found["remedy"]
    assert "hunter22" not in report.out
    assert outside.codes == ["no_backend"]
    assert "server: nginx" in outside.finding("no_backend")["hop"]
    assert both.codes == ["database", "no_backend"]


async def _answering(url: str) -> Report:
    """Once the process listens."""
    async with asyncio.timeout(40):
        while True:
            report = await doctor(url)
            if report.code != 2:
                return report
            await asyncio.sleep(0.2)


async def test_what_it_lacks_itself_is_said_with_status_2(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("two words")
    async with installation(worker=False) as served:
        missing = await doctor(served.url, "--agent", "nobody", output="text")
        spaced = await doctor(served.url, "--token-file", str(token), output="text")
    gone = await doctor("http://127.0.0.1:1")
    wrong = await doctor("127.0.0.1:1", output="text")
    async with hop(Hop("", answers=REDIRECT)) as redirecting:
        elsewhere = await doctor(redirecting.url, output="text")

    assert [one.code for one in (missing, spaced, gone, wrong, elsewhere)] == [2] * 5
    assert "kubectl apply -f docs/examples/doctor" in missing.err
    assert "holds no token" in spaced.err
    assert "does not answer" in gone.json["notRun"]
    assert "no base URL" in wrong.err
    assert "redirects to https://else.test/; call that URL" in elsewhere.err


NO_SERVER = b"HTTP/1.1 503 Service Unavailable\r\nserver: nginx\r\ncontent-length: 9\r\n\r\nno server"
REDIRECT = b"HTTP/1.1 308 Permanent Redirect\r\nlocation: https://else.test/\r\ncontent-length: 0\r\n\r\n"


async def test_a_token_is_asked_for_and_borne_by_the_process(tmp_path: Path, hasty: Path) -> None:
    digest = hashlib.sha256(b"a-token").hexdigest()
    keys = tmp_path / "tokens.json"
    keys.write_text(json.dumps([{"name": "ci", "sha256": digest, "namespaces": ["default"], "rights": ["*"]}]))
    (tmp_path / "token").write_text("a-token\n")
    async with installation(auth=Tokens(keys), files=hasty) as served:
        nobody = await doctor(served.url, watch="1", output="text")
        known = await doctor_process(served.url, "--token-file", str(tmp_path / "token"))

    assert (nobody.code, "--token-file" in nobody.err) == (2, True)
    assert (known.code, known.codes) == (0, [])
    assert "a-token" not in known.out
