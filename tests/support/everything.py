"""@modelcontextprotocol/server-everything over streamable HTTP, in a process of its own."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.nodeserver import NODE_MODULES, running_node

_INDEX = NODE_MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"


@dataclass(frozen=True)
class Everything:
    """A running server; `port` may be given to the next one, which then has forgotten every session."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """What a ToolServer's `url` is."""
        return f"http://127.0.0.1:{self.port}/mcp"


def free_port() -> int:
    """A port of loopback that nobody listens on just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running_everything(folder: Path, port: int | None = None) -> Iterator[Everything]:
    """The server for the block."""
    port = port or free_port()
    with running_node(
        [str(_INDEX), "streamableHttp"],
        ready="listening on port",
        log=folder / f"everything-{port}.log",
        environment={"PORT": str(port)},
    ) as (_, process):
        yield Everything(port, process.pid)
