"""`PYTHONPATH=tests python -m benchmarks [--quick] [--out FILE]`: measure, print one table, write one JSON.

Exit status 1 if T4 or T8 misses its `must`, or if a window does not add up; ratios are printed, never a gate.
"""

import argparse
import dataclasses
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.depth import Depth, claims_at
from benchmarks.lifecycle import commits_of_a_lifecycle
from benchmarks.report import failed_gates, figures, print_table, write_json
from benchmarks.rounds import Round, run_round
from benchmarks.server import durable_server, fresh_database, make_template
from benchmarks.windows import Pace, run
from support.postgres_server import PostgresServer


def main(words: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, a tenth of T8's depth")
    parser.add_argument("--rounds", type=int, default=0, help="instead of 3 (--quick: 1)")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "kubeharness-bench.json")
    given = parser.parse_args(words)
    pace = Pace(1.0, 2.0) if given.quick else Pace(1.5, 4.0)
    count = given.rounds or (1 if given.quick else 3)
    folder = Path(tempfile.mkdtemp(prefix="kh-bench-"))
    try:
        with durable_server() as server:
            run(make_template(server))
            rounds = [_round(n, count, server, folder / str(n), pace, given.quick) for n in range(1, count + 1)]
            commits = _commits(server, 100 if given.quick else 400)
            depths = _depths(server, deep=100_000 if given.quick else 1_000_000, samples=100 if given.quick else 300)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _report(given.out, rounds, commits, depths)


def _round(n: int, of: int, server: PostgresServer, folder: Path, pace: Pace, quick: bool) -> Round:
    folder.mkdir()
    done = run_round(server, folder, pace, 40 if quick else 120)
    rates = "  ".join(f"{name} {window.rate:.0f}/s" for name, window in done.windows.items())
    _tell(f"round {n}/{of}: {rates}  f {done.sync_ms:.2f} ms  foreign CPU {done.foreign:.0%}")
    return done


def _commits(server: PostgresServer, lifecycles: int) -> float:
    with fresh_database(server) as url:
        return run(commits_of_a_lifecycle(server, url, lifecycles))


def _depths(server: PostgresServer, *, deep: int, samples: int) -> list[Depth]:
    with fresh_database(server) as shallow_url, fresh_database(server) as deep_url:
        found = run(claims_at({1_000: shallow_url, deep: deep_url}, samples))
    for depth in found:
        _tell(f"claim at {depth.queued:.0e} queued: p50 {depth.p50_ms:.2f} ms, loaded in {depth.load_seconds:.0f} s")
    return found


def _report(out: Path, rounds: Sequence[Round], commits: float, depths: Sequence[Depth]) -> int:
    shallow, deep = depths
    once = {"T4": commits, "T8": deep.p50_ms / shallow.p50_ms}
    found = figures([one.ratios() for one in rounds], once)
    void = [f"round {n} is void: {why}" for n, one in enumerate(rounds, 1) for why in one.void]
    noise = [
        f"round {n} is noisy: others used up to {one.foreign:.0%} of the CPUs"
        for n, one in enumerate(rounds, 1)
        if one.noisy
    ]
    gates = failed_gates(found)
    notes = [*void, *noise, *(f"{name} misses its must" for name in gates)]
    if deep.queued < 1_000_000:
        notes.append(f"T8 was measured at {deep.queued} queued, not at a million")
    print_table(found, _floors(rounds, depths), notes)
    write_json(
        out,
        {
            "at": datetime.now(UTC).isoformat(),
            "machine": {"platform": platform.platform(), "python": platform.python_version()},
            "figures": {figure.target.name: figure.as_json() for figure in found},
            "gates": {figure.target.name: figure.met for figure in found if figure.target.gate},
            "rounds": rounds,
            "depths": depths,
            "void": void,
            "noise": noise,
        },
        _plain,
    )
    print(f"all of it: {out}")
    return 1 if gates or void else 0


def _floors(rounds: Sequence[Round], depths: Sequence[Depth]) -> dict[str, Sequence[float]]:
    names = ("F1", "F1 again", "F2", "F2 again", "T1", "T3")
    rates = {f"{name} settled/s": [one.windows[name].rate for one in rounds] for name in names}
    cpu = {
        f"{name} CPU ms a lifecycle": [one.windows[name].cpu_ms for one in rounds] for name in ("F1", "F2", "T1", "T3")
    }
    return {
        **rates,
        **cpu,
        "f, fdatasync ms": [one.sync_ms for one in rounds],
        "T5 ms": [statistics.median(one.idle.accepted_ms) for one in rounds],
        "T6 ms": [statistics.median(one.idle.first_ms) for one in rounds],
        "T7 ms": [statistics.median(one.idle.settled_ms) for one in rounds],
        **{f"T8 claim ms, {depth.queued:.0e} queued": [depth.p50_ms] for depth in depths},
        "idle: transactions a run": [one.idle.all_transactions for one in rounds],
        "idle: of them with an id": [one.idle.writing_transactions for one in rounds],
        "foreign CPU": [one.foreign for one in rounds],
    }


def _plain(value: Any) -> Any:  # Any: json's own
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
