"""An installation: the operator, two gateways and two workers as processes, each with its own account's token."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import SecretStr

from cluster.access import Cluster
from cluster.accounts import GATEWAY, OPERATOR, SYSTEM_NAMESPACE, WORKER, install_accounts
from e2e.api import Api
from kubeharness.composition import open_store
from kubeharness.settings import Settings
from kubeharness.store.verify import verify
from support.aimock import AIMock
from support.everything import Everything
from support.fleet import Fleet, Process, fleet

ROOT = Path(__file__).parents[2]
KINDS = ("agents", "modelproviders", "toolservers")
TAIL = 3_000


@dataclass(slots=True)
class Installation:
    """What runs. `gateways` and `workers` are those that are alive, or should be."""

    cluster: Cluster
    api: Api
    processes: Fleet
    database_url: str
    mock: AIMock
    everything: Everything
    accounts: dict[str, Path]
    """A kubeconfig for each ServiceAccount of ours."""
    operators: list[Process] = field(default_factory=list)
    gateways: list[Process] = field(default_factory=list)
    workers: list[Process] = field(default_factory=list)

    @property
    def operator(self) -> Process:
        """The one operator."""
        [one] = self.operators
        return one

    def start_operator(self) -> Process:
        """Start the operator, which is not ready yet."""
        name = f"operator-{len(self.processes.processes)}"
        config = str(self.accounts[OPERATOR])
        started = self.processes.start("run", name=name, module="kubeharness_operator", KUBECONFIG=config)
        self.operators.append(started)
        return started

    def start_gateway(self) -> Process:
        """Start one more gateway. Its account has no rights at all, as in a pod without a token."""
        started = self.processes.start("gateway", AUTH="none", KUBECONFIG=str(self.accounts[GATEWAY]))
        self.gateways.append(started)
        return started

    def start_worker(self) -> Process:
        """Start one more worker."""
        started = self.processes.start("worker", SECRETS="kubernetes", KUBECONFIG=str(self.accounts[WORKER]))
        self.workers.append(started)
        return started

    def running(self) -> list[Process]:
        """All that should be alive."""
        return [*self.operators, *self.gateways, *self.workers]

    def dead(self) -> list[Process]:
        """Those of them that are not."""
        return [process for process in self.running() if not process.alive()]

    def pids(self) -> list[int]:
        """The process ids of all that are alive."""
        return [process.pid for process in self.running() if process.alive()]

    def complete(self) -> None:
        """Replace whatever a test left dead or stopped, so that the next one begins with all of it."""
        for kind, count, start in (
            (self.operators, 1, self.start_operator),
            (self.gateways, 2, self.start_gateway),
            (self.workers, 2, self.start_worker),
        ):
            kind[:] = [process for process in kind if process.alive()]
            while len(kind) < count:
                start()
        for process in self.running():
            process.wait_ready()

    def verify(self) -> None:
        """What `kubeharness verify` does finds nothing in the database. Blocks."""

        async def found() -> list[str]:
            settings = Settings(database_url=SecretStr(self.database_url))
            async with open_store(settings) as stored:
                return [str(violation) for violation in await verify(stored.store)]

        assert asyncio.run(found()) == []

    def sql(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        """Read the database. Blocks: an async test calls it through a thread."""

        async def fetch() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.database_url, timeout=10)
            try:
                return await connection.fetch(statement, *arguments, timeout=10)
            finally:
                await connection.close(timeout=5)

        return asyncio.run(fetch())

    def logs(self) -> Iterator[tuple[str, str]]:
        """The end of what each process said."""
        for process in self.processes.processes:
            yield f"{process.name} (pid {process.pid})", process.said()[-TAIL:]


@contextmanager
def installed(
    cluster: Cluster, folder: Path, database_url: str, mock: AIMock, everything: Everything
) -> Iterator[Installation]:
    """Everything started and ready; gone at the end of the block. CRDs and accounts stay."""
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    crds = [f"crd/{kind}.kubeharness.dev" for kind in KINDS]
    cluster.kubectl("wait", "--for=condition=Established", *crds, "--timeout=30s")
    install_accounts(cluster)
    accounts = {
        name: cluster.service_account_kubeconfig(SYSTEM_NAMESPACE, name) for name in (OPERATOR, GATEWAY, WORKER)
    }
    settings = {
        "DATABASE_URL": database_url,
        "INSTALLATION_ID": "e2e",
        "LEASE_SECONDS": "5",
        "SWEEP_MILLISECONDS": "250",
        "DRAIN_SECONDS": "2",
    }
    api = Api(cluster)
    try:
        with fleet(folder, **settings) as processes:
            whole = Installation(cluster, api, processes, database_url, mock, everything, accounts)
            whole.complete()
            yield whole
    finally:
        api.close()
