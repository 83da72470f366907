"""An operator as a process of its own account, and a fleet that only the database knows: for tests on a real server."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE
from cluster.audit import service_account_user
from cluster.processes import free_ports
from kubeharness.core.errors import Unavailable
from kubeharness.engine.ports import CheckLease, Component
from kubeharness.store.postgres.checks import Checks
from kubeharness.store.postgres.database import Database
from kubeharness.store.postgres.revisions import Publisher

ROOT = Path(__file__).parents[2]
OPERATOR_USER = service_account_user(SYSTEM_NAMESPACE, OPERATOR)
Json = dict[str, Any]
START_SECONDS = 60.0
"""A busy machine takes its time to import the Kubernetes client."""


class OperatorProcess:
    """A running operator; its log is kept for whoever has to explain a failure."""

    def __init__(self, popen: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.port = port
        self._log = log

    def get(self, path: str) -> tuple[int, str]:
        """Ask the health port; (0, reason) if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str) -> float:
        """One figure of /metrics."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"kubeharness_operator_{name} "):
                return float(line.split()[1])
        raise KeyError(name)

    def log(self) -> str:
        """What it said so far."""
        return self._log.read_text(errors="replace")

    def alive(self) -> bool:
        return self._popen.poll() is None

    def wait(self, seconds: float = START_SECONDS) -> int:
        """Its exit status, once it has ended."""
        return self._popen.wait(seconds)

    def terminate(self) -> float:
        """Ask it to end; returns how many seconds it took."""
        began = time.monotonic()
        self._popen.send_signal(signal.SIGTERM)
        self._popen.wait(20)
        return time.monotonic() - began


@asynccontextmanager
async def operator_process(
    kubeconfig: Path,
    database_url: str,
    *,
    folder: Path,
    namespaces: tuple[str, ...] = (),
    installation: str = "test",
    ready: bool = True,
    more: Mapping[str, str] | None = None,
) -> AsyncIterator[OperatorProcess]:
    """Run an operator; with `ready`, the block begins once it says so."""
    [port] = free_ports(1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    environment |= {
        "KUBECONFIG": str(kubeconfig),
        "KUBEHARNESS_DATABASE_URL": database_url,
        "KUBEHARNESS_NAMESPACES": ",".join(namespaces),
        "KUBEHARNESS_INSTALLATION_ID": installation,
        "KUBEHARNESS_HEALTH_PORT": str(port),
        "KUBEHARNESS_LOG_FORMAT": "text",
        **(more or {}),
    }
    path = folder / f"operator.{port}.log"
    with path.open("wb") as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", "kubeharness_operator", "run"],
            env=environment,
            cwd=folder,  # where no `.env` lies
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    process = OperatorProcess(popen, port, path)
    try:
        if ready:
            await asyncio.to_thread(until, lambda: process.get("/readyz")[0] == 200, START_SECONDS, process.log)
        yield process
    finally:
        if process.alive():
            popen.kill()
            await asyncio.to_thread(popen.wait, 10)
        print(process.log())  # pytest shows it if the test failed


class Fleet:
    """A worker and a gateway as far as the database sees them: they beat, load heads, and answer checks."""

    def __init__(self, database: Database) -> None:
        self._publisher = Publisher(database)
        self._checks = Checks(database)
        self.acknowledging = True
        """Whether they load what is published."""
        self.workers = 1
        self.gateways = 1
        self.answering = True
        """Whether they answer checks."""
        self.missing: set[str] = set()
        """Names of checks that fail: `secret/key`, or a ToolServer's."""
        self.answered: list[CheckLease] = []
        self.applied = 0
        self.publisher = self._publisher
        self.checks = self._checks

    async def run(self) -> None:
        """Live until cancelled."""
        while True:
            with contextlib.suppress(Unavailable):  # a busy machine
                await self._live()
            await asyncio.sleep(0.1)

    async def _live(self) -> None:
        if self.acknowledging:
            self.applied = await self._publisher.head_clock()
        await self.beat()
        if self.answering:
            for lease in await self._checks.check_claim(owner="test", limit=100, lease_ms=5_000):
                await self._answer(lease)

    async def beat(self) -> None:
        """Say what has been loaded."""
        for role, count in (("worker", self.workers), ("gateway", self.gateways)):
            for number in range(count):
                await self._publisher.beat(
                    Component(id=f"{role}-{number}", role=role, pool="shared", formats=(1,), applied=self.applied)
                )

    async def _answer(self, lease: CheckLease) -> None:
        self.answered.append(lease)
        if lease.name in self.missing:
            secret = lease.name.split("/")[0]
            reason = "SecretNotFound" if lease.kind == "secret" else "ToolServerUnreachable"
            message = f"{lease.kind} {lease.namespace}/{secret} is not there"
            await self._checks.check_done(lease, ok=False, reason=reason, message=message)
        else:
            await self._checks.check_done(lease, ok=True, result=[] if lease.kind == "tools" else None)


