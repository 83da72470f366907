"""Hints between processes, over LISTEN and NOTIFY: two fixed channels, beside the write path (I1).

Losing a hint costs a poll, never more. So whatever goes wrong here is told once and mended, and nobody waits for it.
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import ConversationId
from kubeharness.engine.patience import Trouble
from kubeharness.store.postgres.beside import beside
from kubeharness.store.postgres.database import Connection, connect, translated
from kubeharness.store.wakers import LocalWaker

WORK = "kubeharness_work"
LOG = "kubeharness_log"
EVERYTHING = "*"
PROBE = "?"
"""A payload that is nobody's hint: whoever listens asks itself whether it hears."""

MOST_BYTES = 7500
"""Postgres takes less than 8,000 bytes in one NOTIFY."""
COALESCE_SECONDS = 0.003
CHECK_SECONDS = 15.0
ANSWER_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

NOTIFY = "SELECT pg_notify(channel, payload) FROM unnest($1::text[], $2::text[]) AS hint (channel, payload)"
FORGETFUL = "SET synchronous_commit = off"  # a hint need not survive a crash: no disk is waited for
ALIVE = "SELECT 1"

log = logging.getLogger(__name__)


class PostgresWaker(LocalWaker):
    """A waker among all processes of one database. Listeners of this process are told at once, others by NOTIFY."""

    def __init__(self, url: str, *, hints: bool = True) -> None:
        super().__init__()
        self._url = url
        self._hints = hints
        self._pending: set[ConversationId] = set()
        self._work_pending = False
        self._missed = False
        """Something was not said for sure: say everything."""
        self._due = asyncio.Event()
        self._own = 0
        """The server's process that says our hints: they are no news to us."""
        self._probe_due = self._probed = self._expected = ""
        self._stirred = asyncio.Event()
        self._unsaid = Trouble(log, "hints are not sent, readers and workers live by their polls")
        self._unheard = Trouble(log, "hints are not heard, this process lives by its polls")

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, hints: bool = True) -> AsyncIterator["PostgresWaker"]:
        """A waker for as long as the block lasts. `url` must not lead through a transaction pooler.

        With `hints` off it tells nobody anything, its own process included: all live by their polls.
        """
        waker = cls(url, hints=hints)
        if not hints:
            yield waker
            return
        async with beside(waker._send_for_ever(), waker._listen_for_ever()):
            yield waker

    def touched(self, conversations: Sequence[ConversationId], *, work: bool) -> None:
        """Say that these logs grew and, if `work`, that a lane may be ready or a head was published."""
        if not self._hints:
            return
        super().touched(conversations, work=work)
        self._pending.update(conversations)
        self._work_pending = self._work_pending or work
        self._due.set()

    # --- telling ----------------------------------------------------------------------------------------------------

    async def _send_for_ever(self) -> None:
        await self._for_ever(self._send, self._unsaid)

    async def _for_ever(self, talk: Callable[[], Coroutine[Any, Any, None]], trouble: Trouble) -> None:
        """Talk, and again after a growing pause, whatever happens: nobody's work depends on it."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                with translated():
                    await talk()
            except Unavailable as error:
                trouble.met(error)
            except Exception:
                log.exception("hints failed")
            if time.monotonic() - began > LONGEST_PAUSE_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)

    async def _send(self) -> None:
        """One NOTIFY for all that came within a few milliseconds."""
        connection = await connect(self._url, name="notify")
        try:
            await connection.execute(FORGETFUL)
            self._own = connection.get_server_pid()
            self._unsaid.over()
            while True:
                await self._due.wait()
                self._due.clear()
                probe, channels, payloads = self._take()
                self._missed = True  # until they were said
                await connection.execute(NOTIFY, channels, payloads)
                self._missed = False
                self._probed = probe or self._probed
                await asyncio.sleep(COALESCE_SECONDS)
        finally:
            connection.terminate()
            if self._missed:
                self._due.set()

    def _take(self) -> tuple[str, list[str], list[str]]:
        """The probe that is due, and what to say on which channel."""
        probe, self._probe_due = self._probe_due, ""
        ids = " ".join(self._pending)
        hints = [(WORK, probe)] if probe else []
        if self._missed or len(ids.encode()) > MOST_BYTES:
            hints.append((LOG, EVERYTHING))
        elif ids:
            hints.append((LOG, ids))
        if self._work_pending or self._missed:
            hints.append((WORK, ""))
        self._pending.clear()
        self._work_pending = False
        return probe, [channel for channel, _ in hints], [payload for _, payload in hints]

    # --- hearing ----------------------------------------------------------------------------------------------------

    async def _listen_for_ever(self) -> None:
        await self._for_ever(self._listen, self._unheard)

    async def _listen(self) -> None:
        """Hear until the connection is gone; one that has gone silent is noticed by asking."""
        connection = await connect(self._url, name="listen", command_timeout=ANSWER_SECONDS)
        try:
            self._stirred.clear()
            connection.add_termination_listener(lambda _: self._stirred.set())
            await connection.add_listener(LOG, self._on_log_hint)
            await connection.add_listener(WORK, self._on_work_hint)
            self._unheard.over()
            self.everything()  # whatever was said while nobody listened
            await self._probe(connection)
            while not connection.is_closed():
                if not await self._stirs(CHECK_SECONDS):
                    await connection.execute(ALIVE)
        finally:
            connection.terminate()

    async def _probe(self, connection: Connection) -> None:
        """Say loudly if what we send does not come back: LISTEN behind a transaction pooler succeeds in silence."""
        self._probe_due = self._expected = PROBE + secrets.token_hex(8)
        self._due.set()
        stirred = await self._stirs(ANSWER_SECONDS)
        if not stirred and self._probed == self._expected and not connection.is_closed():
            log.error(
                "LISTEN does not hear what NOTIFY says: does DATABASE_DIRECT_URL lead through a transaction pooler? "
                "Until it is mended, everything waits for its poll"
            )

    async def _stirs(self, seconds: float) -> bool:
        """Whether the probe was heard, or the connection ended, within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        except TimeoutError:
            return False
        self._stirred.clear()
        return True

    def _on_log_hint(self, _: object, pid: int, channel: str, payload: object) -> None:
        if pid == self._own:  # told already, when it was touched
            return
        ids = str(payload)
        self._dirty(None if ids == EVERYTHING else [ConversationId(id_) for id_ in ids.split(" ")])

    def _on_work_hint(self, _: object, pid: int, channel: str, payload: object) -> None:
        said = str(payload)
        if said.startswith(PROBE):
            if said == self._expected:
                self._stirred.set()
        elif pid != self._own:
            self._rouse()
