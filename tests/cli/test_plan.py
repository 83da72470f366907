"""`kubeharness plan -f`: every problem with its place, a diff against what is in force, an exit code for pipelines."""

import asyncio
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.access import Cluster
from kubeharness.cli import app
from kubeharness.composition import open_store
from kubeharness.core.errors import KubeharnessError
from kubeharness.kinds.crdgen import KINDS
from kubeharness.kinds.places import line_of
from kubeharness.settings import Settings

ROOT = Path(__file__).parents[2]
BASIC = ROOT / "docs" / "examples" / "basic"
ACCOUNT = "planner"


@dataclass(frozen=True, slots=True)
class Planned:
    """What plan said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def agent(self, name: str = "assistant") -> dict[str, Any]:
        [one] = [agent for agent in self.json["agents"] if agent["name"] == name]
        found: dict[str, Any] = one
        return found


def planned(*words: str | Path, env: dict[str, str] | None = None, output: str = "json") -> Planned:
    done = CliRunner(env=env).invoke(app, ["plan", *map(str, words), "--output", output])
    assert done.exception is None or isinstance(done.exception, SystemExit | KubeharnessError), done.exception
    return Planned(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No kubeconfig and no database that the machine may know."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBEHARNESS_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The basic example, to be edited."""
    folder = tmp_path / "mine"
    shutil.copytree(BASIC, folder)
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_edit_is_a_change_with_its_diff_and_the_same_files_are_none(mine: Path) -> None:
    same = planned("-f", mine, "--against", BASIC)
    edit(mine, "agent.yaml", "a friendly assistant", "a gruff assistant")
    edited = planned("-f", mine, "--against", BASIC)
    text = planned("-f", mine, "--against", BASIC, output="text")

    assert (same.code, same.agent()["change"], same.agent()["diff"]) == (0, "unchanged", "")
    assert (edited.code, edited.agent()["change"]) == (2, "changed")
    assert edited.agent()["lastGood"] == same.agent()["revision"] != edited.agent()["revision"]
    assert '-systemPrompt: "You are a friendly assistant.' in edited.agent()["diff"]
    assert '+systemPrompt: "You are a gruff assistant.' in edited.agent()["diff"]
    assert edited.agent()["file"].endswith("mine/agent.yaml")
    assert text.code == 2
    assert "1 changed; nothing was written" in text.out
    assert f"{mine}/agent.yaml:2" in text.out


def test_a_formatting_edit_and_a_comment_are_no_change(mine: Path) -> None:
    text = (mine / "agent.yaml").read_text()
    (mine / "agent.yaml").write_text("# another word\n" + text.replace("name: clock", 'name: "clock"'))

    assert planned("-f", mine, "--against", BASIC).code == 0


def test_agents_that_come_and_go_are_changes(mine: Path, tmp_path: Path) -> None:
    edit(mine, "agent.yaml", "name: assistant", "name: successor")
    found = planned("-f", mine, "--against", BASIC)

    assert found.code == 2
    assert {agent["name"]: agent["change"] for agent in found.json["agents"]} == {
        "successor": "new",
        "assistant": "removed",
    }


def test_every_problem_is_said_at_once_with_file_and_line(mine: Path) -> None:
    edit(mine, "agent.yaml", "contextWindow: 128000", "contextWindow: 12")
    edit(mine, "agent.yaml", "  tools:\n", "  toolz:\n  - name: x\n  tools:\n")
    (mine / "other.yaml").write_text(
        "# two documents\napiVersion: kubeharness.dev/v1alpha1\nkind: Agent\nmetadata: {name: second}\nspec:\n"
        "  model: {name: m, contextWindow: 8000, providerRef: {name: nobody}}\n  systemPrompt: x\n"
        "  tools:\n  - name: t\n    toolServer: {ref: {name: nowhere}}\n---\nkind: Deployment\napiVersion: apps/v1\n"
    )
    found = planned("-f", mine, "--offline")
    places = {
        (Path(str(one["file"])).name, one["line"], one["field"])
        for one in [*found.json["problems"], *found.agent("second")["problems"]]
    }

    assert found.code == 1
    assert places == {
        ("agent.yaml", 12, "spec.model.contextWindow"),
        ("agent.yaml", 14, "spec.toolz"),
        ("other.yaml", 6, "spec.model.providerRef.name"),
        ("other.yaml", 10, "spec.tools[0].toolServer.ref.name"),
        ("other.yaml", 12, "kind"),
    }
    assert found.agent("second")["change"] == "broken"


