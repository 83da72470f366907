"""The only place that knows which concrete class is used: rooms built from settings, as async context managers."""

import asyncio
import ipaddress
import os
import secrets as randomness
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from kubeharness.core.ids import AttemptId
from kubeharness.engine.checks import Checks
from kubeharness.engine.coordinator import Coordinator, Pace
from kubeharness.engine.crashpoints import UNARMED, CrashPoint, CrashPoints
from kubeharness.engine.heads import Heads
from kubeharness.engine.lease import Lease, Renew
from kubeharness.engine.ports import Renewal, SecretSource, Store, Waker
from kubeharness.engine.revisions import Revisions
from kubeharness.engine.seams import Seams
from kubeharness.engine.services import Services
from kubeharness.secrets.directory import DirectorySecrets
from kubeharness.secrets.env import EnvSecrets
from kubeharness.settings import Settings
from kubeharness.worker.process import Worker

if TYPE_CHECKING:
    from kubeharness.api.auth import Auth


class SystemClock:
    """The process's own clock."""

    def now(self) -> datetime:
        """Now, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


OpenRenewer = Callable[[str, int], AbstractAsyncContextManager[Renew]]
"""(owner, lease in milliseconds) → a renewal in the event loop that enters it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A store, its hints, and how its leases are renewed."""

    store: Store
    waker: Waker
    renewer: OpenRenewer
    own_thread: bool = True
    """The renewal may run on a thread of its own (I14); a memory store lives in one loop."""


@asynccontextmanager
async def open_store(settings: Settings, *, wait: bool = False) -> AsyncIterator[Stored]:
    """The store of DATABASE_URL. Raises ValueError for a DSN of no known kind, Unavailable where it does not answer.

    With `wait`, as in a pod, a DSN of no known kind is a database that does not answer: who waits is not restarted.
    """
    url = settings.database()
    if url == "memory:":
        from kubeharness.store.memory import MemoryBackend
        from kubeharness.store.store import TransactionalStore
        from kubeharness.store.wakers import LocalWaker

        store = TransactionalStore(MemoryBackend())
        yield Stored(store=store, waker=LocalWaker(), renewer=_over(lambda: nullcontext(store)), own_thread=False)
    elif url.startswith("sqlite:"):
        path = sqlite_path(url)
        async with _sqlite(path) as (sqlite, waker):
            yield Stored(store=sqlite, waker=waker, renewer=_over(lambda: _only_store(path)))
    elif wait or url.startswith(("postgresql:", "postgres:")):
        from kubeharness.store.postgres.notify import PostgresWaker
        from kubeharness.store.postgres.store import PostgresStore

        async with (
            PostgresStore.open(url, pooled=settings.database_pooled) as postgres,
            PostgresWaker.open(settings.direct() or url, hints=settings.hints) as listening,
        ):
            yield Stored(
                store=postgres,
                waker=listening,
                renewer=lambda owner, lease_ms: postgres.renewer(lease_ms=lease_ms),
            )
    else:
        raise ValueError("KUBEHARNESS_DATABASE_URL: use postgresql://…, sqlite:///path or memory:")


def sqlite_path(url: str) -> Path:
    """The file of `sqlite:path`, `sqlite:///path` (relative) or `sqlite:////path` (absolute)."""
    rest = url.removeprefix("sqlite:")
    return Path(rest.removeprefix("///") if rest.startswith("///") else rest)


@asynccontextmanager
async def _sqlite(path: Path) -> AsyncIterator[tuple[Store, Waker]]:
    from kubeharness.store.sqlite.store import sqlite_backend
    from kubeharness.store.store import TransactionalStore
    from kubeharness.store.wakers import PollingWaker

    backend = await sqlite_backend(path)
    try:
        waker = PollingWaker(backend.foreign_commits)
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(waker.run(), name="sqlite waker")
            try:
                yield TransactionalStore(backend), waker
            finally:
                polling.cancel()
    finally:
        await backend.aclose()


@asynccontextmanager
async def _only_store(path: Path) -> AsyncIterator[Store]:
    async with _sqlite(path) as (store, _):
        yield store


def _over(open_one: Callable[[], AbstractAsyncContextManager[Store]]) -> OpenRenewer:
    @asynccontextmanager
    async def opened(owner: str, lease_ms: int) -> AsyncIterator[Renew]:
        async with open_one() as store:

            async def renew(attempts: Sequence[AttemptId]) -> Sequence[Renewal]:
                return await store.renew(owner=owner, attempts=attempts, lease_ms=lease_ms)

            yield renew

    return opened


@asynccontextmanager
async def open_secrets(settings: Settings) -> AsyncIterator[SecretSource]:
    """The SecretSource of SECRETS. Raises ValueError for an unknown one."""
    kind, _, rest = settings.secret_source().partition(":")
    if kind == "env":
        yield EnvSecrets()
    elif kind == "dir" and rest:
        yield DirectorySecrets(Path(rest))
    elif kind == "kubernetes":
        from kubeharness.kube.secrets import KubernetesSecrets

        async with KubernetesSecrets(settings.secrets_grant) as source:
            yield source
    else:
        raise ValueError("KUBEHARNESS_SECRETS: use kubernetes, env or dir:PATH")


@asynccontextmanager
async def open_auth(settings: Settings) -> AsyncIterator["Auth"]:
    """Who may call, by AUTH.

    Raises ValueError for a gateway that would be open without being told so, and for a mode that lacks what it needs.
    """
    from kubeharness.api.auth import AnyOf, Open, Reviewed
    from kubeharness.api.tokens import Tokens

    if settings.auth == ("none",):
        if not settings.auth_insecure and not _loopback(settings.host):
            raise ValueError(
                f"KUBEHARNESS_AUTH=none would be open on {settings.host}; use KUBEHARNESS_AUTH=token or kubernetes, "
                "HOST=127.0.0.1, or say KUBEHARNESS_AUTH_INSECURE=true"
            )
        yield Open()
        return
    if "none" in settings.auth:
        raise ValueError(f"KUBEHARNESS_AUTH={','.join(settings.auth)}: use token, kubernetes or both, or none alone")
    modes: list[Auth] = []
    async with AsyncExitStack() as stack:
        # In this order, whatever was said: a key of ours is known without asking anybody.
        if "token" in settings.auth:
            if settings.tokens_file is None:
                raise ValueError("KUBEHARNESS_AUTH=token needs KUBEHARNESS_TOKENS_FILE (or say KUBEHARNESS_AUTH=none)")
            modes.append(Tokens(settings.tokens_file))
        if "kubernetes" in settings.auth:
            from kubeharness.kube.review import KubernetesReview

            try:
                review = await stack.enter_async_context(KubernetesReview(audiences=settings.auth_audiences))
            except ValueError as error:
                raise ValueError(f"KUBEHARNESS_AUTH=kubernetes: {error}") from error
            modes.append(Reviewed(review))
        yield modes[0] if len(modes) == 1 else AnyOf(modes)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@asynccontextmanager
async def open_pod_events(settings: Settings) -> AsyncIterator[Callable[[str], None]]:
    """What tells the pod's Events why it is not ready; it does nothing where POD_NAME does not say which pod."""
    if settings.pod_name is None or settings.pod_namespace is None or settings.pod_uid is None:
        yield lambda why: None
        return
    from kubeharness.kube.events import PodEvents

    events = PodEvents(
        namespace=settings.pod_namespace, name=settings.pod_name, uid=settings.pod_uid, component="kubeharness-worker"
    )
    async with events.telling():
        yield events.tell


