"""Figures: medians of per-round ratios with their range, targets beside them, one table and one JSON."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A line of the table of targets; `must` and `stretch` are bounds on the figure itself."""

    name: str
    measure: str
    must: float
    stretch: float
    at_most: bool = False
    gate: bool = False
    """Missing `must` fails the run."""

    def meets(self, value: float) -> bool:
        """Whether the figure is on the right side of `must`."""
        return value <= self.must if self.at_most else value >= self.must


TARGETS = (
    Target(name="T1", measure="settled/s over HTTP, 6 records, 32 clients ÷ F1", must=1.0, stretch=2.0),
    Target(name="T3", measure="store-level lifecycle, batched ÷ F2", must=0.6, stretch=0.8),
    Target(name="T4", measure="commits a lifecycle, unbatched", must=5, stretch=4, at_most=True, gate=True),
    Target(name="T5", measure="idle POST → 202 p50 ÷ (2.2 ms + 2f)", must=1.0, stretch=1.2 / 2.2, at_most=True),
    Target(name="T6", measure="idle POST → first event p50 ÷ (6 ms + 4f)", must=1.0, stretch=4 / 6, at_most=True),
    Target(name="T6b", measure="… its p99 ÷ its p50", must=3.0, stretch=3.0, at_most=True),
    Target(name="T7", measure="idle POST → settled p50 ÷ (10 ms + 4f)", must=1.0, stretch=6 / 10, at_most=True),
    Target(name="T7b", measure="… its p99 ÷ its p50", must=3.0, stretch=3.0, at_most=True),
    Target(name="T8", measure="claim p50, 1e6 queued ÷ 1e3", must=2.0, stretch=1.3, at_most=True, gate=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A ratio with one value a round."""

    target: Target
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """Whether it meets `must`; a figure without a valid round does not."""
        return bool(self.values) and self.target.meets(self.median)

    def as_json(self) -> dict[str, Any]:
        """With all its rounds."""
        return {
            "measure": self.target.measure,
            "median": self.median if self.values else None,
            "rounds": list(self.values),
            "must": self.target.must,
            "stretch": self.target.stretch,
            "atMost": self.target.at_most,
            "gate": self.target.gate,
            "met": self.met,
        }


def figures(rounds: Sequence[dict[str, float]], once: dict[str, float]) -> list[Figure]:
    """The figures of all targets: from the rounds, and from what was measured once."""
    return [
        Figure(
            target=target,
            values=tuple(one[target.name] for one in (*rounds, once) if target.name in one),
        )
        for target in TARGETS
    ]


def failed_gates(found: Sequence[Figure]) -> list[str]:
    """The gates that are missed."""
    return [figure.target.name for figure in found if figure.target.gate and not figure.met]


def print_table(found: Sequence[Figure], floors: dict[str, Sequence[float]], notes: Sequence[str]) -> None:
    """One table on stdout: figures beside their targets, then the floors of the same rounds."""
    line = "{:<4} {:<46} {:>7}  {:<13} {:>7} {:>8}  {}".format
    print(line("", "measure", "median", "range", "must", "stretch", ""))
    for figure in found:
        target = figure.target
        sign = "≤" if target.at_most else "≥"
        if not figure.values:
            print(line(target.name, target.measure, "–", "", f"{sign}{target.must:.2f}", "", "no valid round"))
            continue
        low, high = min(figure.values), max(figure.values)
        word = ("meets must" if figure.met else "misses must") + (" (gate)" if target.gate else "")
        print(
            line(
                target.name,
                target.measure,
                f"{figure.median:.2f}",
                f"{low:.2f}–{high:.2f}",
                f"{sign}{target.must:.2f}",
                f"{sign}{target.stretch:.2f}",
                word,
            )
        )
    print()
    floor = "{:<30} {:>10}  {}".format
    for name, values in floors.items():
        if values:
            print(floor(name, f"{statistics.median(values):.2f}", f"{min(values):.2f}–{max(values):.2f}"))
    for note in notes:
        print(f"! {note}")


def write_json(path: Path, content: dict[str, Any], default: Callable[[Any], Any]) -> None:
    """The whole run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, default=default) + "\n")
