"""`kubeharness token ensure`, as a process with an account that may get and patch one Secret, on a real API server."""

import asyncio
import base64
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.access import Cluster
from kubeharness.api.tokens import parse_tokens
from kubeharness.core.errors import Conflict
from kubeharness.kube.connection import connect
from kubeharness.kube.tokensecret import TokenSecret

SECRET = "release-tokens"
ACCOUNT = "migrate"

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Job:
    """What the migrate Job has: a namespace, an account with one right, and the Secret that the chart rendered."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path
    folder: Path

    def start(self, name: str = SECRET) -> "subprocess.Popen[str]":
        """`token ensure`, at debug level: what could leak would."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        return subprocess.Popen(
            [sys.executable, "-m", "kubeharness", "token", "ensure", "--namespace", self.namespace, "--secret", name],
            env={**env, "KUBECONFIG": str(self.kubeconfig), "KUBEHARNESS_LOG_LEVEL": "debug"},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str = SECRET) -> Done:
        """The same to its end."""
        process = self.start(name)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def secret(self, data: dict[str, str] | None = None, **more: Any) -> None:
        """Apply the Secret as the chart renders it, or with something in it."""
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "annotations": {"helm.sh/resource-policy": "keep"}},
            **more,
        }
        if data is not None:
            document["stringData"] = data
        self.cluster.apply(document, namespace=self.namespace)

    def found(self) -> dict[str, Any]:
        """The Secret."""
        found: dict[str, Any] = self.cluster.kubectl_json("get", "secret", SECRET, "--namespace", self.namespace)
        return found

    def data(self) -> dict[str, str]:
        """What it holds, decoded."""
        return {key: base64.b64decode(value).decode() for key, value in (self.found().get("data") or {}).items()}


@pytest.fixture
def job(control_plane: Cluster, namespace: str, tmp_path: Path) -> Job:
    control_plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get", "patch"]}],
    }
    control_plane.apply(role, namespace=namespace)
    control_plane.kubectl(
        *("create", "rolebinding", ACCOUNT, f"--role={ACCOUNT}", f"--serviceaccount={namespace}:{ACCOUNT}"),
        *("-n", namespace),
    )
    kubeconfig = control_plane.service_account_kubeconfig(namespace, ACCOUNT)
    return Job(control_plane, namespace, kubeconfig, tmp_path)


def in_force(data: dict[str, str]) -> None:
    """What the Secret holds is a token and a file that the gateway takes, and they fit."""
    [(digest, principal)] = parse_tokens(data["tokens.json"].encode())

    assert set(data) == {"token", "tokens.json"}
    assert digest == hashlib.sha256(data["token"].encode()).hexdigest()
    assert len(data["token"]) >= 43
    assert principal.name == "admin"


def test_an_empty_secret_gets_a_token_once_and_nobody_prints_it(job: Job) -> None:
    job.secret()
    first = job.run()
    data = job.data()
    again = job.run()

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    in_force(data)
    assert job.data() == data
    assert "left alone" in again.stdout
    for text in (first.stdout, first.stderr, again.stdout, again.stderr):
        assert data["token"] not in text
        assert base64.b64encode(data["token"].encode()).decode() not in text
    assert job.found()["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_charts_next_apply_takes_nothing_away(job: Job) -> None:
    job.secret()
    job.run()
    data = job.data()
    job.secret()

    assert job.data() == data


def test_of_two_at_once_one_wins_and_both_are_content(job: Job) -> None:
    job.secret()
    both = [job.start() for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    in_force(job.data())


async def test_who_read_before_another_wrote_changes_nothing_and_one_that_died_there_is_made_up_for(job: Job) -> None:
    """The gap between read and write: the write is refused there, whatever it would have written."""
    job.secret()
    api = await connect(job.kubeconfig)
    try:
        late = TokenSecret(api, job.namespace, SECRET)
        seen = await late.read()  # … and here a process may die: nothing is done yet
        first = await asyncio.to_thread(job.run)
        data = job.data()
        with pytest.raises(Conflict):
            await late.fill(seen.version, "another")
    finally:
        await api.close()

    assert first.returncode == 0, first.stderr
    in_force(data)
    assert job.data() == data


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"token": "mine", "tokens.json": "[]"}, "holds token, tokens.json already and is left alone"),
        ({"token": "mine"}, "no tokens.json, which the gateway reads"),
        ({"password": "mine"}, "no tokens.json, which the gateway reads"),
    ],
)
def test_what_is_the_users_own_is_left_alone(job: Job, own: dict[str, str], says: str) -> None:
    job.secret(own)
    done = job.run()

    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert job.data() == own
    assert "mine" not in done.stdout + done.stderr


def test_a_secret_that_is_missing_forbidden_or_immutable_is_a_sentence_with_its_remedy(job: Job) -> None:
    missing = job.run()
    forbidden = job.run("another")
    job.secret(immutable=True)
    immutable = job.run()

    assert [done.returncode for done in (missing, forbidden, immutable)] == [1, 1, 1]
    assert f"Secret {job.namespace}/{SECRET} does not exist" in missing.stderr
    assert "helm upgrade" in missing.stderr
    assert f"Secret {job.namespace}/another may not be read" in forbidden.stderr
    assert "get and patch on secrets, resourceNames [another]" in forbidden.stderr
    assert "is it immutable?" in immutable.stderr
    assert not any("Traceback" in done.stderr for done in (missing, forbidden, immutable))


def test_reading_without_writing_names_what_is_missing(job: Job) -> None:
    job.secret()
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [SECRET], "verbs": ["get"]}],
    }
    job.cluster.apply(role, namespace=job.namespace)
    done = job.run()

    assert done.returncode == 1
    assert "may not be changed by this account (403)" in done.stderr
    assert job.data() == {}


def test_an_api_server_that_does_not_answer_ends_in_a_sentence(job: Job) -> None:
    lost = job.kubeconfig.with_suffix(".lost")
    lost.write_text(job.kubeconfig.read_text().replace(job.cluster.server, "https://127.0.0.1:1"))
    done = Job(job.cluster, job.namespace, lost, job.folder).run()

    assert done.returncode == 1
    assert "the API server did not answer for Secret" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["../x", "", "A"])
def test_a_name_that_is_none_is_refused(job: Job, name: str) -> None:
    done = job.run(name)

    assert done.returncode == 2
    assert "--secret" in done.stderr


def test_the_token_file_is_json(job: Job) -> None:
    job.secret()
    job.run()

    assert json.loads(job.data()["tokens.json"])[0]["namespaces"] == ["*"]
