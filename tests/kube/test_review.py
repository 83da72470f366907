"""TokenReview and SubjectAccessReview, asked of a real API server with the rights of the chart's gateway."""

import asyncio
import datetime
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cluster.access import Cluster
from cluster.audit import service_account_user
from kube.callers import EDIT, VIEW, Callers
from kube.conftest import Moment
from kubeharness.core.errors import Unavailable
from kubeharness.core.principal import Identity
from kubeharness.kube import review as module
from kubeharness.kube.review import ALLOWED_SECONDS, DENIED_SECONDS, KNOWN_SECONDS, UNKNOWN_SECONDS, KubernetesReview
from kubeoperator.proxies import Forwarder

VERBS = ("read", "dispatch", "steer", "cancel")


async def allowed(review: KubernetesReview, who: Identity, namespace: str, agent: str = "demo") -> set[str]:
    return {verb for verb in VERBS if await review.allows(who, verb, namespace, agent)}


async def owner(review: KubernetesReview, token: str) -> Identity:
    who = await review.identify(token)
    assert who is not None
    return who


async def test_a_token_has_the_owner_that_the_server_says(review: KubernetesReview, callers: Callers) -> None:
    name = callers.account("reader")
    who = await owner(review, callers.token("reader"))

    assert who.name == name
    assert f"system:serviceaccounts:{callers.namespace}" in who.groups
    assert who.uid
    for nobody in ("wrong", "a.b.c", callers.token("reader")[:-4] + "AAAA", "x" * 9000):
        assert await review.identify(nobody) is None


async def test_rbac_decides_by_verb_namespace_and_name(review: KubernetesReview, callers: Callers) -> None:
    callers.account("viewer")
    callers.account("editor")
    callers.account("one")
    callers.grant("viewer", *VIEW)
    callers.grant("editor", *EDIT)
    callers.grant("one", "read", agents=("demo",))
    here = callers.namespace
    viewer, editor, one = [await owner(review, callers.token(name)) for name in ("viewer", "editor", "one")]

    assert await allowed(review, viewer, here) == {"read"}
    assert await allowed(review, editor, here) == set(VERBS)
    assert await allowed(review, editor, "default") == set()
    assert await allowed(review, one, here) == {"read"}
    assert await allowed(review, one, here, "other") == set()
    assert await allowed(review, one, here, "") == set()
    assert await allowed(review, viewer, here, "") == {"read"}


async def test_a_token_must_be_meant_for_us(reviewer: Path, review: KubernetesReview, callers: Callers) -> None:
    callers.account("caller")
    plain, ours = callers.token("caller"), callers.token("caller", audience="kubeharness")
    other = callers.token("caller", audience="vault")
    async with KubernetesReview(kubeconfig=reviewer, audiences=("elsewhere", "kubeharness")) as own:
        found = {name: await own.identify(token) for name, token in (("plain", plain), ("ours", ours), ("o", other))}

    assert {name: who is not None for name, who in found.items()} == {"plain": False, "ours": True, "o": False}
    assert await review.identify(plain) is not None
    assert await review.identify(ours) is None


async def test_equal_questions_at_once_are_one_review(review: KubernetesReview, callers: Callers) -> None:
    callers.account("viewer")
    callers.grant("viewer", *VIEW)
    token = callers.token("viewer")
    began = datetime.datetime.now(datetime.UTC)

    async def ask() -> tuple[bool, bool, bool]:
        who = await owner(review, token)
        may = [await review.allows(who, verb, callers.namespace, "demo") for verb in ("read", "dispatch")]
        return may[0], may[1], await review.identify("wrong") is None

    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(ask()) for _ in range(50)]
    assert {task.result() for task in asking} == {(True, False, True)}
    assert await ask() == (True, False, True)

    asked = await reviews(callers, began, 4)
    assert sorted(asked) == ["subjectaccessreviews"] * 2 + ["tokenreviews"] * 2  # two tokens, two verbs


async def reviews(callers: Callers, began: datetime.datetime, count: int) -> list[str]:
    """What the gateway asked the server since then, by the server's own log; at least so many."""
    gateway = service_account_user(callers.namespace, "gateway")
    async with asyncio.timeout(10):
        while len(callers.cluster.audit_writes(began, {gateway})) < count:
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # one more would be too many
    return [write.resource for write in callers.cluster.audit_writes(began, {gateway})]


