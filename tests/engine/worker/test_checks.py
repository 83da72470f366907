"""Checks are answered by workers: each on its own, none at the price of another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.core.json import Json
from kubeharness.engine import checks as modules
from kubeharness.engine.checks import Checks
from kubeharness.engine.ports import CheckLease, CheckPut, CheckResult
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from kubeharness.store.wakers import LocalWaker
from kubeharness.tools.tasks import OwnedTasks
from support.house import until


class Probe:
    """Answers by the name of what is asked."""

    async def run(self, check: CheckLease) -> tuple[bool, str, str, Json]:
        match check.name:
            case "raises":
                raise ValueError("s3cr3t")
            case "hangs":
                await asyncio.sleep(60)
        return True, "", "", {"tools": []}


class Forgets(TransactionalStore):
    """One answer cannot be stored."""

    async def check_done(
        self, lease: CheckLease, *, ok: bool, reason: str = "", message: str = "", result: Json = None
    ) -> None:
        if lease.name == "lost":
            raise Unavailable("away")
        await super().check_done(lease, ok=ok, reason=reason, message=message, result=result)


@asynccontextmanager
async def checking(*names: str) -> AsyncIterator[TransactionalStore]:
    store, waker = Forgets(MemoryBackend()), LocalWaker()
    await store.check_put(
        [CheckPut(kind="tools", namespace="default", name=name, uid=name, digest="d", payload={}) for name in names]
    )
    async with OwnedTasks() as tasks:
        tasks.start(Checks(store=store, waker=waker, probe=Probe(), owner="w1", poll_ms=20).run())
        yield store


async def answer(store: TransactionalStore, name: str) -> CheckResult:
    async def done() -> bool:
        found = await store.check_get("tools", "default", name)
        return found is not None and found.done

    await until(done)
    found = await store.check_get("tools", "default", name)
    assert found is not None
    return found


async def test_one_that_raises_hangs_or_cannot_be_stored_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "DEADLINE_SECONDS", 0.2)
    async with checking("lost", "raises", "hangs", "good") as store:
        good = await answer(store, "good")
        raised = await answer(store, "raises")
        hung = await answer(store, "hangs")

    assert (good.ok, good.result) == (True, {"tools": []})
    assert (raised.ok, raised.reason, raised.message) == (False, "CheckFailed", "ValueError")
    assert (hung.ok, hung.reason) == (False, "DeadlineExceeded")