def test_a_provider_that_is_broken_is_not_called_missing(mine: Path) -> None:
    edit(mine, "modelprovider.yaml", "type: Scripted", "type: Telepathic")
    found = planned("-f", mine, "--offline")

    assert found.code == 1
    assert [one["message"] for one in found.agent()["problems"]] == ["ModelProvider demo is broken in these files"]
    [problem] = found.json["problems"]
    assert (Path(problem["file"]).name, problem["line"], problem["field"]) == ("modelprovider.yaml", 10, "spec.type")


def test_a_header_that_is_written_out_is_compared_and_not_shown(mine: Path) -> None:
    server = mine / "server.yaml"
    server.write_text(
        "apiVersion: kubeharness.dev/v1alpha1\nkind: ToolServer\nmetadata: {name: s}\nspec:\n  type: MCP\n"
        "  url: https://tools.example.test/mcp\n  headers: [{name: x-key, value: hunter22}]\n"
    )
    edit(mine, "agent.yaml", "  tools:\n", "  tools:\n  - {name: s, toolServer: {ref: {name: s}}}\n")
    theirs = mine.parent / "theirs"
    shutil.copytree(mine, theirs)
    edit(mine, "server.yaml", "hunter22", "hunter23")
    found = planned("-f", mine, "--against", theirs)

    assert found.code == 2
    assert found.agent()["diff"].count("x-key") == 1
    assert found.agent()["diff"].count("value: ") == 2
    assert "hunter" not in found.out


def test_a_line_is_that_of_the_field_or_of_what_lacks_it() -> None:
    text = "a: 1\n---\n# said\nb:\n  c.d/e:\n    f: 2\n  g:\n  - h: 1\n  -\n    h: 2\n"

    assert line_of(text, 4, "b.c.d/e.f") == 6
    assert line_of(text, 4, "b.g[1].h") == 10
    assert line_of(text, 4, "b.g[1].missing") == 10
    assert line_of(text, 4, "b.g[7]") == 7
    assert line_of(text, 4, "nothing") == 4
    assert line_of("{", 4, "b") == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-f", str(BASIC)], "no way to the Kubernetes API server"),
        (["-f", str(BASIC), "--offline", "--context", "x"], "use one of"),
        (["-f", str(BASIC), "--kubeconfig", "/nowhere"], "--offline"),
        (["--nonsense"], "--nonsense"),
        ([], "-f"),
    ],
)
def test_what_cannot_be_planned_never_looks_like_changes(words: list[str], says: str) -> None:
    found = planned(*words)

    assert found.code == 1
    assert says in found.err


def test_the_database_knows_the_last_good_and_is_only_read(mine: Path, postgres_url: str) -> None:
    env = {"KUBEHARNESS_DATABASE_URL": postgres_url}
    fresh = planned("-f", mine, env=env)
    before = asyncio.run(heads(postgres_url))
    assert CliRunner(env=env).invoke(app, ["publish", "-f", str(mine)]).exit_code == 0
    published = asyncio.run(heads(postgres_url))
    same = planned("-f", mine, env=env)
    edit(mine, "agent.yaml", "a friendly assistant", "a gruff assistant")
    edited = planned("-f", mine, env=env)

    assert (fresh.code, fresh.agent()["change"], before) == (2, "new", [])
    assert (same.code, same.agent()["change"]) == (0, "unchanged")
    [(_, active, _)] = published
    assert same.agent()["revision"] == active
    assert (edited.code, edited.agent()["lastGood"]) == (2, active)
    assert asyncio.run(heads(postgres_url)) == published


