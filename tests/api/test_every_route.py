"""Every route that there is, asked by nobody, by a stranger, and by the tenant next door (C52).

The routes are read off the application: one that is added later is asked here too, or the test says what it lacks.
"""

import asyncio
import hashlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx2
import pytest

from kubeharness.api.auth import Reviewed
from kubeharness.api.tokens import Tokens
from kubeharness.core.principal import Identity
from kubeharness.engine.ports import Store
from kubeharness.settings import Settings
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, frames, gateway
from support.playing import publish, run_all
from support.routes import Route, routes_of

HELLO = {"kind": "user", "body": "hello"}
BODIES: dict[str, Mapping[str, object]] = {"steer": {"body": "x"}, "followup": {"body": "x"}, "cancel": {}}
"""By the last word of a path: what is sent, so that nothing is refused for its body."""


def key(token: str, namespace: str) -> dict[str, object]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"name": token, "sha256": digest, "namespaces": [namespace], "rights": ["*"]}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def tenants(store: Store, waker: LocalWaker, tmp_path: Path) -> AsyncIterator[Served]:
    """Two namespaces with an agent of one name each, and a token for each."""
    await publish(store, "demo", namespace="team-a")
    await publish(store, "demo", namespace="team-b")
    file = tmp_path / "tokens.json"
    file.write_text(json.dumps([key("a", "team-a"), key("b", "team-b")]))
    async with gateway(store, waker, auth=Tokens(file)) as served:
        yield served


async def dispatched(served: Served, store: Store, waker: LocalWaker, token: str, namespace: str) -> dict[str, str]:
    """A run that has ended; returns what fills the paths of the routes that lead to it."""
    async with served.client(headers=bearer(token)) as client:
        answer = await client.post(f"/namespaces/{namespace}/agents/demo/s1", json=HELLO)
    await run_all(store, waker)
    return {"namespace": namespace, "agent": "demo", "id": "s1", "submissionId": answer.json()["submissionId"]}


