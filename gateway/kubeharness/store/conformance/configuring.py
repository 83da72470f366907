"""Configuration: epoch, publication and the head clock, acknowledgement, checks."""

from collections.abc import Awaitable
from dataclasses import replace

from kubeharness.core.errors import Conflict
from kubeharness.core.json import Json
from kubeharness.engine.ports import Acknowledgement, CheckLease, CheckPut, CheckResult, Component
from kubeharness.store.conformance.answers import INSTALLATION, together
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


async def _refuses(action: Awaitable[object], by: type[Exception]) -> bool:
    try:
        await action
    except by:
        return True
    return False


@case("C")
async def a_new_epoch_fences_the_one_before(w: World) -> None:
    """A publisher that lost its lead writes nothing; another installation never gets one."""
    old = w.epoch
    new = await w.store.epoch(INSTALLATION)
    clock = await w.store.head_clock()
    assert new > old
    assert await _refuses(w.store.publish(old, [w.head(w.revision("two"), generation=2)]), Conflict)
    assert await _refuses(w.store.retire(old, [w.incarnation]), Conflict)
    assert await _refuses(w.store.epoch("somebody else"), Conflict)
    assert await w.store.head_clock() == clock
    assert await w.store.revision(w.revision("two").id) is None, "a stale publisher's revision was stored"
    assert await w.store.publish(new, [w.head(w.revision("two"), generation=2)]) == clock + 1


@case("C")
async def the_head_clock_counts_changes(w: World) -> None:
    """One publication, one tick; heads above a version are those that a process lacks, in order."""
    before = await w.store.head_clock()
    two = w.head(w.revision("x"), uid=f"{w.incarnation}-b", name="b")
    three = w.head(w.revision("x"), uid=f"{w.incarnation}-c", name="c")
    assert await w.store.publish(w.epoch, [two, three]) == before + 1
    assert await w.publish(w.revision("two"), generation=2) == before + 2
    heads = await w.store.heads(after=before)

    assert [(head.name, head.version) for head in heads] == [
        ("b", before + 1),
        ("c", before + 1),
        (w.agent, before + 2),
    ]
    assert await w.store.head_clock() == before + 2
    assert [head.name for head in await w.store.heads(after=before + 1)] == [w.agent]
    assert list(await w.store.heads(after=before + 2)) == []


@case("C")
async def nothing_changed_writes_nothing(w: World) -> None:
    """The same publication again, or an older generation of the same object."""
    clock = await w.publish(w.revision("two"), generation=2)
    assert await w.publish(w.revision("two"), generation=2) == clock
    assert await w.publish(w.revision("one"), generation=1) == clock
    assert await w.store.publish(w.epoch, []) == clock
    assert await w.store.retire(w.epoch, ["unknown"]) == clock

    (head,) = await w.store.heads(after=clock - 1)
    assert (head.generation, head.active) == (2, w.revision("two").id)


@case("C")
async def the_last_good_revision_goes_on_serving(w: World) -> None:
    """A generation that does not compile or resolve moves desired only."""
    broken = replace(w.head(None, generation=2, activate=False, note="does not compile"))
    clock = await w.store.publish(w.epoch, [broken])
    (head,) = await w.store.heads(after=clock - 1)
    assert (head.desired, head.active, head.note) == (None, w.revision("one").id, "does not compile")
    unresolved = w.head(w.revision("three"), generation=3, activate=False)
    clock = await w.store.publish(w.epoch, [unresolved])
    (head,) = await w.store.heads(after=clock - 1)
    assert (head.desired, head.active) == (w.revision("three").id, w.revision("one").id)
    await w.admit("d1")

    assert (await w.claim()).claimed.revision == w.revision("one").id


@case("C")
async def another_object_of_the_name_retires_the_first(w: World) -> None:
    """Delete and recreate, in one transaction; the new incarnation sees nothing of the old one."""
    await w.admit("d1")
    clock = await w.publish(w.revision("two"), uid=f"{w.incarnation}-again")
    heads = {head.uid: head for head in await w.store.heads(after=clock - 1)}

    assert heads[w.incarnation].retired
    assert not heads[f"{w.incarnation}-again"].retired
    assert {head.version for head in heads.values()} == {clock}


@case("C")
async def retirement_is_told_and_counts_once(w: World) -> None:
    """A retired head comes with the heads that changed."""
    clock = await w.store.retire(w.epoch, [w.incarnation])
    assert await w.store.retire(w.epoch, [w.incarnation]) == clock
    (head,) = await w.store.heads(after=clock - 1)

    assert (head.uid, head.retired, head.version) == (w.incarnation, True, clock)


@case("C")
async def a_revision_is_kept_with_its_parts(w: World) -> None:
    """Byte for byte, each part once; an unknown one is not there, and cannot be published."""
    stored = w.revision("one")
    assert await w.store.revision(stored.id) == stored
    unknown = w.revision("never given")
    assert await w.store.revision(unknown.id) is None
    dangling = replace(w.head(unknown, generation=9), revision=None)

    assert await _refuses(w.store.publish(w.epoch, [dangling]), Conflict)
    assert await w.publish(stored, generation=2) == await w.store.head_clock()