async def test_a_binding_that_comes_or_goes_is_in_force_within_seconds(
    review: KubernetesReview, callers: Callers, moment: Moment
) -> None:
    here = callers.namespace
    callers.account("comes")
    callers.account("goes")
    callers.grant("goes", "read")
    newcomer, leaver = await owner(review, callers.token("comes")), await owner(review, callers.token("goes"))

    async def may() -> list[bool]:
        return [await review.allows(who, "read", here, "demo") for who in (newcomer, leaver)]

    before = await may()
    callers.grant("comes", "read")
    callers.revoke("goes")
    moment.now = DENIED_SECONDS - 0.1
    kept = await may()
    async with asyncio.timeout(10):  # the server's own authorizer follows its watch
        while await may() != [True, False]:
            moment.now += max(DENIED_SECONDS, ALLOWED_SECONDS)
            await asyncio.sleep(0.05)

    assert before == kept == [False, True]
    assert max(ALLOWED_SECONDS, DENIED_SECONDS) <= 10


async def test_a_token_is_asked_about_again_within_seconds(
    review: KubernetesReview, callers: Callers, moment: Moment
) -> None:
    callers.account("caller")
    token = callers.token("caller")
    began = datetime.datetime.now(datetime.UTC)
    for at in (0.0, UNKNOWN_SECONDS - 0.1, UNKNOWN_SECONDS, KNOWN_SECONDS - 0.1, KNOWN_SECONDS):
        moment.now = at
        assert await review.identify(token) is not None
        assert await review.identify("wrong") is None

    # The known one at 0 and 15, the unknown one at 0, 5, 14.9 (and at 15 the answer of 14.9 holds).
    assert await reviews(callers, began, 5) == ["tokenreviews"] * 5
    assert max(KNOWN_SECONDS, UNKNOWN_SECONDS) <= 15


@asynccontextmanager
async def through_a_door(cluster: Cluster, kubeconfig: Path, port: int) -> AsyncIterator[tuple[Forwarder, Path]]:
    """A kubeconfig that leads through a door before the API server."""
    address = urlsplit(cluster.server)
    door = Forwarder(address.hostname or "", address.port or 443, port)
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    path = kubeconfig.with_suffix(".door")
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    await door.up()
    try:
        yield door, path
    finally:
        door.down()


async def test_an_api_server_that_is_down_is_unavailable_and_comes_back(
    control_plane: Cluster, reviewer: Path, callers: Callers, unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    callers.account("caller")
    token = callers.token("caller")
    async with (
        through_a_door(control_plane, reviewer, unused_port) as (door, kubeconfig),
        KubernetesReview(kubeconfig=kubeconfig) as review,
    ):
        door.down()
        for _ in range(3):
            with pytest.raises(Unavailable, match="did not answer"):
                await review.identify(token)
        await door.up()

        assert await review.identify(token) is not None
        # The connections that were kept are cut: the next question goes over a new one, and nobody notices.
        door.down()
        await door.up()
        assert await review.identify("another") is None
    assert sum("did not answer" in record.message for record in caplog.records) == 1


async def test_an_api_server_that_says_nothing_is_unavailable_in_time(
    reviewer: Path, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.3)
    document = json.loads(reviewer.read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{unused_port}"
    reviewer.write_text(json.dumps(document))

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", unused_port)
    began = asyncio.get_running_loop().time()
    # More than fit at once: the last ones wait for a place, and for nothing longer than the first.
    async with server, KubernetesReview(kubeconfig=reviewer) as review, asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(_unavailable(review, f"token {number}")) for number in range(100)]
        await asyncio.wait(asking)

    assert all(task.result() for task in asking)
    assert asyncio.get_running_loop().time() - began < 3


async def _unavailable(review: KubernetesReview, token: str) -> bool:
    try:
        await review.identify(token)
    except Unavailable:
        return True
    return False


async def test_a_gateway_that_may_not_ask_says_what_it_needs(
    callers: Callers, caplog: pytest.LogCaptureFixture
) -> None:
    callers.account("powerless")
    config = callers.cluster.service_account_kubeconfig(callers.namespace, "powerless")
    async with KubernetesReview(kubeconfig=config) as review:
        with pytest.raises(Unavailable, match="may not ask"):
            await review.identify("any")
        with pytest.raises(Unavailable, match="may not ask"):
            await review.allows(Identity(name="x"), "read", "default", "demo")

    assert "create on tokenreviews" in caplog.text
    assert "create on subjectaccessreviews" in caplog.text


async def test_no_token_is_logged_at_any_level_nor_kept(
    review: KubernetesReview, callers: Callers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    callers.account("caller")
    token = callers.token("caller")
    assert await review.identify(token) is not None
    assert await review.identify("CANARY-of-nobody") is None

    assert token not in caplog.text
    assert "CANARY" not in caplog.text
    assert token not in repr(review._owners._kept)
    assert not review._owners._open


async def test_without_a_way_to_a_server_the_start_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("{}")
    with pytest.raises(ValueError, match="mount a ServiceAccount's token, or set KUBECONFIG"):
        async with KubernetesReview(kubeconfig=broken):
            pass
