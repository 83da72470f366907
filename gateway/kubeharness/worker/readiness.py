"""Whether a process should get work, asked of its store again and again, whether or not anybody asks for it.

Each reason is said once, in the log and to whoever listens; nothing here ends a process (C49).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kubeharness.core.errors import KubeharnessError, Unavailable

log = logging.getLogger(__name__)

ASK_SECONDS = 2.0
"""Between two looks that nobody asked for."""
ASK_AGAIN_SECONDS = 0.5
"""The same while it is not ready: no work waits longer than it must."""
ANSWER_SECONDS = 2.0

Ask = Callable[[], Awaitable[None]]
"""Raises a KubeharnessError, Unavailable mostly, while the process should get no work."""


class Readiness:
    """The last answer and its reason. `run` must be running for a change to be noticed without a probe."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._said: set[str] = set()
        self.why = "it has not been looked at yet"
        """Why the process is not ready; empty if it is."""
        self.changed: Callable[[str], None] = lambda why: None
        """Told of each change, with the reason, empty for ready. Must not wait."""

    @property
    def well(self) -> bool:
        """The last look found nothing against it."""
        return not self.why

    async def look(self) -> tuple[bool, str]:
        """Ask now; the answer of `/readyz`. Never raises, and never waits longer than a probe."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ask()
        except Unavailable as error:
            why = error.why
        except KubeharnessError as error:
            why = str(error)
        except TimeoutError:
            why = "the database does not answer in time"
        except Exception as error:  # a reason like any other: a readiness that raises would be no answer at all
            log.exception("readiness could not be asked for")
            why = f"readiness could not be asked for ({type(error).__name__})"
        else:
            why = ""
        self.why = why
        self._say()
        return not why, why

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(ASK_SECONDS if self.well else ASK_AGAIN_SECONDS)

    def _say(self) -> None:
        """Each reason once, until it was ready in between: two that take turns fill no log."""
        if self.why in self._said:
            return
        if self.why:
            log.warning("not ready: %s", self.why)
            self._said.discard("")
        else:
            log.info("ready")
            self._said.clear()
        self._said.add(self.why)
        self.changed(self.why)
