"""What a test may ask of its cluster, whichever cluster it got.

Everything blocks: an async test that has to go on meanwhile calls through `asyncio.to_thread`.
"""

import datetime
import itertools
import json
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.audit import Write
from cluster.errors import KubectlFailed, NoAuditLog
from cluster.kubeconfig import Endpoint, with_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of `kubectl auth can-i --list`: verbs on resources; "*" means all, no names mean any name."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...]
    resources: tuple[str, ...]
    names: tuple[str, ...]

    def covers(self, verb: str, resource: str) -> bool:
        """Whether this rule lets somebody do that, at least to some object."""
        return not {verb, "*"}.isdisjoint(self.verbs) and not {resource, "*"}.isdisjoint(self.resources)


class Cluster:
    """A running Kubernetes API, seen as its administrator.

    `kubeconfig` is the administrator's file, `folder` takes the files that its methods write and lives as
    long as the cluster is open.
    """

    def __init__(self, *, kubeconfig: Path, endpoint: Endpoint, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self.server = endpoint.server
        self.folder = folder
        self._endpoint = endpoint
        self._serial = itertools.count()

    @property
    def ca(self) -> bytes:
        """The PEM bundle that proves the server, empty if the machine's own bundle does."""
        return self._endpoint.ca

    @property
    def audit_log(self) -> Path:
        """The API server's log of writes. Raises NoAuditLog if the cluster is not ours."""
        raise NoAuditLog

    def audit_writes(self, since: datetime.datetime, users: Collection[str] | None = None) -> list[Write]:
        """Return the writes that the server answered since then, by these users or by all.

        A write is in the log some milliseconds after its answer: wait for one that must be there. Raises
        NoAuditLog if the cluster is not ours.
        """
        raise NoAuditLog

    def kubectl(
        self,
        *args: str,
        input: str | None = None,
        timeout: float = 30.0,
        kubeconfig: Path | None = None,
    ) -> str:
        """Run kubectl as the administrator, or with another kubeconfig, and return what it printed.

        Raises KubectlFailed, with what it said, if it fails or is not done in time.
        """
        done = self._execute(*args, input=input, timeout=timeout, kubeconfig=kubeconfig)
        if done.returncode != 0:
            raise KubectlFailed(args, f"status {done.returncode}", done.stderr)
        return done.stdout

    def kubectl_json(self, *args: str, kubeconfig: Path | None = None, timeout: float = 30.0) -> Any:
        """Run kubectl with `-o json` and return the parsed object."""
        return json.loads(self.kubectl(*args, "-o", "json", kubeconfig=kubeconfig, timeout=timeout))

    def apply(self, *documents: dict[str, Any], namespace: str | None = None) -> str:
        """Apply these objects server-side as the administrator."""
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        where = ("--namespace", namespace) if namespace else ()
        return self.kubectl("apply", "--server-side", "-f", "-", *where, input=content)

    def service_account_kubeconfig(
        self, namespace: str, name: str, duration: datetime.timedelta = datetime.timedelta(hours=1)
    ) -> Path:
        """Return a kubeconfig file whose rights are those that RBAC gives the ServiceAccount.

        Its token comes from the TokenRequest API; the server makes a duration under ten minutes an error.
        """
        seconds = f"{duration.total_seconds():.0f}s"
        token = self.kubectl("create", "token", name, "--namespace", namespace, "--duration", seconds)
        path = self.folder / f"{namespace}.{name}.{next(self._serial)}.kubeconfig"
        return with_token(path, self._endpoint, token=token.strip(), namespace=namespace)

    def can_i(self, verb: str, resource: str, *, namespace: str, kubeconfig: Path | None = None) -> bool:
        """Ask the server whether the bearer of that kubeconfig may do this, as `kubectl auth can-i` does."""
        args = ("auth", "can-i", verb, resource, "--namespace", namespace)
        done = self._execute(*args, input=None, timeout=30.0, kubeconfig=kubeconfig)
        answer = done.stdout.strip()
        if answer not in ("yes", "no"):  # "no" is status 1, as is a server that cannot be reached
            raise KubectlFailed(args, f"status {done.returncode}", done.stdout + done.stderr)
        return answer == "yes"

    def can_i_list(self, *, namespace: str, kubeconfig: Path | None = None) -> list[Rule]:
        """Return every rule that holds for the bearer of that kubeconfig in this namespace."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        answer = self.kubectl(
            "create",
            "--validate=false",
            "-f",
            "-",
            "-o",
            "json",
            input=json.dumps(review),
            kubeconfig=kubeconfig,
        )
        return [
            Rule(
                verbs=tuple(rule.get("verbs", ())),
                groups=tuple(rule.get("apiGroups", ())),
                resources=tuple(rule.get("resources", ())),
                names=tuple(rule.get("resourceNames", ())),
            )
            for rule in json.loads(answer)["status"]["resourceRules"]
        ]

    def _execute(
        self,
        *args: str,
        input: str | None,
        timeout: float,
        kubeconfig: Path | None,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl with a cache of the cluster's own: a port comes back with another server behind it."""
        options = (f"--kubeconfig={kubeconfig or self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl'}")
        try:
            return subprocess.run(
                [str(binaries.kubectl()), *options, *args],
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise KubectlFailed(args, f"not done in {timeout:g} s", _text(late.stderr)) from late


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
