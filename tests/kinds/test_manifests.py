"""What lies on disk is read as strictly as a server reads it; a bad document is named and stops no other."""

import base64
import os
from pathlib import Path

import pytest

from kubeharness.kinds.manifests import Loaded, load, secret_data

AGENT = """\
apiVersion: kubeharness.dev/v1alpha1
kind: Agent
metadata: {name: %s}
spec:
  model: {providerRef: {name: demo}, name: small, contextWindow: 8000}
  systemPrompt: Be brief.
"""
SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: key}
"""


def loaded(tmp_path: Path, text: str, **options: str) -> Loaded:
    (tmp_path / "a.yaml").write_text(text)
    return load([tmp_path], **options)


def said(tmp_path: Path, text: str) -> list[str]:
    """The problems of one file, without its folder."""
    return [str(item).removeprefix(f"{tmp_path}{os.sep}") for item in loaded(tmp_path, text).problems]


def names(found: Loaded) -> list[str]:
    return [resource.name for resource in found.resources]


def test_folders_are_read_whole_in_the_order_of_their_names_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for place in ("b.yaml", "a/z.yml", "a/c.json", ".git/x.yaml", "a/.y.yaml", "notes.txt"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        name = path.name.split(".", maxsplit=1)[0] or "hidden"
        text = AGENT % name
        path.write_text('{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}}' if name == "c" else text)

    found = load([tmp_path])
    assert found.problems == ()
    assert names(found) == ["b", "c", "z"]


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(AGENT % "a")

    found = load([tmp_path / "a.yaml", tmp_path])
    assert found.problems == ()
    assert names(found) == ["a"]


def test_documents_know_their_file_line_and_namespace(tmp_path: Path) -> None:
    second = AGENT.replace("{name: %s}", "{name: b, namespace: team-a}")
    found = loaded(tmp_path, f"# first\n{AGENT % 'a'}---\n# second\n\n{second}", namespace="here")

    assert [(r.namespace, r.name, r.line) for r in found.resources] == [("here", "a", 2), ("team-a", "b", 11)]
    assert found.resources[0].file == str(tmp_path / "a.yaml")
    assert list(found.documents("Agent", "team-a")) == ["b"]
    assert found.documents("Agent", "here")["a"]["metadata"] == {"name": "a", "namespace": "here"}


def test_a_bad_document_stops_no_other(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{AGENT % 'a'}---\nspec: [\n--- # comment\n{AGENT % 'b'}--- {{}}\n---\n")

    assert names(found) == ["a", "b"]
    assert [item.line for item in found.problems] == [9, 16]


def test_a_document_inside_of_text_is_no_document(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: |\n    one\n    ---\n    two\n"
    [config_map] = loaded(tmp_path, text).resources

    assert config_map.document["data"] == {"x": "one\n---\ntwo\n"}


def test_a_field_that_is_wrong_is_named_with_its_remedy(tmp_path: Path) -> None:
    agent = (AGENT % "A").replace("Be brief.", "7").replace("contextWindow", "contextWindoww")

    assert said(tmp_path, agent) == [
        "a.yaml:1: metadata.name: must be a DNS label: 1-63 of a-z, 0-9 and '-', no '-' at either end",
        "a.yaml:1: spec.model.contextWindoww: is no field here; did you mean contextWindow?",
        "a.yaml:1: spec.model.contextWindow: is required",
        "a.yaml:1: spec.systemPrompt: must be a string, not a number; write the value in quotes",
    ]


def test_a_problem_says_whose_last_good_version_stays(tmp_path: Path) -> None:
    [problem] = loaded(tmp_path, (AGENT % "a").replace("8000", "7")).problems

    assert problem.key == ("Agent", "default", "a")


WRONG = [
    ("apiVersion: apps/v1\nkind: Deployment\n", "a.yaml:1: kind: apps/v1 Deployment is not read here"),
    ("apiVersion: kubeharness.dev/v1\nkind: Agent\n", "a.yaml:1: apiVersion: must be kubeharness.dev/v1alpha1"),
    ("apiVersion: other.dev/v1\nkind: Agent\n", "a.yaml:1: kind: other.dev/v1 Agent is not read here"),
    ("kind: Agent\n", "a.yaml:1: apiVersion: is required"),
    ("apiVersion: v1\n", "a.yaml:1: kind: is required"),
    ("- a\n", "a.yaml:1: must be an object with apiVersion"),
    ("\n\nkind: {\n", "a.yaml:4: is not YAML"),
    ("a: 1\na: 2\n", "a.yaml:2: key 'a' is given twice"),
    ("a: .nan\n", "a.yaml:1: is no value that JSON knows"),
    ("? [a]\n: b\n", "a.yaml:1: a key must be a string"),
    ("a: &a [*a]\n", "a.yaml:1: is nested too deeply"),
    ("a: !!python/name:os.system ''\n", "a.yaml:1: is not YAML"),
    ("a: \x00\n", "a.yaml:1: is not YAML"),
    (AGENT % "a" + "extra: 1\n", "a.yaml:1: extra: is no field here"),
    ((AGENT % "a").replace("{name: a}", "{name: a, labels: {b: 1}}"), "a.yaml:1: metadata.labels.b: must be a string"),
    ((AGENT % "a").replace("{name: a}", "{name: a, lables: {}}"), "a.yaml:1: metadata.lables: is no field here"),
    ((AGENT % "a").replace("{name: a}", "{name: a, namespace: A}"), "a.yaml:1: metadata.namespace: must be a DNS"),
    (SECRET + "data: {k: plain text}\n", "a.yaml:1: data.k: must be base64"),
    (SECRET + "stringData: {k: 1}\n", "a.yaml:1: stringData.k: must be a string"),
    (SECRET + "stringData: {'a b': x}\n", "a.yaml:1: stringData.a b: the key must be"),
    (SECRET + "strData: {}\n", "a.yaml:1: strData: is no field of a Secret"),
    (SECRET + "stringData: []\n", "a.yaml:1: stringData: must be an object"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_what_a_server_would_refuse_is_refused_with_file_line_and_field(
    tmp_path: Path, text: str, expected: str
) -> None:
    [problem] = said(tmp_path, text)

    assert problem.startswith(expected)


def test_aliases_that_multiply_are_cut_off(tmp_path: Path) -> None:
    levels = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10))

    assert said(tmp_path, f"a0: &a0 [x]\n{levels}\n") == ["a.yaml:1: is nested too deeply, or too large"]


def test_anchors_and_merge_keys_are_yaml(tmp_path: Path) -> None:
    agent = (AGENT % "a").replace("model: {", "model: &m {") + "  tools: []\n"
    other = (
        (AGENT % "b").replace("  model: {", "  model:\n    <<: &m {").replace("8000}", "8000}\n    contextWindow: 9000")
    )
    found = loaded(tmp_path, f"{agent}---\n{other}")

    assert found.problems == ()
    assert found.documents("Agent", "default")["b"]["spec"]["model"]["contextWindow"] == 9000


def test_a_date_stays_the_text_that_it_was_written_as(tmp_path: Path) -> None:
    [config_map] = loaded(
        tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {day: 2024-01-31}\n"
    ).resources

    assert config_map.document["data"] == {"day": "2024-01-31"}


def test_the_second_of_two_equal_names_is_the_problem(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{AGENT % 'a'}---\n{AGENT % 'a'}")

    assert names(found) == ["a"]
    assert [str(item) for item in found.problems] == [
        f"{tmp_path}/a.yaml:8: Agent default/a is in {tmp_path}/a.yaml:1 already"
    ]


def test_a_path_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4\n")
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")

    assert [str(item) for item in load([tmp_path, tmp_path / "missing"]).problems] == [
        f"{tmp_path}/gone.yaml:1: cannot be read: No such file or directory",
        f"{tmp_path}/latin.yaml:1: is not UTF-8 at byte 3",
        f"{tmp_path}/missing:1: does not exist",
    ]


def test_a_secrets_values_are_bytes_and_plain_text_wins(tmp_path: Path) -> None:
    encoded = base64.b64encode(b"\x00\xff").decode()
    text = f"{SECRET}data: {{a: {encoded}, b: {encoded}}}\nstringData: {{b: '  plain'}}\n"
    [secret] = loaded(tmp_path, text).resources

    assert secret_data(secret) == {"a": b"\x00\xff", "b": b"  plain"}
    assert "plain" not in repr(secret)


def test_a_wrong_secret_does_not_show_its_value(tmp_path: Path) -> None:
    problems = said(tmp_path, f"{SECRET}data: {{a: hunter2!}}\nstringData: {{b: [hunter2]}}\nhunter: hunter2\n")

    assert len(problems) == 3
    assert "hunter2" not in " ".join(problems)


def test_the_basic_example_is_sound() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "basic"
    found = load([example])

    assert found.problems == ()
    assert {resource.key for resource in found.resources} == {
        ("Agent", "default", "assistant"),
        ("ModelProvider", "default", "demo"),
    }
