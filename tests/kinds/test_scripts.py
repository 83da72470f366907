"""What the CRD lets a user write, the Scripted provider reads and plays: two rooms, one script."""

from dataclasses import replace
from typing import Any

import pytest

from kinds import samples
from kubeharness.core.errors import ProviderAuth, ProviderError, ProviderFatal, ProviderOverflow, ProviderTransient
from kubeharness.core.messages import Usage
from kubeharness.core.revision import ProviderSpec
from kubeharness.kinds.compiler import compile_provider
from kubeharness.providers.script import (
    Call,
    Delay,
    End,
    Fail,
    Reason,
    Request,
    Say,
    Script,
    Step,
    Tokens,
    parse_script,
)

FITS = Request(
    input="What TIME is it?",
    system="Be brief.",
    tool="noon",
    after_tool="clock",
    turn=1,
    attempt=2,
    model="small",
    calls=0,
)
"""What the first rule of the full script waits for."""


def played(document: dict[str, Any]) -> Script:
    """The script as the provider reads it."""
    spec = compile_provider(document)
    assert isinstance(spec, ProviderSpec)
    assert spec.scripted is not None
    return parse_script(spec.scripted)


def steps(*written: dict[str, Any]) -> list[Step]:
    return list(played(samples.scripted(rules=[{"steps": list(written)}])).steps_for(FITS))


def test_a_script_from_a_crd_is_played_as_it_was_written() -> None:
    script = played(samples.full_scripted())

    assert (script.chunk_characters, script.chunk_delay_ms) == (4, 10)
    assert list(script.steps_for(FITS)) == [
        Reason("Hm."),
        Call("clock", {"n": 1.5, "deep": {"a": ["{{input}}"]}}),
        Delay(5),
        Tokens(Usage(input=20, output=8)),
    ]
    assert steps({"text": "It is {{tool}}."}, {"end": "Refusal"}) == [Say("It is {{tool}}."), End("Refusal")]


@pytest.mark.parametrize(
    "changed",
    [
        {"input": "What day is it?"},
        {"turn": 2},
        {"after_tool": None},
        {"attempt": 1},
        {"model": "large"},
        {"system": "Be long."},
    ],
    ids=str,
)
def test_each_condition_of_a_rule_from_a_crd_decides(changed: dict[str, Any]) -> None:
    script = played(samples.full_scripted())

    assert isinstance(script.steps_for(FITS)[0], Reason)
    assert isinstance(script.steps_for(replace(FITS, **changed))[0], Fail)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("Transient", ProviderTransient),
        ("Overflow", ProviderOverflow),
        ("Fatal", ProviderFatal),
        ("Auth", ProviderAuth),
    ],
)
def test_each_error_of_a_crd_is_raised_as_its_kind(kind: str, raised: type[ProviderError]) -> None:
    [step] = steps({"error": {"kind": kind, "message": "no", "retryAfterSeconds": 7}})

    assert isinstance(step, Fail)
    assert type(step.error) is raised
    assert str(step.error) == "no"
    if isinstance(step.error, ProviderTransient):
        assert step.error.retry_after == 7


def test_every_provider_that_compiles_can_be_played() -> None:
    for kind in ("Length", "Refusal", "Cut"):
        assert isinstance(steps({"end": kind})[0], End)
    assert steps({"error": {"kind": "Fatal"}}, {"usage": {}}, {"toolCall": {"name": "clock"}})
    assert list(played(samples.scripted()).steps_for(FITS)) == [Say("You said: {{input}}")]
