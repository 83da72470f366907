"""Hints between processes, over LISTEN and NOTIFY: two fixed channels, beside the write path (I1).

Losing a hint costs a poll, never more. So whatever goes wrong here is told once and mended, and nobody waits for it.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kubeharness.core.errors import Unavailable
from kubeharness.core.ids import ConversationId
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
        self._due = asyncio.Event()
        self._own: set[int] = set()
        self._ended = asyncio.Event()
        self._heard: asyncio.Event | None = None
        self._token = ""
        self._expected = ""

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
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with translated():
                    connection = await connect(self._url, name="notify")
                    try:
                        await connection.execute(FORGETFUL)
                        self._own = {connection.get_server_pid()}
                        pause = FIRST_PAUSE_SECONDS
                        await self._send(connection)
                    finally:
                        connection.terminate()
            except Unavailable as error:
                log.warning("hints are not sent, readers and workers live by their polls: %s", error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)

    async def _send(self, connection: Connection) -> None:
        """One NOTIFY for all that came within a few milliseconds."""
        while True:
            await self._due.wait()
            self._due.clear()
            channels, payloads = self._take()
            await connection.execute(NOTIFY, channels, payloads)
            await asyncio.sleep(COALESCE_SECONDS)

    def _take(self) -> tuple[list[str], list[str]]:
        channels: list[str] = []
        payloads: list[str] = []
        if self._pending:
            ids = " ".join(self._pending)
            channels.append(LOG)
            payloads.append(ids if len(ids.encode()) <= MOST_BYTES else EVERYTHING)
            self._pending.clear()
        if self._work_pending:
            channels.append(WORK)
            payloads.append("")
            self._work_pending = False
        if self._token:
            channels.append(WORK)
            payloads.append(PROBE + self._token)
            self._token = ""
        return channels, payloads

    # --- hearing ----------------------------------------------------------------------------------------------------

    async def _listen_for_ever(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with translated():
                    connection = await connect(self._url, name="listen", command_timeout=ANSWER_SECONDS)
                    try:
                        self._ended.clear()
                        connection.add_termination_listener(self._on_end)
                        await connection.add_listener(LOG, self._on_log_hint)
                        await connection.add_listener(WORK, self._on_work_hint)
                        pause = FIRST_PAUSE_SECONDS
                        self.everything()  # whatever was said while nobody listened
                        await self._probe()
                        await self._watch(connection)
                    finally:
                        connection.terminate()
            except Unavailable as error:
                log.warning("hints are not heard, this process lives by its polls: %s", error)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)

    async def _probe(self) -> None:
        """Say loudly if what we send does not come back: LISTEN behind a transaction pooler succeeds in silence."""
        self._heard = asyncio.Event()
        token = secrets.token_hex(8)
        self._expected = PROBE + token
        self._token = token
        self._due.set()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._heard.wait()
        except TimeoutError:
            log.error(
                "LISTEN does not hear what NOTIFY says: does DATABASE_DIRECT_URL lead through a transaction pooler? "
                "Until it is mended, everything waits for its poll"
            )

    async def _watch(self, connection: Connection) -> None:
        """Return, or raise, once the connection is gone; a connection that has gone silent is noticed by asking."""
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._ended.wait()
                    return
            except TimeoutError:
                await connection.execute(ALIVE)

    def _on_end(self, _: object) -> None:
        self._ended.set()

    def _on_log_hint(self, _: object, pid: int, channel: str, payload: object) -> None:
        if pid in self._own:  # told already, when it was touched
            return
        ids = str(payload)
        self._dirty(None if ids == EVERYTHING else [ConversationId(id_) for id_ in ids.split(" ")])

    def _on_work_hint(self, _: object, pid: int, channel: str, payload: object) -> None:
        said = str(payload)
        if said.startswith(PROBE):
            if said == self._expected and self._heard is not None:
                self._heard.set()
        elif pid not in self._own:
            self._rouse()
