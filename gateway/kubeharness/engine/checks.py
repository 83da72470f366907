"""Leases due checks and has the probe answer them: what needs a Secret's value or egress is asked here, by workers."""

import asyncio
import logging
import random

from kubeharness.core.errors import KubeharnessError
from kubeharness.engine.patience import Trouble
from kubeharness.engine.ports import CheckLease, Probe, Store, Waker

log = logging.getLogger(__name__)

AT_ONCE = 8
LEASE_MS = 30_000
DEADLINE_SECONDS = 20.0


class Checks:
    """A worker's share of the checks."""

    def __init__(self, *, store: Store, waker: Waker, probe: Probe, owner: str, poll_ms: int = 1000) -> None:
        self._store = store
        self._waker = waker
        self._probe = probe
        self._owner = owner
        self._poll_ms = poll_ms
        self._roused = asyncio.Event()

    async def run(self) -> None:
        """Answer checks until cancelled; a failing database is waited for."""
        unhook = self._waker.on_work(self._roused.set)
        trouble = Trouble(log, "checks are not asked for")
        try:
            while True:
                self._roused.clear()
                done = 0
                try:
                    done = await self._round()
                    trouble.over()
                except KubeharnessError as error:
                    trouble.met(error)
                except Exception:  # one bad check stops no other (I14)
                    log.exception("a check failed badly")
                if done < AT_ONCE:
                    await self._rest()
        finally:
            unhook()

    async def _round(self) -> int:
        leases = await self._store.check_claim(owner=self._owner, limit=AT_ONCE, lease_ms=LEASE_MS)
        async with asyncio.TaskGroup() as tasks:
            for lease in leases:
                tasks.create_task(self._answer(lease))
        if leases:
            self._waker.touched([], work=True)
        return len(leases)

    async def _answer(self, lease: CheckLease) -> None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                ok, reason, message, result = await self._probe.run(lease)
        except TimeoutError:
            ok, reason, message, result = False, "DeadlineExceeded", f"no answer within {DEADLINE_SECONDS:.0f} s", None
        except Exception as error:
            log.exception("check %s %s/%s", lease.kind, lease.namespace, lease.name)
            ok, reason, message, result = False, "CheckFailed", type(error).__name__, None
        try:
            await self._store.check_done(lease, ok=ok, reason=reason, message=message, result=result)
        except KubeharnessError as error:  # its lease runs out and it is asked again; the others go on (I14)
            log.warning("check %s %s/%s: %s", lease.kind, lease.namespace, lease.name, error)

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(self._poll_ms / 1000 * random.uniform(0.8, 1.2)):
                await self._roused.wait()
                await asyncio.sleep(0.05)
        except TimeoutError:
            pass
