"""Field case -> test -> result for one issue: `make cases ISSUE=3`.

A test proves a case when its name ends in the case's id (`…_c05`; two ids: `…_c05_c12`).
A case without a passing test, or with one that was skipped or failed, fails the run.
"""

import re
import sys
from collections import defaultdict

import pytest

CASES = {
    3: ["C01", "C05", "C10", "C12", "C13", "C19", "C23", "C35", "C45"],
    4: ["C51", "C52"],
}

_IDS = re.compile(r"((?:_c\d{2})+)$")


def cases_of(item: pytest.Item) -> list[str]:
    """The ids at the end of a test's name, its parameters left out."""
    match = _IDS.search(item.name.split("[", 1)[0])
    return match.group(1).upper().strip("_").split("_") if match else []


class Chosen:
    """Keeps the tests of the wanted cases and remembers how each ended."""

    def __init__(self, wanted: list[str]) -> None:
        self.wanted = wanted
        self.tests: dict[str, list[str]] = defaultdict(list)
        self.results: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        dropped: list[pytest.Item] = []
        kept: list[pytest.Item] = []
        for item in items:
            cases = [case for case in cases_of(item) if case in self.wanted]
            (kept if cases else dropped).append(item)
            for case in cases:
                self.tests[case].append(item.nodeid)
        items[:] = kept
        config.hook.pytest_deselected(items=dropped)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        worst = self.results.get(report.nodeid)
        if report.when == "call" or report.outcome != "passed":
            self.results[report.nodeid] = report.outcome if worst in (None, "passed") else str(worst)


def main(argv: list[str]) -> int:
    """Run the issue's cases and print the table; 0 when each has passed."""
    if len(argv) != 1 or not argv[0].isdigit() or int(argv[0]) not in CASES:
        print(f"usage: make cases ISSUE=n, with n one of {', '.join(map(str, CASES))}", file=sys.stderr)
        return 2
    chosen = Chosen(CASES[int(argv[0])])
    exit_code = pytest.main(["-q", "--no-header"], plugins=[chosen])

    proven = True
    print(f"\nfield cases of issue {argv[0]}")
    for case in chosen.wanted:
        tests = chosen.tests[case]
        if not tests:
            proven = False
            print(f"  {case}  MISSING  no test ends in _{case.lower()}")
        for test in tests:
            result = chosen.results.get(test, "not run")
            proven = proven and result == "passed"
            print(f"  {case}  {result:<7}  {test}")
    return 0 if proven and exit_code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
