"""Lint both charts strictly and write the golden renders anew: `make chart`."""

import sys

from charts.rendering import CHART, CRDS, GOLDEN, NAMES, PROFILES, HelmRefused, helm, render


def main() -> int:
    """Returns the exit status: 1 if the linter has anything to say."""
    try:
        for chart, files in ((CRDS, [None]), (CHART, [PROFILES / f"{name}.yaml" for name in NAMES])):
            for file in files:
                helm("lint", "--strict", str(chart), *(() if file is None else ("--values", str(file))))
        GOLDEN.mkdir(exist_ok=True)
        for name in NAMES:
            (GOLDEN / f"{name}.yaml").write_text(render(profile=name).text)
    except HelmRefused as refused:
        sys.stderr.write(refused.said)
        return 1
    sys.stdout.write(f"linted; wrote {len(NAMES)} renders to {GOLDEN}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