def release() -> str:
    """Which release this process is of."""
    return metadata.version("kubeharness")


def component_id(role: str) -> str:
    """A name for this process that no other has."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{randomness.token_hex(4)}"


@asynccontextmanager
async def open_worker(settings: Settings, stored: Stored, secrets: SecretSource) -> AsyncIterator[Worker]:
    """A worker over a store, not yet running."""
    from kubeharness.providers.resolve import ModelProviders
    from kubeharness.tools.probe import ToolsProbe
    from kubeharness.tools.resolve import Toolboxes

    clock = SystemClock()
    owner = component_id("worker")
    lease_ms = int(settings.lease_seconds * 1000)
    revisions = Revisions(stored.store, clock)
    async with AsyncExitStack() as stack:
        models = ModelProviders()
        stack.push_async_callback(models.aclose)
        services = Services(
            store=stored.store,
            waker=stored.waker,
            clock=clock,
            secrets=secrets,
            models=models,
            toolboxes=Toolboxes(),
            revisions=revisions,
            lease_ms=lease_ms,
            crash=CrashPoints(CrashPoint(settings.crash_point)) if settings.crash_point else UNARMED,
            seams=Seams(),
            draining=asyncio.Event(),
            leave_now=asyncio.Event(),
        )
        lease = Lease(lambda: stored.renewer(owner, lease_ms), lease_ms=lease_ms, own_thread=stored.own_thread)
        pace = Pace(
            slots=settings.worker_slots,
            poll_ms=settings.poll_ms("worker"),
            sweep_ms=settings.sweep_milliseconds,
            drain_seconds=settings.drain_seconds,
        )
        yield Worker(
            store=stored.store,
            clock=clock,
            heads=Heads(
                stored.store,
                stored.waker,
                clock,
                owner,
                "worker",
                settings.pool,
                prepare=revisions.prepare,
                release=release(),
            ),
            checks=Checks(store=stored.store, waker=stored.waker, probe=ToolsProbe(secrets), owner=owner),
            coordinator=Coordinator(owner=owner, pool=settings.pool, services=services, lease=lease, pace=pace),
            services=services,
        )
