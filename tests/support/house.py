"""The whole worker side in one process: a memory store, a coordinator, a scripted model, tools of the test's own.

    async with House(rules=[...], tools=[...]).open() as house:
        ended = await house.settled(await house.dispatch("hello"))

What is stored is verified when the house is left. The store's clock can be moved; waits are in real time.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubeharness.core import codec
from kubeharness.core.dispatch import Dispatch, DispatchMessage
from kubeharness.core.errors import SecretMissing
from kubeharness.core.events import ProviderEvent
from kubeharness.core.ids import InboxId, InstanceKey, SessionKey, SubmissionId, conversation_id, submission_id
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.lane import Lane
from kubeharness.core.messages import ProviderMessage, ToolDefinition, ToolResult
from kubeharness.core.ports import Provider
from kubeharness.core.records import (
    AssistantTextDelta,
    AssistantThinkingDelta,
    ConversationCreated,
    Record,
    SubmissionSettled,
)
from kubeharness.core.revision import AgentRevision, Durability, ModelSettings, ProviderSpec, SecretKeyRef
from kubeharness.engine.cancelling import Cancelling
from kubeharness.engine.coordinator import Coordinator, Pace
from kubeharness.engine.crashpoints import UNARMED
from kubeharness.engine.lease import Lease, Renew
from kubeharness.engine.patience import only
from kubeharness.engine.ports import Admission, HeadWrite
from kubeharness.engine.revisions import Revisions
from kubeharness.engine.seams import Seams
from kubeharness.engine.services import Services
from kubeharness.engine.steering import Steering, Via
from kubeharness.providers.scripted import ScriptedProvider
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from kubeharness.store.verify import verify
from kubeharness.store.wakers import LocalWaker
from kubeharness.tools.tasks import OwnedTasks
from kubeharness.tools.toolbox import Tool, Toolbox
from support.playing import Attempt, WallClock, claim_one

WITHIN_SECONDS = 10.0
KEY = InstanceKey(namespace="default", agent="demo", incarnation="uid-demo", instance="s1")

Stream = Callable[[Sequence[ProviderMessage], Sequence[ToolDefinition]], AsyncIterator[ProviderEvent]]


class StoreClock:
    """The store's clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


def tool(
    name: str,
    run: Callable[[JsonObject], Awaitable[str | ToolResult]],
    *,
    idempotent: bool = False,
    sequential: bool = False,
    timeout_seconds: float = 60.0,
    parameters: JsonObject | None = None,
) -> Tool:
    """A tool of the test's own."""

    async def called(arguments: JsonObject, key: str) -> ToolResult:
        result = await run(arguments)
        return ToolResult(result) if isinstance(result, str) else result

    return Tool(
        definition=ToolDefinition(name, f"The {name} of a test.", parameters or {"type": "object"}),
        run=called,
        idempotent=idempotent,
        sequential=sequential,
        timeout_seconds=timeout_seconds,
    )


def calls(*names: str, **arguments: Json) -> list[JsonObject]:
    """Steps that ask for these tools, all with the same arguments."""
    return [{"toolCall": {"name": name, "arguments": dict(arguments)}} for name in names]


def rule(*steps: JsonObject, **when: Json) -> JsonObject:
    """A rule of the scripted model."""
    return {"when": dict(when), "steps": list(steps)}


class Models:
    """The scripted model, or a stream of the test's own; keeps every request and what it was made with."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self.requests: list[list[ProviderMessage]] = []
        self.keys: list[str | None] = []
        self.tries: list[int] = []

    def provider(self, revision: AgentRevision, *, api_key: str | None, failed_tries: int) -> Provider:
        """The model of one attempt."""
        self.keys.append(api_key)
        self.tries.append(failed_tries)
        scripted = ScriptedProvider(revision.provider.scripted or {}, revision.model.name, failed_tries)
        return _Watched(self._stream or scripted.stream, self.requests)


class _Watched:
    def __init__(self, inner: Stream, requests: list[list[ProviderMessage]]) -> None:
        self._inner = inner
        self._requests = requests

    def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        self._requests.append(list(messages))
        return self._inner(messages, tools)


class Secrets:
    """Secrets by (name, key); says which reads were to pass a cache by."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}
        self.fresh: list[bool] = []
        self.fails: list[Exception] = []
        """Raised by the next reads."""

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str:
        """The value. Raises SecretMissing."""
        self.fresh.append(fresh)
        if self.fails:
            raise self.fails.pop(0)
        if (name, key) not in self.values:
            raise SecretMissing(namespace, name, key)
        return self.values[name, key]