async def send(
    client: httpx2.AsyncClient, route: Route, values: Mapping[str, str], headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    path = route.filled(values)
    body = BODIES.get(path.rsplit("/", 1)[-1], HELLO) if route.method == "POST" else None
    return await client.request(route.method, path, json=body, headers=headers)


def seen(answer: httpx2.Response) -> tuple[int, bytes, list[tuple[str, str]]]:
    """All that a caller gets to see."""
    return answer.status_code, answer.content, sorted((k, v) for k, v in answer.headers.items() if k != "date")


async def test_without_a_known_token_every_route_but_health_is_the_same_401_c52(
    tenants: Served, store: Store, waker: LocalWaker
) -> None:
    theirs = await dispatched(tenants, store, waker, "a", "team-a")
    routes = routes_of(tenants.app)
    answers: set[tuple[bytes, str]] = set()
    open_to_all = set()
    for headers in ({}, bearer("wrong"), bearer("A"), {"authorization": "Bearer"}, {"authorization": "Basic a"}):
        async with tenants.client(headers=headers) as client:
            for route in routes:
                answer = await send(client, route, theirs)
                if answer.status_code != 401:
                    open_to_all.add(route.path)
                    continue
                assert answer.headers["www-authenticate"] == "Bearer"
                if route.method != "HEAD":
                    answers.add((answer.content, answer.headers["content-type"]))
            for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
                assert (await client.request(method, "/agents/demo/s1")).status_code == 401
            for path in ("/", "/metrics", "/admin", "/attachments/x", "/agents/demo/%2e%2e", "/docs/", "//docs"):
                assert (await client.get(path)).status_code == 401, path

    assert open_to_all == {"/healthz", "/readyz"}
    assert len(answers) == 1
    assert len(routes) >= 30
    assert Route("GET", "/docs") in routes


async def test_the_tenant_next_door_finds_nothing_on_any_route_c52(
    tenants: Served, store: Store, waker: LocalWaker
) -> None:
    theirs = await dispatched(tenants, store, waker, "a", "team-a")
    asked = 0
    async with tenants.client(headers=bearer("b")) as b:
        async with tenants.client(headers=bearer("a")) as a, a.stream("GET", path_of(theirs)) as response:
            offset = (await frames(response, limit=2))[-1].id
        for route in routes_of(tenants.app):
            if "namespace" not in route.parameters:
                continue
            for headers in ({}, {"last-event-id": offset}):
                foreign = await send(b, route, theirs, headers)
                missing = await send(b, route, {**theirs, "namespace": "team-z"}, headers)

                assert foreign.status_code == 404, route
                assert seen(foreign) == seen(missing), route
                asked += 1
        # And nothing was done.
        own = await b.post("/namespaces/team-b/agents/demo/s1", json=HELLO)
        assert own.status_code == 202

    assert asked >= 20


def path_of(values: Mapping[str, str]) -> str:
    return "/namespaces/{namespace}/agents/{agent}/{id}".format_map(values)


async def test_ids_of_another_tenant_on_ones_own_path_are_missing_c52(
    tenants: Served, store: Store, waker: LocalWaker
) -> None:
    theirs = await dispatched(tenants, store, waker, "a", "team-a")
    mine = await dispatched(tenants, store, waker, "b", "team-b")
    lent = {**mine, "submissionId": theirs["submissionId"]}
    made_up = {**mine, "submissionId": "sub_" + "a" * 26}
    async with tenants.client(headers=bearer("b")) as b:
        for route in routes_of(tenants.app):
            if not {"namespace", "submissionId"} <= route.parameters:
                continue
            foreign, missing = await send(b, route, lent), await send(b, route, made_up)
            assert foreign.status_code == 404, route
            assert foreign.text.replace(lent["submissionId"], made_up["submissionId"]) == missing.text, route
        by_body = [
            await b.post(f"{path_of(mine)}/cancel", json={"submissionId": values["submissionId"]})
            for values in (lent, made_up)
        ]
        by_query = [
            await b.get(f"{path_of(mine)}?until=settled:{values['submissionId']}") for values in (lent, made_up)
        ]
        async with tenants.client(headers=bearer("a")) as a, a.stream("GET", path_of(theirs)) as response:
            offset = (await frames(response, limit=2))[-1].id
        altered = offset[:-1] + ("0" if offset[-1] != "0" else "1")
        by_offset = [
            await b.get(path_of(mine) + more, headers={"last-event-id": value})
            for more in ("", "/records")
            for value in (offset, altered)
        ]
        own = (await b.get(f"{path_of(mine)}/messages")).json()

    for first, second in (by_body, by_query):
        assert (first.status_code, second.status_code) == (404, 404)
        assert first.text.replace(lent["submissionId"], made_up["submissionId"]) == second.text
    assert [answer.status_code for answer in by_offset] == [416] * 4
    assert by_offset[0].text.replace(offset, altered) == by_offset[1].text
    assert [message["submissionId"] for message in own["messages"]] == [mine["submissionId"]] * len(own["messages"])


async def test_what_is_foreign_takes_as_long_as_what_is_missing_c52(
    tenants: Served, store: Store, waker: LocalWaker
) -> None:
    theirs = await dispatched(tenants, store, waker, "a", "team-a")
    took: dict[tuple[str, bool], list[float]] = {}
    paths = {
        "agent": "/namespaces/{}/agents/demo/s1/records",
        "submission": f"/namespaces/{{}}/submissions/{theirs['submissionId']}",
    }
    async with tenants.client(headers=bearer("b")) as b:
        for _ in range(100):
            for name, path in paths.items():
                for foreign in (True, False):
                    began = time.perf_counter()
                    await b.get(path.format("team-a" if foreign else "team-z"))
                    took.setdefault((name, foreign), []).append(time.perf_counter() - began)
    medians = {which: statistics.median(seconds) for which, seconds in took.items()}

    for name in paths:
        assert medians[name, True] == pytest.approx(medians[name, False], rel=0.5, abs=0.002), medians


class SlowReview:
    """An API server that needs 40 ms for each answer that was not given before, and allows nothing."""

    def __init__(self) -> None:
        self._said: set[tuple[str, ...]] = set()

    async def identify(self, token: str) -> Identity | None:
        return Identity(name=token)

    async def allows(self, who: Identity, verb: str, namespace: str, agent: str) -> bool:
        if (verb, namespace, agent) not in self._said:
            await asyncio.sleep(0.04)
            self._said.add((verb, namespace, agent))
        return False


async def test_a_submission_that_is_missing_is_asked_about_like_a_foreign_one_c52(
    store: Store, waker: LocalWaker, tmp_path: Path
) -> None:
    await publish(store, "demo")
    async with gateway(store, waker) as served, served.client() as anyone:
        theirs = (await anyone.post("/agents/demo/s1", json=HELLO)).json()["submissionId"]
    took = []
    for submission in (theirs, "sub_" + "a" * 26):
        async with (
            gateway(store, waker, auth=Reviewed(SlowReview())) as served,
            served.client(headers=bearer("b")) as b,
        ):
            await b.get("/healthz")
            began = time.perf_counter()
            answer = await b.get(f"/submissions/{submission}")
            took.append(time.perf_counter() - began)
        assert answer.status_code == 404

    assert took[0] == pytest.approx(took[1], rel=0.4)


async def test_a_route_that_asks_for_no_right_reaches_nothing_c52(
    store: Store, waker: LocalWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate is in what a route needs: without a right there is no address to hand to the runtime."""
    from kubeharness.api.call import Call

    async def forgotten(self: Call, right: str) -> None:
        pass

    await publish(store, "demo")
    monkeypatch.setattr(Call, "require", forgotten)
    async with gateway(store, waker) as served, served.client() as client:
        answers = [
            await client.post("/agents/demo/s1", json=HELLO),
            await client.get("/agents/demo/s1"),
            await client.get("/agents/demo/s1/messages"),
        ]

    assert [answer.status_code for answer in answers] == [500] * 3


def test_a_default_install_is_not_open_c52() -> None:
    settings = Settings(_env_file=None)

    assert settings.auth == ("token",)
    assert not settings.auth_insecure
