"""Proxies that misbehave on demand: before the API server, request by request, and before a database, byte by byte."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from cluster.access import Cluster

BUSY = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "ServiceUnavailable", "code": 503}
GONE = {"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired"}}


class ApiProxy:
    """Speaks plain HTTP to the operator and TLS to the API server, one request a connection."""

    def __init__(self, cluster: Cluster) -> None:
        address = urlsplit(cluster.server)
        self._host, self._port = address.hostname or "127.0.0.1", address.port or 443
        self._tls = ssl.create_default_context(cadata=cluster.ca.decode())
        self._open: set[asyncio.StreamWriter] = set()
        self.watches = 0
        """How many watches began."""
        self.refused = 0
        self.refuse = 0
        """So many of the next lists and watches of our kinds are answered with 503."""
        self.expire_watches = 0
        """So many of the next watches are answered with 410."""
        self.black_hole = False
        """What comes is swallowed; connections that were open then never come back."""

    def reset(self) -> None:
        """Cut every connection at once."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._request(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if self.black_hole:
            await asyncio.sleep(3600)
        target = lines[0].split(" ")[1]
        watch = "watch=true" in target
        if self.refuse and target.split("?")[0].rsplit("/", 1)[-1] in ("agents", "modelproviders"):
            self.refuse -= 1
            self.refused += 1
            return await self._answer(writer, "503 Service Unavailable", BUSY)
        if watch:
            self.watches += 1
            if self.expire_watches:
                self.expire_watches -= 1
                return await self._answer(writer, "200 OK", GONE)
        kept = [line for line in lines[:-2] if not line.lower().startswith("connection:")]
        await self._forward("\r\n".join([*kept, "Connection: close", "", ""]).encode() + body, writer)
        return None

    async def _answer(self, writer: asyncio.StreamWriter, status: str, content: object) -> None:
        body = json.dumps(content).encode() + b"\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        await writer.drain()

    async def _forward(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        out.write(request)
        try:
            while data := await upstream.read(65536):
                if self.black_hole:
                    await asyncio.sleep(3600)
                writer.write(data)
                await writer.drain()
        finally:
            out.close()


@asynccontextmanager
async def api_proxy(cluster: Cluster, kubeconfig: Path) -> AsyncIterator[tuple[ApiProxy, Path]]:
    """A proxy and a kubeconfig that leads through it, with the rights of the given one."""
    proxy = ApiProxy(cluster)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    path = kubeconfig.with_suffix(".proxied")
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    try:
        yield proxy, path
    finally:
        server.close()
        proxy.reset()


class Forwarder:
    """A door before a TCP server that can be shut: then connections are cut, and new ones refused."""

    def __init__(self, host: str, port: int, listen: int) -> None:
        self._host, self._to, self._listen = host, port, listen
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._listen)

    def down(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, out = await asyncio.open_connection(self._host, self._to)
        self._open |= {writer, out}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, out))
                tasks.create_task(self._copy(upstream, writer))
        finally:
            self._open -= {writer, out}

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
