"""One round: probe, F1, F2, the store, HTTP, F2, F1, the idle system; each ratio is of its own round."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from benchmarks.floors import batched, fused
from benchmarks.lifecycle import batched_lifecycles
from benchmarks.machine import NOISY_FOREIGN, Probe, probe
from benchmarks.overhttp import Idle, idle_latencies, percentile, settled_under_load
from benchmarks.server import fresh_database
from benchmarks.windows import Pace, Window, run
from support.postgres_server import PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """All that one round gave."""

    probe: Probe
    windows: dict[str, Window]
    """By the order in which they were run: F1, F2, T3, T1, F2 again, F1 again."""
    idle: Idle
    probe_after: Probe

    @property
    def sync_ms(self) -> float:
        """f of this round."""
        return (self.probe.sync_ms + self.probe_after.sync_ms) / 2

    @property
    def foreign(self) -> float:
        """How much of the machine others used, at most, in a window of this round."""
        return max(window.foreign for window in self.windows.values())

    @property
    def noisy(self) -> bool:
        """Others worked, or the floor moved, while we measured."""
        first, again = self.windows["F1"].rate, self.windows["F1 again"].rate
        return self.foreign > NOISY_FOREIGN or max(first, again) > 1.3 * min(first, again)

    @property
    def void(self) -> list[str]:
        """What did not add up."""
        found = [f"{name}: {why}" for name, window in self.windows.items() for why in window.void]
        return found + [f"idle: {why}" for why in self.idle.void]

    def ratios(self) -> dict[str, float]:
        """By target; a void window gives none."""
        out: dict[str, float] = {}
        one, two = self._floor("F1"), self._floor("F2")
        if one and not self.windows["T1"].void:
            out["T1"] = self.windows["T1"].rate / one
        if two and not self.windows["T3"].void:
            out["T3"] = self.windows["T3"].rate / two
        if not self.idle.void:
            out |= self._latencies()
        return out

    def _floor(self, name: str) -> float:
        windows = [self.windows[name], self.windows[f"{name} again"]]
        return 0.0 if any(w.void for w in windows) else statistics.mean(w.rate for w in windows)

    def _latencies(self) -> dict[str, float]:
        f = self.sync_ms
        first, settled = statistics.median(self.idle.first_ms), statistics.median(self.idle.settled_ms)
        return {
            "T5": statistics.median(self.idle.accepted_ms) / (2.2 + 2 * f),
            "T6": first / (6 + 4 * f),
            "T6b": percentile(self.idle.first_ms, 0.99) / first,
            "T7": settled / (10 + 4 * f),
            "T7b": percentile(self.idle.settled_ms, 0.99) / settled,
        }


def run_round(server: PostgresServer, folder: Path, pace: Pace, samples: int) -> Round:
    """Run all cases once, each on a fresh database."""
    before = probe(folder)
    windows: dict[str, Window] = {}
    for name in ("F1", "F2", "T3", "T1", "F2 again", "F1 again"):
        with fresh_database(server, migrated=name.startswith("T")) as url:
            windows[name] = run(_case(name, folder, url, pace))
    with fresh_database(server) as url:
        idle = run(idle_latencies(folder / "idle", url, server, samples))
    return Round(probe=before, windows=windows, idle=idle, probe_after=probe(folder))


async def _case(name: str, folder: Path, url: str, pace: Pace) -> Window:
    match name:
        case "F1" | "F1 again":
            return await fused(url, pace)
        case "F2" | "F2 again":
            return await batched(url, pace)
        case "T3":
            return await batched_lifecycles(url, pace)
        case _:
            return await settled_under_load(folder / "load", url, pace)
