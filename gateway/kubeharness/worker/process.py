"""One worker: heads, checks and coordinator side by side, until it is told to stop; then a drain."""

import asyncio
import logging
from dataclasses import dataclass, field

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.engine.checks import Checks
from kubeharness.engine.coordinator import Coordinator
from kubeharness.engine.heads import Heads
from kubeharness.engine.ports import Clock, Store
from kubeharness.engine.services import Services
from kubeharness.worker.readiness import Readiness

log = logging.getLogger(__name__)

STALE_CHECK_SECONDS = 0.5
DEAD_SECONDS = 60.0
GOODBYE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What a worker process runs; composed elsewhere."""

    store: Store
    clock: Clock
    heads: Heads
    checks: Checks
    coordinator: Coordinator
    services: Services
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "readiness", Readiness(self._may_work))

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then claim no more, hand over at seams, and return within the drain."""
        async with asyncio.TaskGroup() as life:
            background = [
                life.create_task(self.heads.run(), name="heads"),
                life.create_task(self.checks.run(), name="checks"),
                life.create_task(self.readiness.run(), name="readiness"),
                life.create_task(self._hold_back(), name="hold back"),
            ]
            coordinator = life.create_task(self.coordinator.run(), name="coordinator")
            await stop.wait()
            log.info("draining: %d attempts are held", self.coordinator.held)
            self.services.draining.set()
            self.coordinator.rouse()
            try:
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self.heads.drain()
            except (KubeharnessError, TimeoutError) as error:
                log.warning("could not say that this worker drains: %s", error)
            await coordinator
            for task in background:
                task.cancel()
            log.info("drained: nothing is held")

    async def _hold_back(self) -> None:
        """Nothing is claimed on old heads, nor on a schema that this build may not run on."""
        while True:
            self.coordinator.hold_back(not (self.heads.fresh and self.readiness.well))
            await asyncio.sleep(STALE_CHECK_SECONDS)

    async def live(self) -> tuple[bool, str]:
        """The claim loop still goes round; the database is not asked (C49)."""
        silent = self.clock.monotonic() - self.coordinator.last_look
        if silent > DEAD_SECONDS and not self.services.draining.is_set():
            return False, f"the claim loop has not gone round for {silent:.0f} s"
        return True, ""

    async def ready(self) -> tuple[bool, str]:
        """Not draining, the store answers with a schema of ours, and the head clock found at start is loaded."""
        return await self.readiness.look()

    async def _may_work(self) -> None:
        if self.services.draining.is_set():
            raise Unavailable("draining")
        await self.store.ready()
        if not self.heads.caught_up:
            raise Unavailable("the heads found at start are not loaded yet")
