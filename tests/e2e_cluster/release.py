"""A release on the cluster: what helm and kubectl say of it, as the person who installed it."""

import asyncio
import base64
import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import asyncpg

from cluster import binaries
from cluster.errors import KubectlFailed
from cluster.node import NodeCluster
from e2e.api import Api
from e2e.rooms import conditions_of
from e2e_cluster.callers import Door

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-agent-on-a-cluster.md"
NAMESPACE = "kubeharness"
NAME = "kubeharness"
COMPONENTS = ("gateway", "worker", "operator")
SECONDS = 120.0
PREFIX = "/harness"
INGRESS_HOST = "ingress.test"
ROUTE_HOST = "route.test"


def until(holds: Callable[[], Any], why: Callable[[], object], *, within: float = SECONDS, pause: float = 0.1) -> Any:
    """Wait for something; returns it, fails with `why` if it does not come."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {why()}"
        time.sleep(pause)
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as it is now."""

    name: str
    uid: str
    restarts: int
    ready: bool
    leaving: bool

    @property
    def identity(self) -> tuple[str, int]:
        """What stays the same while nobody replaces or restarts it."""
        return self.uid, self.restarts


@dataclass(slots=True)
class Release:
    """The installed product."""

    cluster: NodeCluster
    router: str
    """Where Ingress and Gateway listen, as http://address:port."""
    values: Path
    """What is installed with."""
    database: str
    """The DSN as pods see it."""
    api: Api = field(init=False)
    """The API without a process a call."""
    there: bool = field(init=False)
    """A run before has left it, on a cluster that stays."""

    def __post_init__(self) -> None:
        """Find what is there already."""
        self.api = Api(self.cluster)
        namespaces = self.cluster.kubectl("get", "namespaces", "-o", "name")
        self.there = f"namespace/{NAMESPACE}\n" in namespaces
        if self.there:
            found = self.kubectl("get", "secret", f"{NAME}-database", "-o", "jsonpath={.data.url}")
            self.database = base64.b64decode(found).decode()

    @staticmethod
    def tools() -> dict[str, Path]:
        """What the administrator's terminal has."""
        return {"helm": binaries.helm(), "kubectl": binaries.kubectl()}

    @staticmethod
    def install_blocks() -> list[str]:
        """The blocks of the tutorial up to a Ready agent."""
        blocks = re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
        last = next(n for n, block in enumerate(blocks) if "kubectl wait kha/assistant" in block)
        return blocks[: last + 1]

    def helm(self, *args: str, timeout: float = 300) -> str:
        """helm as the administrator; fails with what it said."""
        command = [str(binaries.helm()), "--kubeconfig", str(self.cluster.kubeconfig), *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT)
        assert done.returncode == 0, f"helm {' '.join(args)}: {done.stderr or done.stdout}\n{self.said()}"
        return done.stdout

    def kubectl(self, *args: str, namespace: str = NAMESPACE, **options: Any) -> str:
        """kubectl in the release's namespace."""
        return self.cluster.kubectl("--namespace", namespace, *args, **options)

    def upgrade(self, charts: Path = CHARTS, *more: str) -> float:
        """CRDs first, as docs/howto/install.md says; waits for all of it."""
        began = time.monotonic()
        self.helm("upgrade", "kubeharness-crds", str(charts / "kubeharness-crds"), "--namespace", NAMESPACE)
        self.release("upgrade", charts, *more)
        return time.monotonic() - began

    def rollback(self) -> float:
        """The release before; CRDs are never rolled back."""
        began = time.monotonic()
        self.helm("rollback", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", "3m")
        return time.monotonic() - began

    def release(self, verb: str, charts: Path, *more: str) -> None:
        """helm install or upgrade of the chart, waiting for all of it."""
        chart = str(charts / "kubeharness")
        options = ["--namespace", NAMESPACE, "--values", str(self.values), "--wait", "--timeout", "3m"]
        self.helm(verb, NAME, chart, *options, *more)

    def pods(self, component: str) -> list[Pod]:
        """The pods of a component that are not finished, oldest first."""
        selector = f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component={component}"
        found = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        found.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        return [_pod(pod) for pod in found if pod["status"]["phase"] in ("Pending", "Running")]

    def identities(self) -> dict[str, tuple[str, int]]:
        """Who all pods are; equal before and after means that nothing was replaced or restarted."""
        return {pod.name: pod.identity for component in COMPONENTS for pod in self.pods(component)}

    def whole(self, within: float = SECONDS) -> None:
        """Wait until every pod is ready and none is leaving."""

        def holds() -> bool:
            pods = [pod for component in COMPONENTS for pod in self.pods(component)]
            return len(pods) == 5 and all(pod.ready and not pod.leaving for pod in pods)

        until(holds, self.said, within=within)

    def restart(self, component: str) -> float:
        """`kubectl rollout restart`, until it is through; returns the seconds."""
        began = time.monotonic()
        self.kubectl("rollout", "restart", f"deployment/{NAME}-{component}")
        self.kubectl("rollout", "status", f"deployment/{NAME}-{component}", "--timeout=170s", timeout=180)
        return time.monotonic() - began

    def token(self) -> str:
        """What the install made for its administrator."""
        found = self.kubectl("get", "secret", f"{NAME}-tokens", "-o", "jsonpath={.data.token}")
        return base64.b64decode(found).decode()

    def door(self, host: str = INGRESS_HOST, token: str | None = None) -> Door:
        """The API through the router, under the prefix."""
        return Door(f"{self.router}{PREFIX}", host, self.token() if token is None else token)

    def condition(self, type: str, name: str = "assistant", kind: str = "Agent") -> Json:
        """A condition of an object in `default`, {} if it has none."""
        return conditions_of(self.api.get("default", kind, name)).get(type, {})

    def reaches(
        self,
        type: str,
        status: str,
        name: str = "assistant",
        *,
        reason: str | None = None,
        generation: int | None = None,
        within: float = SECONDS,
    ) -> Json:
        """Wait until an Agent's condition says this, for this reason and of this generation."""

        def holds() -> Json | None:
            one = self.condition(type, name)
            wanted = {"status": status, "reason": reason, "observedGeneration": generation}
            return one if all(one.get(key) == value for key, value in wanted.items() if value is not None) else None

        return cast("Json", until(holds, lambda: self.condition(type, name), within=within, pause=0.02))

    def edit(self, spec: Json, name: str = "assistant", kind: str = "Agent") -> int:
        """Merge into a spec; returns the generation that this made."""
        return int(self.api.patch("default", kind, name, {"spec": spec})["metadata"]["generation"])

    def fresh_database(self) -> None:
        """Point the release's Secret to an empty database; nothing of ours may run meanwhile."""
        self.database = self.cluster.create_database()
        patch = json.dumps({"stringData": {"url": self.database}})
        self.kubectl("patch", "secret", f"{NAME}-database", "--type=merge", "-p", patch)

    def sql(self, statement: str) -> str:
        """One value of the database."""

        async def fetch() -> str:
            connection = await asyncpg.connect(self.database, timeout=10)
            try:
                return str(await connection.fetchval(statement, timeout=10))
            finally:
                await connection.close(timeout=5)

        return asyncio.run(fetch())

    def verify(self) -> None:
        """`kubeharness verify` in a worker pod finds nothing."""
        [worker, *_] = [pod for pod in self.pods("worker") if pod.ready]
        said = self.kubectl("exec", worker.name, "--", "kubeharness", "verify", timeout=120)
        assert "0 violations" in said, said

    def said(self) -> str:
        """What a failure shows: pods, events, the end of each log."""
        shown = [self._try("get", "pods", "-o", "wide"), self._try("get", "events", "--sort-by=.lastTimestamp")[-4000:]]
        for component in (*COMPONENTS, "migrate"):
            selector = f"app.kubernetes.io/component={component}"
            shown.append(self._try("logs", "-l", selector, "--all-containers", "--prefix", "--tail=15")[-4000:])
        return "\n\n".join(shown)

    def _try(self, *args: str) -> str:
        try:
            return self.kubectl(*args)
        except KubectlFailed as error:
            return str(error)


def _pod(found: Json) -> Pod:
    statuses = found["status"].get("containerStatuses", ())
    conditions = {one["type"]: one["status"] for one in found["status"].get("conditions", ())}
    return Pod(
        name=found["metadata"]["name"],
        uid=found["metadata"]["uid"],
        restarts=sum(one["restartCount"] for one in statuses),
        ready=conditions.get("Ready") == "True",
        leaving="deletionTimestamp" in found["metadata"],
    )
