"""What can go wrong with a test cluster; each error tells its reader what to do next.

ClusterError
├── CommandMissing       a command that the machine must have is not there
├── BuildFailed          executables of the cluster could not be built
├── ImageFailed          the product's image or its base could not be built
├── NoCluster            the environment names a cluster that cannot be had
├── ProcessFailed        a process of the control plane ended, or was not ready in time
├── NamespaceFailed      the node's network namespace cannot be made or entered
├── SweepFailed          what a node left does not go away
├── NotReady             a node that ran does not answer in time
├── ImportFailed         the node did not take an image
├── DatabaseFailed       the Postgres beside the node refused a statement
├── NotOffered           this cluster cannot do what a test asks of it
├── KubectlFailed        kubectl ended with an error
└── NoAuditLog           this cluster's audit log is not ours to read
"""

from collections.abc import Sequence
from pathlib import Path


class ClusterError(Exception):
    """Anything that keeps a test from the cluster it asked for: a failure, never a skip."""


class CommandMissing(ClusterError):
    """A command that the machine must have is not there."""

    def __init__(self, command: str, remedy: str) -> None:
        super().__init__(f"the test cluster needs {command!r}, which is not on this machine: {remedy}")
        self.command = command


class BuildFailed(ClusterError):
    """Executables of the cluster could not be built."""

    def __init__(self, name: str, reason: str, output: str) -> None:
        super().__init__(f"building {name} failed: {reason}\n{output}")


class ImageFailed(ClusterError):
    """The product's image or its base could not be built."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"no image: {reason}\n{detail}")


class NoCluster(ClusterError):
    """The environment names a cluster that cannot be had."""


class ProcessFailed(ClusterError):
    """A process of the control plane ended, or was not ready in time."""

    def __init__(self, name: str, what: str, log: Path, tail: str) -> None:
        super().__init__(f"{name} {what}; the end of its log {log}:\n{tail}")
        self.name = name
        self.log = log


class NamespaceFailed(ClusterError):
    """The node's network namespace cannot be made or entered."""

    def __init__(self, what: str, said: str) -> None:
        super().__init__(f"the node tier runs in a network namespace of its own and must be root: {what}: {said}")


class SweepFailed(ClusterError):
    """What a node left does not go away."""

    def __init__(self, folder: Path, why: str) -> None:
        super().__init__(f"the node in {folder} cannot be cleared away: {why}; end or unmount these, then try again")


class NotReady(ClusterError):
    """A node that ran does not answer in time."""


class ImportFailed(ClusterError):
    """The node did not take an image."""

    def __init__(self, archive: Path, said: str) -> None:
        super().__init__(f"image archive {archive} was not imported: {said}")


class DatabaseFailed(ClusterError):
    """The Postgres beside the node refused a statement."""

    def __init__(self, statement: str, said: str) -> None:
        super().__init__(f"{statement}: {said}")


class NotOffered(ClusterError):
    """This cluster cannot do what a test asks of it."""

    def __init__(self, what: str, kind: str) -> None:
        super().__init__(
            f"{what} takes a node of our own, this is {kind}: run this test without KUBEHARNESS_TEST_CLUSTER"
        )


class KubectlFailed(ClusterError):
    """kubectl ended with an error, or not in time; `stderr` is what the server or kubectl said."""

    def __init__(self, args: Sequence[str], what: str, stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(args)}: {what}\n{stderr}")
        self.stderr = stderr


class NoAuditLog(ClusterError):
    """This cluster's audit log is not ours to read."""

    def __init__(self) -> None:
        super().__init__(
            "writes are counted in the API server's audit log, which only our own control plane hands out: "
            "run this test without KUBEHARNESS_TEST_CLUSTER=given"
        )