class _Toolboxes:
    def __init__(self, house: "House") -> None:
        self._house = house

    @asynccontextmanager
    async def open(
        self,
        revision: AgentRevision,
        *,
        catalogues: Mapping[str, Json],
        headers: Mapping[str, Mapping[str, str]],
    ) -> AsyncIterator[Toolbox]:
        yield Toolbox(self._house.tools, list(self._house.warnings))


@dataclass
class Worker:
    """A coordinator that runs in this house."""

    services: Services
    coordinator: Coordinator
    task: asyncio.Task[None]

    async def drain(self, *, leave_now: bool = False) -> None:
        """Hand over at the seams, or where the runs stand, and be gone."""
        self.services.draining.set()
        if leave_now:
            self.services.leave_now.set()
        self.coordinator.rouse()
        async with asyncio.timeout(WITHIN_SECONDS):
            await asyncio.wait([self.task])


@dataclass
class House:
    """What a test says of its house, and then does in it."""

    rules: Sequence[JsonObject] = ()
    tools: Sequence[Tool] = ()
    stream: Stream | None = None
    durability: Durability = field(default_factory=Durability)
    lifetime_ms: int = 3_600_000
    window: int = 8000
    api_key: SecretKeyRef | None = None
    seams: Seams = field(default_factory=Seams)
    chunk_delay_ms: int = 0
    chunk_characters: int = 12
    warnings: Sequence[str] = ()
    lease_ms: int = 5000
    wrapped: Callable[[MemoryBackend], TransactionalStore] = TransactionalStore
    workers: int = 1
    given: TransactionalStore | None = None
    """Another store, on a clock of its own."""

    def __post_init__(self) -> None:
        self.store_clock = StoreClock()
        self.store = self.given or self.wrapped(MemoryBackend(self.store_clock))
        self.waker = LocalWaker()
        self.clock = WallClock()
        self.models = Models(self.stream)
        self.secrets = Secrets()
        self.key = KEY.session()
        self.conversation = conversation_id(self.key)
        self.working: list[Worker] = []
        self._count = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["House"]:
        """Publish the agent, start the workers; verify at the end."""
        await self.publish()
        async with OwnedTasks() as tasks:
            self._tasks = tasks
            for _ in range(self.workers):
                self.start_worker()
            yield self
        violations = await verify(self.store)
        assert not violations, violations

    def revision(self) -> AgentRevision:
        """The agent."""
        script: dict[str, Any] = {
            "rules": list(self.rules),
            "chunkCharacters": self.chunk_characters,
            "chunkDelayMilliseconds": self.chunk_delay_ms,
        }
        return AgentRevision(
            agent="demo",
            provider=ProviderSpec(name="script", type="Scripted", scripted=script, api_key=self.api_key),
            model=ModelSettings(name="scripted", context_window=self.window),
            durability=self.durability,
        )

    async def publish(self) -> None:
        """Make the agent's revision the active one."""
        stored = codec.store_revision(self.revision())
        head = HeadWrite(
            namespace="default",
            name="demo",
            uid=KEY.incarnation,
            generation=1,
            desired=stored.id,
            activate=True,
            revision=stored,
            lifetime_ms=self.lifetime_ms,
        )
        await self.store.publish(await self.store.epoch("test"), [head])

    def start_worker(self) -> Worker:
        """One more worker."""
        owner = f"w{len(self.working) + 1}"
        services = Services(
            store=self.store,
            waker=self.waker,
            clock=self.clock,
            secrets=self.secrets,
            models=self.models,
            toolboxes=_Toolboxes(self),
            revisions=Revisions(self.store, self.clock),
            lease_ms=self.lease_ms,
            crash=UNARMED,
            seams=self.seams,
            draining=asyncio.Event(),
            leave_now=asyncio.Event(),
        )

        @asynccontextmanager
        async def renewer() -> AsyncIterator[Renew]:
            yield lambda held: self.store.renew(owner=owner, attempts=held, lease_ms=self.lease_ms)

        lease = Lease(renewer, lease_ms=self.lease_ms, own_thread=False)
        pace = Pace(poll_ms=20, sweep_ms=20, drain_seconds=0.3)
        coordinator = Coordinator(owner=owner, pool="shared", services=services, lease=lease, pace=pace)
        worker = Worker(services, coordinator, self._tasks.start(coordinator.run()))
        self.working.append(worker)
        return worker

    # what a test does

    async def dispatch(self, body: str, *, session: str = "default") -> SubmissionId:
        """Admit a user message."""
        self._count += 1
        key: SessionKey = KEY.session(session)
        order = Dispatch(key=key, dispatch_id=f"d{self._count}", message=DispatchMessage(kind="user", body=body))
        created = codec.draft(
            ConversationCreated(agent="demo", instance=key.instance, session=session),
            conversation=conversation_id(key),
            session=session,
            submission=None,
            time=self.clock.now(),
            bits=1,
        )
        admission = Admission(
            key=key,
            dispatch_id=order.dispatch_id,
            digest=order.digest(codec.canonical_dispatch(order)),
            submission_id=submission_id(KEY, order.dispatch_id),
            conversation_id=conversation_id(key),
            message=codec.encode_message(order.message),
            created=created,
        )
        receipt = only(await self.store.admit([admission]))
        self.waker.touched([conversation_id(key)], work=True)
        return receipt.submission_id

    async def steer(self, body: str, via: Via = "steer") -> InboxId:
        """Say something to the run in flight."""
        return await Steering(self.store, self.waker, os.urandom).put(
            self.conversation, session="default", via=via, body=body, key=None, principal=None
        )

    async def cancel(self, submission: SubmissionId, reason: str = "no more") -> bool:
        """Cancel; says whether that settled it at once."""
        view = await self.store.lookup(submission)
        assert view is not None
        cancelling = Cancelling(self.store, self.waker, self.clock, os.urandom)
        return (await cancelling.submission(view, reason=reason)).settled

    async def claim_by_hand(self) -> Attempt:
        """Take the ready lane as a worker would that then does nothing by itself."""
        return await claim_one(self.store, self.waker)

    # what a test sees

    async def settled(self, submission: SubmissionId) -> SubmissionSettled:
        """How it ended, once it has."""
        async with asyncio.timeout(WITHIN_SECONDS):
            while True:
                view = await self.store.lookup(submission)
                if view is not None and view.settled is not None:
                    payload = codec.decode_record(view.settled).payload
                    assert isinstance(payload, SubmissionSettled)
                    return payload
                await asyncio.sleep(0.005)

    async def ask(self, body: str) -> SubmissionSettled:
        """Dispatch, and how it ended."""
        return await self.settled(await self.dispatch(body))

    async def records(self, session: str = "default") -> list[Record]:
        """The whole log."""
        page = await self.store.read(conversation_id(KEY.session(session)), after=0, limit=10_000)
        return [codec.decode_record(stored) for stored in page.records] if page is not None else []

    async def payloads(self, kind: type, session: str = "default") -> list[Any]:
        """The payloads of one kind, in order."""
        return [record.payload for record in await self.records(session) if isinstance(record.payload, kind)]

    async def kinds(self) -> list[str]:
        """The kinds of the log after its first record, deltas left out."""
        deltas = (AssistantTextDelta, AssistantThinkingDelta)
        return [r.kind for r in (await self.records())[1:] if not isinstance(r.payload, deltas)]

    async def lane(self) -> Lane:
        """The lane as it stands."""
        loaded = await self.store.load(self.conversation)
        assert loaded is not None
        return loaded.lane

    def said(self, request: int = -1) -> list[tuple[str, str]]:
        """Role and text of each message of a model request."""
        return [(message.role, message.content) for message in self.models.requests[request]]


async def until(holds: Callable[[], Awaitable[bool]] | Callable[[], bool], *, seconds: float = WITHIN_SECONDS) -> None:
    """Wait for a state; fails by TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            now = holds()
            if now if isinstance(now, bool) else await now:
                return
            await asyncio.sleep(0.005)
