"""Why the operator is not ready: said in the log, and as an Event of its own pod, where `kubectl describe` shows it.

The kubelet's Event about a probe that failed holds a status code and no reason. Telling is worth one try.
"""

import asyncio
import logging

from kubeharness_operator.health import Health
from kubeharness_operator.ports import Cluster, ClusterError, ObjectEvent
from kubeharness_operator.settings import OperatorSettings

LOOK_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""A start or a blink is no news."""
SPACING_SECONDS = 10.0
"""Between two Events, whatever happens."""

log = logging.getLogger(__name__)


class PodEvents:
    """Tells of each change of readiness that lasts."""

    def __init__(self, cluster: Cluster, health: Health, settings: OperatorSettings) -> None:
        self._cluster = cluster
        self._health = health
        self._settings = settings

    async def run(self) -> None:
        """Watch our own readiness for ever."""
        loop = asyncio.get_running_loop()
        told = said = ""
        since, told_at = loop.time(), loop.time() - SPACING_SECONDS
        while True:
            ready, why = self._health.ready()
            why = "" if ready else why
            if why != said:
                said, since = why, loop.time()
                log.warning("not ready: %s", why) if why else log.info("ready")
            lasts = loop.time() - since >= SETTLE_SECONDS and loop.time() - told_at >= SPACING_SECONDS
            if said != told and lasts:
                await self._tell(said)
                told, told_at = said, loop.time()
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell(self, why: str) -> None:
        given = self._settings
        if given.pod_name is None or given.pod_namespace is None or given.pod_uid is None:
            return
        event = ObjectEvent(
            api_version="v1",
            kind="Pod",
            namespace=given.pod_namespace,
            name=given.pod_name,
            uid=given.pod_uid,
            version="",
            warning=bool(why),
            reason="NotReady" if why else "Ready",
            message=why or "ready",
        )
        try:
            await self._cluster.record(event)
        except ClusterError as error:
            log.warning("no Event says so on the pod: %s", error)
