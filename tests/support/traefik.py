"""Traefik on loopback before one gateway, twice: once it takes the path prefix off, once it passes it on."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from cluster import binaries
from cluster.processes import free_ports, running

START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Doors:
    """The two addresses, the prefix not among them."""

    strips: str
    passes: str


@asynccontextmanager
async def traefik(folder: Path, gateway: str, prefix: str) -> AsyncIterator[Doors]:
    """Run it until the block ends; when it is entered, the gateway answers through both doors."""
    ports = free_ports(2)
    doors = Doors(*(f"http://127.0.0.1:{port}" for port in ports))
    routes = folder / "routes.yaml"
    routes.write_text(json.dumps(_routes(gateway, prefix)))
    command: list[str | Path] = [
        binaries.traefik(),
        f"--entryPoints.strips.address=127.0.0.1:{ports[0]}",
        f"--entryPoints.passes.address=127.0.0.1:{ports[1]}",
        f"--providers.file.filename={routes}",
        "--providers.file.watch=false",
        "--global.checkNewVersion=false",
        "--global.sendAnonymousUsage=false",
    ]
    with running(command, folder / "traefik.log") as process:
        end = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(timeout=5) as client:
            for door in (doors.strips, doors.passes):
                while not await _opens(client, f"{door}{prefix}/healthz"):
                    process.require_alive()
                    if time.monotonic() > end:
                        raise process.failed(f"does not serve {door} in time")
                    await asyncio.sleep(0.05)
        yield doors


async def _opens(client: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx2.TransportError:
        return False


def _routes(gateway: str, prefix: str) -> dict[str, object]:
    rule = f"PathPrefix(`{prefix}`)"
    return {
        "http": {
            "routers": {
                "strips": {"rule": rule, "entryPoints": ["strips"], "middlewares": ["strip"], "service": "gateway"},
                "passes": {"rule": rule, "entryPoints": ["passes"], "service": "gateway"},
            },
            "middlewares": {"strip": {"stripPrefix": {"prefixes": [prefix]}}},
            "services": {"gateway": {"loadBalancer": {"servers": [{"url": gateway}]}}},
        }
    }
