"""What is broken on the way to an installation is named: by `kubeharness doctor`, by a pod's Events, by readiness."""

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e_cluster.callers import Json
from e2e_cluster.conftest import Figures
from e2e_cluster.release import NAME, PREFIX, ROOT, Release, until
from support.hops import Hop, hop

pytestmark = pytest.mark.timeout(300)

EXAMPLE = ROOT / "docs" / "examples" / "doctor"
NOWHERE = "postgresql://nobody:SENTINEL@10.88.0.1:1/nothing"
REASON = "nothing listens at the host and port of the DSN"
PATIENCE_SECONDS = 45.0
"""Longer than a liveness probe bears: 3 times 10 s."""


@pytest.fixture(scope="module")
def service(installed: Release) -> Iterator[str]:
    """The gateway's Service, with the example's agent there; no hop lies between."""
    installed.kubectl("apply", "-f", str(EXAMPLE), namespace="default")
    installed.reaches("Ready", "True", "doctor")
    address = installed.kubectl("get", f"service/{NAME}-gateway", "-o", "jsonpath={.spec.clusterIP}")
    yield f"http://{address}:8484"
    installed.kubectl("delete", "-f", str(EXAMPLE), namespace="default")


@pytest.fixture
def token(installed: Release, tmp_path: Path) -> Path:
    """The administrator's token, in a file."""
    file = tmp_path / "token"
    file.write_text(installed.token())
    return file


def doctor(url: str, token: Path, *options: str) -> tuple[int, list[str], str]:
    """Exit code, the codes of its findings, and all that it said."""
    words = ["--token-file", str(token), "--namespace", "default", "--output", "json", *options]
    command = [sys.executable, "-m", "kubeharness", "doctor", url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1), said
    return done.returncode, [one["code"] for one in json.loads(done.stdout)["findings"]], said


@contextmanager
def between(broken: Hop) -> Iterator[str]:
    """The hop, served in a thread of its own; gives its URL."""
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with hop(broken):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield broken.url
    finally:
        stop.set()
        thread.join(10)


def test_doctor_finds_nothing_where_nothing_is_broken(service: str, token: Path) -> None:
    assert doctor(f"{service}{PREFIX}", token)[:2] == (0, [])


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ({"holds": True}, "buffering"),
        ({"cuts_after": 10.0}, "idle_cut"),
        ({"strips": "/elsewhere"}, "prefix_stripped"),
    ],
    ids=["buffering proxy", "10 s idle cut", "prefix stripped"],
)
def test_doctor_names_what_a_hop_does(
    service: str, token: Path, figures: Figures, broken: dict[str, Any], code: str
) -> None:
    with between(Hop(service, **broken)) as url:
        began = time.monotonic()
        ended, codes, said = doctor(url if "strips" in broken else f"{url}{PREFIX}", token)
    assert (ended, codes) == (1, [code]), said
    figures.say(f"doctor named {code} after {time.monotonic() - began:.0f} s")


def test_doctor_names_a_missing_worker(installed: Release, service: str, token: Path) -> None:
    installed.kubectl("scale", f"deployment/{NAME}-worker", "--replicas=0")
    until(lambda: not installed.pods("worker"), installed.said)
    try:
        ended, codes, said = doctor(f"{service}{PREFIX}", token)
    finally:
        installed.kubectl("scale", f"deployment/{NAME}-worker", "--replicas=2")
        installed.whole()
    assert (ended, codes) == (1, ["no_worker"]), said


def test_a_dsn_that_does_not_answer_is_told_and_restarts_nothing(installed: Release, service: str, token: Path) -> None:
    """Pods as the chart makes them, save for the DSN."""
    names = {component: f"lost-{component}" for component in ("gateway", "worker", "operator")}
    try:
        for component, name in names.items():
            installed.kubectl("apply", "-f", "-", input=json.dumps(lost(installed, component, name)))
        until(lambda: all(running(installed, name) for name in names.values()), installed.said)
        time.sleep(PATIENCE_SECONDS)
        for component, name in names.items():
            pod = shown(installed, name)
            [status] = pod["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (False, 0), component
            said = installed.kubectl("logs", name)
            assert REASON in said, said
            assert "SENTINEL" not in said, "the DSN's password is in the log"
            assert len(said.splitlines()) < 40, f"{component} floods its log: {said}"
        for component in ("worker", "operator"):
            told = installed.kubectl("describe", "pod", names[component])
            assert re.search(rf"NotReady .*{REASON}", told.split("Events:")[1]), told
        address = shown(installed, names["gateway"])["status"]["podIP"]
        ended, codes, said = doctor(f"http://{address}:8484{PREFIX}", token)
        assert (ended, codes) == (1, ["database"]), said
    finally:
        installed.kubectl("delete", "pod", *names.values(), "--ignore-not-found", "--grace-period=1", timeout=60)
    installed.whole()


def lost(release: Release, component: str, name: str) -> Json:
    """A bare pod of a Deployment's template whose DSN leads nowhere; no Service selects it."""
    deployment = json.loads(release.kubectl("get", f"deployment/{NAME}-{component}", "-o", "json"))
    spec: Json = deployment["spec"]["template"]["spec"]
    for variable in spec["containers"][0]["env"]:
        if variable["name"] == "KUBEHARNESS_DATABASE_URL":
            variable.pop("valueFrom")
            variable["value"] = NOWHERE
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def shown(release: Release, name: str) -> Json:
    """A pod as it is now."""
    return dict(json.loads(release.kubectl("get", "pod", name, "-o", "json")))


def running(release: Release, name: str) -> bool:
    """Whether its container has started."""
    statuses = shown(release, name)["status"].get("containerStatuses", ())
    return any("running" in one["state"] for one in statuses)
