"""Who has loaded what: few questions for many heads, none for those that are settled."""

from dataclasses import dataclass
from typing import Any, cast

from kubeharness.core.ids import RevisionId
from kubeharness.engine.ports import Acknowledgement
from kubeharness_operator.objects import AGENTS, Key
from kubeharness_operator.ports import RevisionPublisher
from kubeharness_operator.reconcile.acknowledgements import MOST_QUESTIONS, Acknowledgements


@dataclass
class Fleet:
    """Everybody has come as far as this version."""

    applied: int = 0
    asked: list[int] | None = None

    async def acknowledged(self, *, version: int, pool: str) -> Acknowledgement:
        self.asked = [*(self.asked or []), version]
        behind = int(self.applied < version)
        return Acknowledgement(workers=1, workers_behind=behind, gateways=1, gateways_behind=behind)


def of(fleet: Any) -> tuple[Acknowledgements, list[Key]]:
    roused: list[Key] = []
    return Acknowledgements(cast("RevisionPublisher", fleet), roused.append), roused


def key(number: int) -> Key:
    return Key(AGENTS, "ns", f"a{number}")


def revision(number: int) -> RevisionId:
    return RevisionId(f"sha256:{number}")


async def test_nothing_pending_asks_nothing() -> None:
    fleet = Fleet()
    acknowledgements, _ = of(fleet)
    await acknowledgements.ask()

    assert fleet.asked is None


async def test_one_question_stands_for_all_who_are_behind_it() -> None:
    fleet = Fleet(applied=0)
    acknowledgements, roused = of(fleet)
    for number in range(1, 1001):
        acknowledgements.expect(f"u{number}", key(number), revision(number), version=number)
    await acknowledgements.ask()

    assert fleet.asked == [1]
    assert roused == []  # nothing changed: it was awaited before


async def test_a_burst_is_settled_in_bounded_steps_each_key_once() -> None:
    fleet = Fleet(applied=1000)
    acknowledgements, roused = of(fleet)
    for number in range(1, 101):
        acknowledgements.expect(f"u{number}", key(number), revision(number), version=number)
    await acknowledgements.ask()

    assert len(roused) == MOST_QUESTIONS

    await acknowledgements.ask()
    await acknowledgements.ask()

    assert sorted(roused) == sorted(key(number) for number in range(1, 101))
    assert len(acknowledgements) == 0
    assert acknowledgements.expect("u7", key(7), revision(7), version=500).status == "True"


async def test_what_is_lost_is_told_once() -> None:
    acknowledgements, roused = of(Fleet())
    acknowledgements.expect("u", key(1), revision(1), version=1)
    acknowledgements.lost()
    acknowledgements.lost()

    assert roused == [key(1)]
    assert acknowledgements.expect("u", key(1), revision(1), version=1).status == "Unknown"


async def test_what_an_earlier_operator_found_yields_to_anything_newer() -> None:
    acknowledgements, _ = of(Fleet())
    awaited = acknowledgements.expect("u", key(1), revision(2), version=2)
    acknowledgements.adopt("u", revision(1), awaited)

    assert acknowledgements.expect("u", key(1), revision(2), version=2).status == "False"
