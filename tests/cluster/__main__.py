"""A cluster without a test: `python -m cluster VERB`.

build           have the control plane's binaries ready
up, down        start the node that stays (`make cluster-up`), end it (`make cluster-down`)
run -- COMMAND  run a command in the network of a node of its own, with its KUBECONFIG; the node ends with it
control-plane   run tier one until Ctrl-C
"""

import argparse
import os
import signal
import subprocess
import sys
import time

from cluster import own_node
from cluster.binaries import control_plane_binaries
from cluster.control_plane import ControlPlane
from cluster.errors import ClusterError


def main() -> int:
    """Return the exit status: that of the command run, 0, or 1 with one sentence on standard error."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__, formatter_class=formatter)
    parser.add_argument("verb", choices=["build", "up", "down", "run", "control-plane"])
    parser.add_argument("command", nargs="*")
    given = parser.parse_args()
    # SIGTERM ends it as Ctrl-C does: both must leave nothing behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        match given.verb:
            case "build":
                print(control_plane_binaries())
            case "up":
                _up()
            case "down":
                _down()
            case "run":
                return _run(given.command)
            case _:
                _control_plane()
    except ClusterError as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ended", file=sys.stderr)
        return 130
    return 0


def _up() -> None:
    began = time.monotonic()
    kept = own_node.keep_node()
    print(f"ready after {time.monotonic() - began:.0f} s; logs in {kept.logs}, state in {kept.folder}", file=sys.stderr)
    print(f"export KUBECONFIG={kept.kubeconfig}")
    print(f"{' '.join(kept.nsenter)} kubectl get nodes   # API, Services and pods are reached from inside only")
    print(f"{' '.join(kept.nsenter)} curl -i {kept.router}   # Ingress and HTTPRoute")
    print(f"psql '{kept.database.socket_url()}'   # from anywhere")


def _down() -> None:
    began = time.monotonic()
    own_node.clear_abandoned()
    own_node.end_kept_node()
    print(f"ended after {time.monotonic() - began:.1f} s", file=sys.stderr)


def _run(command: list[str]) -> int:
    with own_node.own_node() as own:
        environment = os.environ | {"KUBECONFIG": str(own.kubeconfig)}
        return subprocess.run(command, env=environment, check=False).returncode


def _control_plane() -> None:
    with ControlPlane() as cluster:
        print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
        print(f"ready at {cluster.server}, logs in {cluster.folder}; Ctrl-C ends it", file=sys.stderr)
        signal.pause()


if __name__ == "__main__":
    raise SystemExit(main())
