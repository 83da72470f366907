"""Verbs of the contract whose code comes later say so."""

from collections.abc import Awaitable

from kubeharness.core.errors import NotInThisRelease
from kubeharness.core.ids import CallId, conversation_id
from kubeharness.store.conformance.subject import case
from kubeharness.store.conformance.world import World


@case("S12")
async def verbs_of_later_releases_are_named(w: World) -> None:
    """None of them does something else in silence."""
    conversation = conversation_id(w.key())
    verbs: list[Awaitable[object]] = [
        w.store.wait(conversation, w.new_attempt()),
        w.store.wake(conversation),
        w.store.answer(CallId("1.1.1.0"), "yes"),
        w.store.purge(w.key().of_instance),
        w.store.prune(conversation, 1),
        w.store.attachment_put("sha256:0", "text/plain", b""),
        w.store.attachment_get("sha256:0"),
    ]
    for verb in verbs:
        try:
            await verb
        except NotInThisRelease:
            continue
        raise AssertionError("a verb of a later release was answered")


CASES = (verbs_of_later_releases_are_named,)
