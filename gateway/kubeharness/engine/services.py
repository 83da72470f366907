"""What every attempt of a worker shares."""

import asyncio
from dataclasses import dataclass

from kubeharness.engine.crashpoints import CrashPoints
from kubeharness.engine.ports import Clock, Models, SecretSource, Store, Toolboxes, Waker
from kubeharness.engine.revisions import Revisions
from kubeharness.engine.seams import Seams


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Stores, seams and switches, composed once a process."""

    store: Store
    waker: Waker
    clock: Clock
    secrets: SecretSource
    models: Models
    toolboxes: Toolboxes
    revisions: Revisions
    lease_ms: int
    crash: CrashPoints
    seams: Seams
    draining: asyncio.Event
    """Set: hand over at the next seam."""
    leave_now: asyncio.Event
    """Set: the drain is over, hand over where you stand."""
