"""What docs/howto/install.md prints is what the charts take: each command and each piece of values is rendered."""

import json
import re
import shlex

import pytest
import yaml

from charts.rendering import CHARTS, ROOT, helm, render

TEXT = (ROOT / "docs" / "howto" / "install.md").read_text()
VALUES = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)]
COMMANDS = [
    line
    for block in re.findall(r"^```sh(?: skip)?\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith(("helm install ", "helm upgrade "))
]
LIVE = {"--wait", "--reset-then-reuse-values"}
"""Options that need a cluster."""


@pytest.mark.parametrize("values", VALUES, ids=json.dumps)
def test_each_piece_of_values_is_taken(values: dict[str, object]) -> None:
    assert render(values).of("Deployment")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_renders_its_chart(command: str) -> None:
    _, _, release, chart, *options = shlex.split(command)
    assert helm("template", release, str(ROOT / chart), *(option for option in options if option not in LIVE))


def test_there_are_commands_for_both_charts() -> None:
    assert {shlex.split(command)[3] for command in COMMANDS} == {
        str(path.relative_to(ROOT)) for path in CHARTS.iterdir()
    }


def test_each_value_that_is_named_is_one() -> None:
    named = {name for name in re.findall(r"`([a-z]\w*(?:\.\w+)+)(?:=\w+|: [^`]+)?`", TEXT) if "/" not in name}
    schema = json.loads((CHARTS / "kubeharness" / "values.schema.json").read_text())

    assert len(named) > 10
    for name in named - {"values.yaml"}:
        node = schema
        for part in name.split("."):
            assert part in node.get("properties", {}), name
            node = node["properties"][part]