@asynccontextmanager
async def fleet_of(database_url: str) -> AsyncIterator[Fleet]:
    """A fleet that lives as long as the block."""
    database = Database(database_url)
    fleet = Fleet(database)
    try:
        async with asyncio.TaskGroup() as tasks:
            living = tasks.create_task(fleet.run())
            try:
                yield fleet
            finally:
                living.cancel()
    finally:
        await database.aclose()


class Room:
    """A namespace of the test's own, as a user sees it. Everything blocks, in a thread where it matters."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace

    async def kubectl(self, *args: str, input: str | None = None) -> str:
        return await asyncio.to_thread(self.cluster.kubectl, "--namespace", self.namespace, *args, input=input)

    async def apply(self, *documents: Json) -> None:
        await asyncio.to_thread(self.cluster.apply, *documents, namespace=self.namespace)

    async def get(self, kind: str, name: str) -> Json:
        found: Json = await asyncio.to_thread(
            self.cluster.kubectl_json, "get", kind, name, "--namespace", self.namespace
        )
        return found

    async def condition(self, kind: str, name: str, type: str) -> Json:
        """One condition; empty if there is none."""
        status = (await self.get(kind, name)).get("status", {})
        return next((item for item in status.get("conditions", ()) if item["type"] == type), {})

    async def reaches(
        self, kind: str, name: str, type: str, status: str, *, reason: str | None = None, seconds: float = 20.0
    ) -> Json:
        """Wait until a condition says this; returns it."""
        deadline = time.monotonic() + seconds
        while True:
            found = await self.condition(kind, name, type)
            if found.get("status") == status and reason in (None, found.get("reason")):
                return found
            assert time.monotonic() < deadline, f"{kind} {name} {type} is not {status} {reason}: {found}"
            await asyncio.sleep(0.1)


async def says(process: OperatorProcess, status: int, text: str, seconds: float = 60.0) -> None:
    """Readiness gets there: it looks now and then."""
    async with asyncio.timeout(seconds):
        while (found := await asyncio.to_thread(process.get, "/readyz"))[0] != status or text not in found[1]:
            await asyncio.sleep(0.1)


def until(holds: Callable[[], bool], seconds: float, why: Callable[[], str] = str) -> None:
    """Wait for something; fails with `why` if it does not come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


def provider(name: str = "models", *, secret: str | None = None) -> Json:
    spec: Json = {"type": "OpenAICompatible", "baseURL": "https://models.test/v1"}
    if secret is not None:
        spec["apiKeySecretRef"] = {"name": secret, "key": "key"}
    return {"apiVersion": "kubeharness.dev/v1alpha1", "kind": "ModelProvider", "metadata": {"name": name}, "spec": spec}


def tool_server(name: str = "files", **spec: Any) -> Json:
    return {
        "apiVersion": "kubeharness.dev/v1alpha1",
        "kind": "ToolServer",
        "metadata": {"name": name},
        "spec": {"type": "MCP", "url": "https://tools.test/mcp", **spec},
    }


def agent(name: str = "demo", *, prompt: str = "Be brief.", model_provider: str = "models", **spec: Any) -> Json:
    return {
        "apiVersion": "kubeharness.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {
            "model": {"providerRef": {"name": model_provider}, "name": "m", "contextWindow": 8192},
            **({} if "systemPromptFrom" in spec else {"systemPrompt": prompt}),
            **spec,
        },
    }


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """What stands in the block must not take longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.1f} s"