async def heads(url: str) -> list[tuple[str, str | None, int]]:
    async with open_store(Settings.model_validate({"database_url": url})) as stored:
        return [(head.name, head.active, head.version) for head in await stored.store.heads(after=0)]


# --- against a real API server ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Room:
    """A namespace with our kinds, and an account that may read them and the ConfigMaps: no Secret, no write."""

    cluster: Cluster
    namespace: str
    kubeconfig: Path

    def apply(self, *paths: Path) -> None:
        for path in paths:
            self.cluster.kubectl("apply", "-n", self.namespace, "-f", str(path))

    def plan(self, *words: str | Path) -> Planned:
        return planned(*words, "--kubeconfig", self.kubeconfig)


@pytest.fixture
def room(control_plane: Cluster, namespace: str) -> Room:
    control_plane.kubectl("apply", "-f", str(ROOT / "crds"))
    names = [f"crd/{model.names.crd}" for model in KINDS]
    control_plane.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s")
    end = time.monotonic() + 30
    while len(control_plane.kubectl("api-resources", "--api-group=kubeharness.dev", "-o=name").split()) < len(KINDS):
        assert time.monotonic() < end
        time.sleep(0.2)
    control_plane.kubectl("create", "serviceaccount", ACCOUNT, "-n", namespace)
    kinds = {"apiGroups": ["kubeharness.dev"], "resources": ["*"], "verbs": ["get", "list"]}
    texts = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": ACCOUNT},
        "rules": [kinds, texts],
    }
    control_plane.apply(role, namespace=namespace)
    control_plane.kubectl(
        *("create", "rolebinding", ACCOUNT, f"--role={ACCOUNT}", f"--serviceaccount={namespace}:{ACCOUNT}"),
        *("-n", namespace),
    )
    return Room(control_plane, namespace, control_plane.service_account_kubeconfig(namespace, ACCOUNT))


@pytest.mark.timeout(180)
def test_against_a_cluster_what_is_missing_in_the_files_is_the_clusters(room: Room, mine: Path) -> None:
    prompt = mine / "prompt.yaml"
    prompt.write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: prompts}\ndata: {main: Be kind.}\n")
    edit(
        mine,
        "agent.yaml",
        "  systemPrompt: You are a friendly assistant. Ask the clock before you speak of time.",
        FROM,
    )
    empty = room.plan("-f", mine)
    room.apply(mine)
    whole = room.plan("-f", mine)
    alone = room.plan("-f", mine / "agent.yaml")
    prompt.write_text(prompt.read_text().replace("kind.", "stern."))
    by_prompt = room.plan("-f", prompt)
    prompt.unlink()
    edit(mine, "modelprovider.yaml", "chunkCharacters: 12", "chunkCharacters: 13")
    by_provider = room.plan("-f", mine / "modelprovider.yaml")
    unsaid = planned("-f", mine, "--kubeconfig", room.kubeconfig, "--context", "nobody")

    assert (empty.code, empty.agent()["change"]) == (2, "new")
    assert (whole.code, alone.code) == (0, 0)
    assert alone.agent()["revision"] == whole.agent()["revision"] == empty.agent()["revision"]
    assert (by_prompt.code, by_prompt.agent()["change"]) == (2, "changed")
    assert '+systemPrompt: "Be stern."' in by_prompt.agent()["diff"]
    assert by_provider.code == 2
    assert "chunkCharacters: 13" in by_provider.agent()["diff"]
    assert unsaid.code == 1


FROM = "  systemPromptFrom: {configMapKeyRef: {name: prompts, key: main}}"


@pytest.mark.timeout(180)
def test_a_right_that_is_missing_is_named(room: Room, mine: Path, namespace: str) -> None:
    edit(mine, "agent.yaml", "metadata:", "metadata:\n  namespace: kube-public")
    found = room.plan("-f", mine)

    assert found.code == 1
    assert "/namespaces/kube-public/" in found.err
    assert "get and list on agents" in found.err