@case("C")
async def racing_publications_tick_apart(w: World) -> None:
    """Two at once over two handles: versions are in commit order, none is shared."""
    other = await w.subject.another()
    before = await w.store.head_clock()
    heads = [w.head(w.revision("x"), uid=f"{w.incarnation}-{n}", name=f"n{n}") for n in range(6)]

    async def publish(n: int) -> int:
        return await (w.store, other)[n % 2].publish(w.epoch, [heads[n]])

    clocks = await together(*(publish(n) for n in range(6)))

    assert sorted(clocks) == list(range(before + 1, before + 7))
    assert sorted(head.version for head in await w.store.heads(after=before)) == sorted(clocks)


def _process(w: World, id: str, role: str, *, applied: int, pool: str | None = None) -> Component:
    return Component(id=f"{id}-{w.pool}", role=role, pool=pool or w.pool, formats=(1,), applied=applied)


async def _acknowledged(w: World, version: int) -> Acknowledgement:
    return await w.store.acknowledged(version=version, pool=w.pool)


@case("C")
async def live_processes_acknowledge(w: World) -> None:
    """Each live worker of the pool; not those that drain, or have not beaten for a minute."""
    version = await w.store.head_clock()
    assert (await _acknowledged(w, version)).workers == 0
    await w.store.beat(_process(w, "w1", "worker", applied=version))
    await w.store.beat(_process(w, "w2", "worker", applied=version - 1))
    await w.store.beat(_process(w, "w3", "worker", applied=0, pool=f"{w.pool}-x"))
    await w.store.beat(replace(_process(w, "w4", "worker", applied=0), draining=True))
    found = await _acknowledged(w, version)
    assert (found.workers, found.workers_behind) == (2, 1)
    assert not found.complete
    await w.store.beat(_process(w, "w2", "worker", applied=version))
    assert (await _acknowledged(w, version)).workers_behind == 0
    await w.advance(61_000)
    assert (await _acknowledged(w, version)).workers == 0
    await w.store.beat(_process(w, "w1", "worker", applied=version + 5))

    found = await _acknowledged(w, version)
    assert (found.workers, found.workers_behind) == (1, 0)


@case("C")
async def a_gateway_acknowledges_too(w: World) -> None:
    """Programmed needs one at least."""
    await w.advance(61_000)  # whoever beat before is gone
    version = await w.store.head_clock()
    assert not (await _acknowledged(w, version)).complete
    await w.store.beat(_process(w, "g1", "gateway", applied=version - 1))
    assert not (await _acknowledged(w, version)).complete
    await w.store.beat(_process(w, "g2", "gateway", applied=version))

    found = await _acknowledged(w, version)
    assert (found.gateways, found.gateways_behind) == (2, 1)
    assert found.complete


@case("C")
async def live_processes_say_their_release(w: World) -> None:
    """Each once; not of those that drain, have not beaten for a minute, or are of a release that did not say it."""
    await w.store.beat(replace(_process(w, "w1", "worker", applied=0), release="0.9.0"))
    await w.advance(61_000)
    await w.store.beat(_process(w, "w2", "worker", applied=0))
    assert list((await _acknowledged(w, 0)).releases) == []
    await w.store.beat(replace(_process(w, "w3", "worker", applied=0), release="1.1.0"))
    await w.store.beat(replace(_process(w, "g1", "gateway", applied=0), release="1.1.0"))
    await w.store.beat(replace(_process(w, "g2", "gateway", applied=0), release="1.0.0"))
    await w.store.beat(replace(_process(w, "w4", "worker", applied=0), release="2.0.0", draining=True))

    assert list((await _acknowledged(w, 0)).releases) == ["1.0.0", "1.1.0"]


@case("C")
async def refusals_say_why(w: World) -> None:
    """Those of live processes, of the revisions that the version brought."""
    version = await w.store.head_clock()
    await w.store.beat(_process(w, "w1", "worker", applied=version - 1))
    revision = w.revision("one").id
    await w.store.refuse(f"w1-{w.pool}", revision, "cannot read the catalogue")
    await w.store.refuse(f"w1-{w.pool}", revision, "cannot read it")
    await w.store.refuse(f"w1-{w.pool}", w.revision("other").id, "not of this version")
    await w.store.refuse("gone", revision, "nobody")

    assert list((await _acknowledged(w, version)).refusals) == ["cannot read it"]


# --- checks ----------------------------------------------------------------------------------------------------------


def _check(w: World, name: str = "s/key", *, digest: str = "d1", uid: str = "u1") -> CheckPut:
    return CheckPut(
        kind="secret", namespace=w.namespace, name=name, uid=uid, digest=digest, payload={"name": name, "v": digest}
    )


async def _leases(w: World, *, lease_ms: int = 10_000) -> list[CheckLease]:
    """This world's due checks; those of other cases are put aside by the way."""
    found = await w.store.check_claim(owner="worker", limit=1_000, lease_ms=lease_ms)
    return [lease for lease in found if lease.namespace == w.namespace]


