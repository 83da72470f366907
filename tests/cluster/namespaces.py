"""A network namespace that holds a whole cluster, and how a thread of ours gets into it.

Whatever listens or routes there touches nothing of the host; unix sockets and files are shared.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.components import SERVICE_RANGE
from cluster.errors import NamespaceFailed

FOLDER = Path("/run/netns")
BRIDGE = "cni0"
ADDRESS = "10.88.0.1"
POD_RANGE = "10.88.0.0/16"

_CLONE_NEWNET = 0x40000000


class NetworkNamespace:
    """A named network namespace, as `ip netns` knows it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = FOLDER / name

    @property
    def nsenter(self) -> list[str]:
        """What to write before a command so that it runs inside.

        Not `ip netns exec`: that mounts a fresh /sys and hides the cgroups.
        """
        return ["nsenter", f"--net={self.path}"]

    def create(self) -> None:
        """Make it, with a bridge that is the node's address and the pods' gateway, and a way to Services.

        Raises NamespaceFailed, mostly because we are not root.
        """
        _ip("netns", "add", self.name)
        inside = ("-n", self.name)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "link", "add", BRIDGE, "type", "bridge")
        _ip(*inside, "addr", "add", f"{ADDRESS}/{POD_RANGE.partition('/')[2]}", "dev", BRIDGE)
        _ip(*inside, "link", "set", BRIDGE, "up")
        # kube-proxy rewrites the address, but the kernel looks for a route before it asks kube-proxy's rules.
        _ip(*inside, "route", "add", SERVICE_RANGE, "dev", BRIDGE)
        with self.entered():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def delete(self) -> None:
        """Remove its name; it ends when the last process in it does. Nothing happens if there is none."""
        if self.path.exists():
            _ip("netns", "delete", self.name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and every process and thread that it starts, is inside for as long as the block lasts."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            inside = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set(inside)
            finally:
                os.close(inside)
            try:
                yield
            finally:
                _set(before)
        finally:
            os.close(before)


@contextmanager
def of_the_host() -> Iterator[None]:
    """This thread is in the network of process 1 for as long as the block lasts: where registries are reached."""
    host = NetworkNamespace("host")
    host.path = Path("/proc/1/ns/net")
    with host.entered():
        yield


def _set(namespace: int) -> None:
    """What `os.setns` is from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise NamespaceFailed("setns", os.strerror(ctypes.get_errno()))


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise NamespaceFailed(f"ip {' '.join(args)}", done.stderr.strip())
