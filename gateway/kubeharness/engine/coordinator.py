"""Claims ready lanes and owns their attempts; sweeps delays and reaps lost leases.

A hint rouses it, a jittered safety poll does so without one (I1). On drain it claims no more, lets attempts reach a
seam, then has them hand over where they stand (C03).
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from kubeharness.core.errors import KubeharnessError, Unavailable
from kubeharness.core.ids import AttemptId, attempt_id
from kubeharness.core.lane import Claimed
from kubeharness.core.revision import FORMAT
from kubeharness.engine.attempt import Attempt
from kubeharness.engine.crashpoints import CrashPoint
from kubeharness.engine.lease import Lease
from kubeharness.engine.patience import Trouble
from kubeharness.engine.services import Services

log = logging.getLogger(__name__)

CLAIM_AT_ONCE = 32
ALL_READY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a worker looks, how much it holds, how long it drains."""

    slots: int = 32
    poll_ms: int = 250
    sweep_ms: int = 1000
    drain_seconds: float = 25.0


class Coordinator:
    """One worker's claims."""

    def __init__(self, *, owner: str, pool: str, services: Services, lease: Lease, pace: Pace) -> None:
        self._owner = owner
        self._pool = pool
        self._s = services
        self._lease = lease
        self._pace = pace
        self._roused = asyncio.Event()
        self._running: dict[AttemptId, Claimed] = {}
        self._stale = False
        self._claiming = True
        self._trouble = Trouble(log, "nothing is claimed")
        self.last_look: float = services.clock.monotonic()
        """When the claim loop last went round: liveness asks."""

    def rouse(self) -> None:
        """Look at once: a lane may be ready, or a run of ours has mail."""
        self._roused.set()
        self._lease.hasten()

    @property
    def held(self) -> int:
        """How many attempts are running here."""
        return len(self._running)

    def hold_back(self, stale: bool) -> None:
        """Claim nothing while this process is behind on configuration."""
        self._stale = stale

    async def run(self) -> None:
        """Work until draining is set, then hand over and return."""
        unhook = self._s.waker.on_work(self.rouse)
        try:
            async with asyncio.TaskGroup() as life:
                lease = life.create_task(self._lease.run(), name="lease")
                upkeep = life.create_task(self._upkeep(), name="upkeep")
                async with asyncio.TaskGroup() as attempts:
                    attempts.create_task(self._leave_after_drain(), name="drain")
                    await self._claim_until_draining(attempts)
                    self._claiming = False
                upkeep.cancel()
                lease.cancel()
        finally:
            unhook()

    async def _claim_until_draining(self, attempts: asyncio.TaskGroup) -> None:
        all_ready_at = 0.0
        while not self._s.draining.is_set():
            now = self.last_look = self._s.clock.monotonic()
            all_ready = now >= all_ready_at
            if all_ready:
                all_ready_at = now + ALL_READY_SECONDS * random.uniform(0.8, 1.2)
            self._roused.clear()
            claimed = await self._claim(all_ready=all_ready)
            for one in claimed:
                self._start(one, attempts)
            if len(claimed) < CLAIM_AT_ONCE or self.held >= self._pace.slots:
                await self._rest()

    async def _rest(self) -> None:
        """Until roused or draining, at most one jittered poll."""
        try:
            async with asyncio.timeout(self._pace.poll_ms / 1000 * random.uniform(0.8, 1.2)):
                await self._roused.wait()
        except TimeoutError:
            pass

    async def _claim(self, *, all_ready: bool) -> Sequence[Claimed]:
        free = min(CLAIM_AT_ONCE, self._pace.slots - self.held)
        if free <= 0 or self._stale:
            return ()
        now = int(self._s.clock.now().timestamp() * 1000)
        ids = [attempt_id(now, secrets.token_bytes(10)) for _ in range(free)]
        poisoned = any(one.lane.counters.failures > 1 for one in self._running.values())
        try:
            claimed = await self._s.store.claim(
                owner=self._owner,
                pool=self._pool,
                attempts=ids,
                lease_ms=self._s.lease_ms,
                failed=0 if poisoned else 1,
                formats=(FORMAT,),
                all_ready=all_ready,
            )
        except Unavailable as error:
            self._trouble.met(error)
            return await self._ask_what_is_held(ids)
        except Exception:  # one bad row must not end the runs that are held here (I14)
            log.exception("claim failed")
            return await self._ask_what_is_held(ids)
        self._trouble.over()
        return claimed

    async def _ask_what_is_held(self, ids: Sequence[AttemptId]) -> Sequence[Claimed]:
        """The answer of a claim was lost: the ids that we made say what became of it (I4).

        Asked also while draining: what is held unknowingly waits for its lease, and counts as a failure.
        """
        pause = 0.2
        while not self._s.leave_now.is_set():
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2.0, pause * 2)
            self.last_look = self._s.clock.monotonic()
            try:
                return await self._s.store.held(ids)
            except Unavailable:
                continue
            except Exception:  # as above; what was claimed, if anything, goes back when its lease is over
                log.exception("the question after a claim failed")
                return ()
        return ()

    def _start(self, claimed: Claimed, attempts: asyncio.TaskGroup) -> None:
        self._s.crash.reach(CrashPoint.AFTER_CLAIM)
        attempt = Attempt(claimed, self._s)
        self._running[claimed.attempt] = claimed
        self._lease.hold(claimed.attempt, attempt.learn)
        attempts.create_task(self._see_through(claimed, attempt), name=f"attempt {claimed.attempt}")

    async def _see_through(self, claimed: Claimed, attempt: Attempt) -> None:
        try:
            await attempt.run()
        except Exception:  # one bad run stops no other; its lease runs out (I14)
            log.exception("attempt %s ended badly", claimed.attempt)
        finally:
            self._lease.drop(claimed.attempt)
            self._running.pop(claimed.attempt, None)
            self._roused.set()

    async def _leave_after_drain(self) -> None:
        """Attempts have until the drain's end to reach a seam."""
        await self._s.draining.wait()
        ends = self._s.clock.monotonic() + self._pace.drain_seconds
        while (self._claiming or self._running) and self._s.clock.monotonic() < ends:
            self._roused.clear()
            await self._rest()
        self._s.leave_now.set()

    async def _upkeep(self) -> None:
        """Sweep delays, reap lost leases. Reaps only after half a lease of unbroken connection (I10).

        Neither a database that stood still nor a process that was frozen let anybody renew meanwhile.
        """
        half_a_lease = self._s.lease_ms / 2000
        trouble = Trouble(log, "delays and lost leases are not looked after")
        sweep_seconds = self._pace.sweep_ms / 1000
        connected_since = looked_at = self._s.clock.monotonic()
        while True:
            await asyncio.sleep(sweep_seconds * random.uniform(0.8, 1.2))
            try:
                ready = list(await self._s.store.sweep())
                now = self._s.clock.monotonic()
                if now - looked_at >= sweep_seconds + half_a_lease:
                    connected_since = now
                looked_at = now
                if now - connected_since >= half_a_lease:
                    ready += await self._s.store.reap()
            except KubeharnessError as error:
                trouble.met(error)
                connected_since = self._s.clock.monotonic()
                continue
            except Exception:  # upkeep must go on, or lost lanes stay lost
                log.exception("upkeep failed")
                continue
            trouble.over()
            if ready:
                self._s.waker.touched([], work=True)
                self._roused.set()
