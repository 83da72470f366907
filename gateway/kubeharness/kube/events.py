"""A pod's own Events: why it is not ready, where `kubectl describe pod` shows it. Needs `create` on events.

The kubelet's Event about a probe that failed holds a status code and no reason. Telling is worth one try and delays
nobody: a reason that is over before it is told is not told.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from kubeharness.kube.connection import connect

log = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
SETTLE_SECONDS = 5.0
"""A start or a blink is no news."""
SPACING_SECONDS = 10.0
"""Between two Events, whatever happens."""
LONGEST_MESSAGE = 1024


class PodEvents:
    """Tells one pod's Events of each change that lasts."""

    def __init__(self, *, namespace: str, name: str, uid: str, component: str) -> None:
        self._pod = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        self._component = component
        self._why = ""
        self._changed = asyncio.Event()

    def tell(self, why: str) -> None:
        """Say soon why the pod is not ready; empty: it is."""
        self._why = why
        self._changed.set()

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell for as long as the block lasts."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._tell_for_ever(), name="pod events")
            try:
                yield
            finally:
                task.cancel()

    async def _tell_for_ever(self) -> None:
        import aiohttp

        told = ""
        while True:
            await self._changed.wait()
            await asyncio.sleep(SETTLE_SECONDS)
            self._changed.clear()
            why = self._why
            if why == told:
                continue
            try:
                await self._create(self._event(why))
            except (aiohttp.ClientError, OSError, ValueError) as error:  # a courtesy: the log has the reason
                log.warning("no Event says so on the pod: %s", error)
            told = why
            await asyncio.sleep(SPACING_SECONDS)

    async def _create(self, event: dict[str, Any]) -> None:
        from kubernetes_asyncio.client import CoreV1Api

        api = await connect()
        try:
            create: Any = CoreV1Api(api).create_namespaced_event
            response = await create(
                self._pod["namespace"], event, _preload_content=False, _request_timeout=REQUEST_SECONDS
            )
            async with response:
                body = await response.read()
            if response.status not in (200, 201):
                raise ValueError(f"{response.status} {_message(body)}; it needs create on events in its namespace")
        finally:
            await api.close()

    def _event(self, why: str) -> dict[str, Any]:
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._pod['name']}.", "namespace": self._pod["namespace"]},
            "involvedObject": self._pod,
            "type": "Warning" if why else "Normal",
            "reason": "NotReady" if why else "Ready",
            "message": (why or "ready")[:LONGEST_MESSAGE],
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._pod["name"],
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }


def _message(body: bytes) -> str:
    try:
        status = json.loads(body)
    except ValueError:
        return ""
    return str(status.get("message", ""))[:200] if isinstance(status, dict) else ""
