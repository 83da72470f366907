"""The store alone: T3, many sessions at once through the batcher, and T4, commits of one lifecycle after another."""

import asyncio
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Coroutine, Sequence

from benchmarks.floors import BODY, PER_SESSION, RECORDS
from benchmarks.server import clients, committed
from benchmarks.windows import Pace, Tally, Window, contradictions, run_window
from kubeharness.core.ids import AttemptId, InstanceKey, SubmissionId, attempt_id, conversation_id, submission_id
from kubeharness.core.lane import Claimed
from kubeharness.core.records import Draft, Kind
from kubeharness.engine.patience import only
from kubeharness.engine.ports import Admission, Append, Settle, Store
from kubeharness.store.postgres.store import PostgresStore
from support.playing import publish
from support.postgres_server import PostgresServer

SESSIONS = 128
"""In flight at once: what F2 has in its four connections."""
CLAIM_AT_ONCE = 32
LEASE_MS = 60_000
AGENT = "demo"
INCARNATION = f"uid-default-{AGENT}"
KINDS = (
    Kind.USER_MESSAGE,
    Kind.ASSISTANT_MESSAGE_STARTED,
    Kind.ASSISTANT_TEXT_DELTA,
    Kind.ASSISTANT_TEXT_DELTA,
    Kind.ASSISTANT_MESSAGE_COMPLETED,
)
assert len(KINDS) == RECORDS
FEW = 20


def admission(instance: str, number: int) -> Admission:
    """The n-th dispatch of a session, ids derived as the gateway derives them."""
    key = InstanceKey(namespace="default", agent=AGENT, incarnation=INCARNATION, instance=instance)
    dispatch = f"dispatch-{number}"
    return Admission(
        key=key.session(),
        dispatch_id=dispatch,
        digest="sha256:" + hashlib.sha256(dispatch.encode()).hexdigest(),
        submission_id=submission_id(key, dispatch),
        conversation_id=conversation_id(key.session()),
        message=BODY,
        created=draft(Kind.CONVERSATION_CREATED),
    )


def draft(kind: Kind, submission: SubmissionId | None = None) -> Draft:
    """A record of about the size of a real one; the store does not look inside."""
    return Draft(kind=kind, body=BODY, bits=7, submission_id=submission)


def append_of(claimed: Claimed) -> Append:
    """The five records between claim and settlement, in one write."""
    return Append(
        conversation=claimed.lane.id,
        attempt=claimed.attempt,
        number=1,
        lease_ms=LEASE_MS,
        drafts=[draft(kind, claimed.submission_id) for kind in KINDS],
    )


def settle_of(claimed: Claimed, *, number: int = 2) -> Settle:
    """The settlement."""
    return Settle(
        conversation=claimed.lane.id,
        attempt=claimed.attempt,
        number=number,
        submission_id=claimed.submission_id,
        drafts=[draft(Kind.SUBMISSION_SETTLED, claimed.submission_id)],
        success=True,
    )


async def claim(store: Store, limit: int) -> Sequence[Claimed]:
    """Claim as a coordinator does."""
    ids: list[AttemptId] = [attempt_id(time.time_ns() // 1_000_000, os.urandom(10)) for _ in range(limit)]
    return await store.claim(
        owner="bench", pool="shared", attempts=ids, lease_ms=LEASE_MS, failed=1, formats=(1,), all_ready=False
    )


class _Claimer:
    """One claim loop for all sessions of the process: roused by admissions and settlements, as by a hint."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, asyncio.Future[Claimed]] = {}
        self._roused = asyncio.Event()

    def expect(self, submission: str) -> "asyncio.Future[Claimed]":
        """Where the claim of this submission will be."""
        self._waiting[submission] = future = asyncio.get_running_loop().create_future()
        return future

    def rouse(self) -> None:
        """Something may be ready."""
        self._roused.set()

    async def run(self, tally: Tally) -> None:
        """Claim until the window is over and nobody waits."""
        while not tally.over or self._waiting:
            self._roused.clear()
            claimed = await claim(self._store, CLAIM_AT_ONCE)
            for one in claimed:
                self._waiting.pop(one.submission_id).set_result(one)
            if len(claimed) < CLAIM_AT_ONCE:
                try:
                    async with asyncio.timeout(0.05):
                        await self._roused.wait()
                except TimeoutError:
                    pass


async def batched_lifecycles(url: str, pace: Pace) -> Window:
    """T3's subject: 128 sessions, each admitting, appending and settling one item at a call."""
    async with PostgresStore.open(url) as store:
        await publish(store, AGENT)
        claimer = _Claimer(store)

        def session(number: int) -> Callable[[Tally], Coroutine[None, None, None]]:
            async def loop(tally: Tally) -> None:
                for n in itertools.count():
                    if tally.over:
                        return
                    item = admission(f"i-{number}-{n // PER_SESSION}", n)
                    coming = claimer.expect(item.submission_id)
                    only(await store.admit([item]))
                    claimer.rouse()
                    claimed = await coming
                    only(await store.append([append_of(claimed)]))
                    only(await store.settle([settle_of(claimed)]))
                    tally.done += 1

            return loop

        tally, found = await run_window(pace, [claimer.run, *(session(n) for n in range(SESSIONS))])
    return found.window(await contradictions(url, answered=tally.done))


async def commits_of_a_lifecycle(server: PostgresServer, url: str, lifecycles: int) -> float:
    """T4: the commits that one more lifecycle costs, unbatched, by pg_stat_database.

    The difference of a long and a short run, so that connecting and preparing cancel out; what an idle database
    commits in the same time (autovacuum) is taken off, and what is left of that is rounded away.
    """
    async with PostgresStore.open(url, batched=False) as store:
        await publish(store, AGENT)
    short = await _commits(server, url, "short", FEW)
    started = time.monotonic()
    long = await _commits(server, url, "long", FEW + lifecycles)
    seconds = time.monotonic() - started
    idle_from = committed(server, url)
    await asyncio.sleep(seconds)
    idle = committed(server, url) - idle_from
    return round((long - short - idle) / lifecycles, 1)


async def _commits(server: PostgresServer, url: str, run: str, lifecycles: int) -> int:
    before = committed(server, url)
    async with PostgresStore.open(url, batched=False) as store:
        for n in range(lifecycles):
            only(await store.admit([admission(f"{run}-{n // PER_SESSION}", n)]))
            (claimed,) = await claim(store, 1)
            only(await store.append([append_of(claimed)]))
            only(await store.settle([settle_of(claimed)]))
    async with asyncio.timeout(10):
        while clients(server, url):  # a backend tells its counts when it ends
            await asyncio.sleep(0.05)
    return committed(server, url) - before
