"""The conformance suite: what each store must keep, ours or a third party's. Exported.

A store is given as a `Subject`: a handle, a second handle over the same data, and a hand on its clock. `run_case`
raises if the store breaks the case's promise; the case names the invariant.

    for case in CASES:
        async with factory() as subject:
            await run_case(case, subject)
"""

from kubeharness.store.conformance import (
    admission,
    budgets,
    claiming,
    configuring,
    later,
    settling,
    steering,
    writing,
)
from kubeharness.store.conformance.subject import Case, Subject, SubjectFactory
from kubeharness.store.conformance.world import World

CASES: tuple[Case, ...] = (
    *admission.CASES,
    *claiming.CASES,
    *writing.CASES,
    *settling.CASES,
    *budgets.CASES,
    *steering.CASES,
    *configuring.CASES,
    *later.CASES,
)


async def run_case(case: Case, subject: Subject) -> None:
    """Run a case in a world of its own. Raises if the store breaks it."""
    world = World(subject)
    await world.set_up()
    await case.run(world)


__all__ = ["CASES", "Case", "Subject", "SubjectFactory", "World", "run_case"]