async def _answer(w: World, lease: CheckLease, *, ok: bool, result: Json = None, reason: str = "") -> CheckResult:
    await w.store.check_done(lease, ok=ok, reason=reason, message=reason, result=result)
    found = await w.store.check_get(lease.kind, lease.namespace, lease.name)
    assert found is not None
    return found


@case("C")
async def a_check_is_due_at_once_and_leased_to_one(w: World) -> None:
    """A lease that is over is given again."""
    await w.store.check_put([_check(w), _check(w, "t/key")])
    leases = await _leases(w)
    assert {lease.name for lease in leases} == {"s/key", "t/key"}
    assert {lease.name: lease.payload for lease in leases}["s/key"] == {"name": "s/key", "v": "d1"}
    assert await _leases(w) == []
    await w.advance(10_001)
    assert len(await _leases(w)) == 2
    await w.store.check_drop([("secret", w.namespace, "s/key")])
    assert await w.store.check_get("secret", w.namespace, "s/key") is None
    await w.advance(10_001)

    assert [lease.name for lease in await _leases(w)] == ["t/key"]


@case("C")
async def a_failure_is_asked_again_soon_a_success_later(w: World) -> None:
    """After 1, 2, 4 … 20 s; a success after its interval, and the failures are forgotten."""
    await w.store.check_put([_check(w)])
    (lease,) = await _leases(w)
    for pause in (1_000, 2_000, 4_000, 8_000, 16_000, 20_000, 20_000):
        found = await _answer(w, lease, ok=False, reason="SecretNotFound")
        assert (found.done, found.ok, found.reason) == (True, False, "SecretNotFound")
        await w.advance(pause - 600)
        assert await _leases(w) == [], f"asked again before {pause} ms"
        await w.advance(601)
        (lease,) = await _leases(w)
    await _answer(w, lease, ok=True)
    await w.advance(19_000)
    assert await _leases(w) == []
    await w.advance(1_001)
    (lease,) = await _leases(w)
    await _answer(w, lease, ok=False)
    await w.advance(1_001)

    assert len(await _leases(w)) == 1


@case("C")
async def a_failure_keeps_the_last_good_result(w: World) -> None:
    """A catalogue never shrinks by one; a recreated object of the name starts with none."""
    await w.store.check_put([_check(w)])
    (lease,) = await _leases(w)
    assert (await _answer(w, lease, ok=True, result=["clock"])).result == ["clock"]
    found = await _answer(w, lease, ok=False, reason="ToolServerUnreachable")
    assert (found.ok, found.result) == (False, ["clock"])
    await w.store.check_put([_check(w, digest="d2")])
    found = await _answer(w, (await _leases(w))[0], ok=False)
    assert found.result == ["clock"]
    await w.store.check_put([_check(w, digest="d2", uid="u2")])

    again = await w.store.check_get("secret", w.namespace, "s/key")
    assert again is not None
    assert (again.result, again.done) == (None, False)


@case("C")
async def a_changed_question_is_due_and_old_answers_are_dropped(w: World) -> None:
    """The same question again changes nothing."""
    await w.store.check_put([_check(w)])
    (old,) = await _leases(w)
    await _answer(w, old, ok=True)
    await w.store.check_put([_check(w)])
    assert await _leases(w) == []
    await w.store.check_put([_check(w, digest="d2")])
    (new,) = await _leases(w)
    assert new.digest == "d2"
    found = await _answer(w, old, ok=False, reason="late")
    assert (found.done, found.reason) == (False, ""), "an answer to another question was taken"
    found = await _answer(w, new, ok=True)

    assert (found.done, found.ok, found.digest) == (True, True, "d2")


@case("C")
async def results_are_told_when_they_change(w: World) -> None:
    """The version grows with every change of an answer, and not without one."""
    await w.store.check_put([_check(w, "a/k"), _check(w, "b/k")])
    leases = {lease.name: lease for lease in await _leases(w)}
    first = await _answer(w, leases["a/k"], ok=True)
    second = await _answer(w, leases["b/k"], ok=True)
    assert second.version > first.version
    assert (await _answer(w, leases["a/k"], ok=True)).version == first.version
    assert [result.name for result in await w.store.check_results(after=first.version)] == ["b/k"]
    changed = await _answer(w, leases["a/k"], ok=False, reason="SecretNotFound")
    assert changed.version > second.version

    assert list(await w.store.check_results(after=second.version)) == [changed]
    assert list(await w.store.check_results(after=changed.version)) == []


CASES = (
    a_new_epoch_fences_the_one_before,
    the_head_clock_counts_changes,
    nothing_changed_writes_nothing,
    the_last_good_revision_goes_on_serving,
    another_object_of_the_name_retires_the_first,
    retirement_is_told_and_counts_once,
    a_revision_is_kept_with_its_parts,
    racing_publications_tick_apart,
    live_processes_acknowledge,
    a_gateway_acknowledges_too,
    refusals_say_why,
    a_check_is_due_at_once_and_leased_to_one,
    a_failure_is_asked_again_soon_a_success_later,
    a_failure_keeps_the_last_good_result,
    a_changed_question_is_due_and_old_answers_are_dropped,
    results_are_told_when_they_change,
)
