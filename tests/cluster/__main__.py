"""`python -m cluster build`: have the binaries ready. `python -m cluster up`: run one until Ctrl-C."""

import argparse
import signal
import sys

from cluster.binaries import control_plane_binaries
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError


def main() -> int:
    """Return the exit status: 0, or 1 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    parser.add_argument("verb", choices=["build", "up"])
    try:
        if parser.parse_args().verb == "build":
            print(control_plane_binaries())
        else:
            _up()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up() -> None:
    """SIGTERM ends it as Ctrl-C does: both must leave no process behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ControlPlane() as cluster:
            print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
            print(f"ready at {cluster.server}, logs in {cluster.folder}; Ctrl-C ends it", file=sys.stderr)
            signal.pause()
    except KeyboardInterrupt:
        print("ended", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
