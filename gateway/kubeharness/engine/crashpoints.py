"""Named places between two durable steps, where a worker under test kills itself (engine.md, section 14).

In production no point is armed and `reach` costs one comparison. A point without a test fails the suite.
"""

import os
import signal
from enum import StrEnum


class CrashPoint(StrEnum):
    """The points whose code exists. Each is reached just after what it names became durable, unless it says before."""

    AFTER_ADMIT = "after_admit"
    AFTER_CLAIM = "after_claim"
    MID_STREAM = "mid_stream"
    AFTER_COMPLETED = "after_completed"
    CALLS_RECORDED = "calls_recorded"
    MID_TOOL = "mid_tool"
    AFTER_OUTCOME = "after_outcome"
    INBOX_CONSUMED = "inbox_consumed"
    BEFORE_SETTLE = "before_settle"
    AFTER_SETTLE = "after_settle"
    UNKNOWN_COMMIT = "unknown_commit"
    """Not a death: the answer of the next append's commit is lost, and the recorder must repeat it unharmed."""


class CrashPoints:
    """Those that are armed in this process."""

    def __init__(self, armed: CrashPoint | None = None) -> None:
        self.armed = armed

    def reach(self, point: CrashPoint) -> None:
        """Die here by SIGKILL if this point is armed."""
        if self.armed is point:
            os.kill(os.getpid(), signal.SIGKILL)


UNARMED = CrashPoints()
