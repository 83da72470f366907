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
        self._left: list[int] = []

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
        with _current() as before:
            inside = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _set(inside)
            finally:
                os.close(inside)
            self._left.append(before)
            try:
                yield
            finally:
                self._left.pop()
                _set(before)

    @contextmanager
    def left(self) -> Iterator[None]:
        """This thread is where it was before it first entered, for as long as the block lasts.

        That is kept by us, since not everybody may open the namespace of process 1.
        """
        with _current() as inside:
            if self._left:
                _set(self._left[0])
            try:
                yield
            finally:
                _set(inside)


@contextmanager
def _current() -> Iterator[int]:
    """The namespace in which this thread is."""
    namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield namespace
    finally:
        os.close(namespace)


def _set(namespace: int) -> None:
    """What `os.setns` is from Python 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise NamespaceFailed("setns", os.strerror(ctypes.get_errno()))


def _ip(*args: str) -> None:
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise NamespaceFailed(f"ip {' '.join(args)}", done.stderr.strip())
