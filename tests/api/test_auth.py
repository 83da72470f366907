"""Who may do what: static tokens, namespaces, rights, origins (C52)."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from kubeharness.api.auth import BadTokensFile, Tokens, parse_tokens
from kubeharness.api.problems import Unauthorized
from kubeharness.api.settings import ApiSettings
from kubeharness.engine.ports import Store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, frames, gateway
from support.playing import publish, run_all

HELLO = {"kind": "user", "body": "hello"}


def entry(token: str, *, namespaces: list[str], rights: list[str]) -> dict[str, object]:
    digest = hashlib.sha256(token.encode()).hexdigest()
    return {"name": f"name of {token}", "sha256": digest, "namespaces": namespaces, "rights": rights}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    everything = [
        entry("a", namespaces=["team-a"], rights=["*"]),
        entry("b", namespaces=["team-b"], rights=["*"]),
        entry("reader", namespaces=["*"], rights=["read"]),
        entry("writer", namespaces=["team-a"], rights=["dispatch"]),
    ]
    path.write_text(json.dumps(everything))
    return path


@pytest.fixture
async def guarded(store: Store, waker: LocalWaker, tokens_file: Path) -> AsyncIterator[Served]:
    await publish(store, "demo", namespace="team-a")
    await publish(store, "demo", namespace="team-b")
    async with gateway(store, waker, auth=Tokens(tokens_file)) as served:
        yield served


ROUTES = [
    ("POST", "/agents/demo/s1"),
    ("GET", "/agents/demo/s1"),
    ("HEAD", "/agents/demo/s1"),
    ("GET", "/agents/demo/s1/records"),
    ("GET", "/agents/demo/s1/messages"),
    ("POST", "/agents/demo/s1/steer"),
    ("POST", "/agents/demo/s1/followup"),
    ("POST", "/agents/demo/s1/cancel"),
    ("GET", "/submissions/sub_x"),
    ("POST", "/submissions/sub_x/cancel"),
    ("GET", "/namespaces/team-a/agents/demo/s1"),
    ("GET", "/agents/demo/%2e%2e"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/nothing"),
    ("GET", "/namespaces/team-a/healthz"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_route_but_health_asks_who_calls_c52(guarded: Served, method: str, path: str) -> None:
    async with guarded.client() as client:
        for headers in ({}, bearer("wrong"), {"authorization": "Basic a"}, {"authorization": "Bearer"}):
            answer = await client.request(method, path, headers=headers)

            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_what_is_foreign_answers_as_what_is_missing_c52(guarded: Served, store: Store, waker: LocalWaker) -> None:
    async with guarded.client(headers=bearer("a")) as a, guarded.client(headers=bearer("b")) as b:
        mine = (await a.post("/namespaces/team-a/agents/demo/s1", json=HELLO)).json()["submissionId"]
        await run_all(store, waker)
        pairs = [
            ("GET", "/namespaces/{}/agents/demo/s1"),
            ("GET", "/namespaces/{}/agents/demo/s1/records"),
            ("POST", "/namespaces/{}/agents/demo/s1/cancel"),
            ("GET", f"/namespaces/{{}}/submissions/{mine}"),
            ("POST", f"/namespaces/{{}}/submissions/{mine}/cancel"),
        ]
        for method, path in pairs:
            foreign = await b.request(method, path.format("team-a"))
            missing = await b.request(method, path.format("no-such-namespace"))

            assert (foreign.status_code, foreign.content) == (404, missing.content), path
            assert foreign.headers.keys() == missing.headers.keys()
        # B's own path with A's ids: they are looked at together.
        for method, path in (("GET", "submissions/{}"), ("POST", "submissions/{}/cancel")):
            theirs = await b.request(method, f"/namespaces/team-b/{path.format(mine)}")
            none = await b.request(method, f"/namespaces/team-b/{path.format('sub_none')}")
            assert (theirs.status_code, theirs.text) == (404, none.text.replace("sub_none", mine))
        cancelled = await b.post("/namespaces/team-b/agents/demo/s1/cancel", json={"submissionId": mine})
        assert cancelled.status_code == 404
        until = await b.get(f"/namespaces/team-b/agents/demo/s1?until=settled:{mine}")
        assert until.status_code == 404
        async with a.stream("GET", "/namespaces/team-a/agents/demo/s1?until=idle") as response:
            offset = (await frames(response))[-1].id
        await b.post("/namespaces/team-b/agents/demo/s1", json=HELLO)
        lent = await b.get("/namespaces/team-b/agents/demo/s1", headers={"last-event-id": offset})
        assert (lent.status_code, lent.json()["code"]) == (416, "offset_unknown")


async def test_a_missing_right_is_a_403_that_names_it(guarded: Served) -> None:
    async with guarded.client(headers=bearer("reader")) as reader, guarded.client(headers=bearer("writer")) as writer:
        refused = [
            await reader.post("/namespaces/team-a/agents/demo/s1", json=HELLO),
            await reader.post("/namespaces/team-a/agents/demo/s1/steer", json={"body": "x"}),
            await reader.post("/namespaces/team-a/agents/demo/s1/cancel"),
            await writer.get("/namespaces/team-a/agents/demo/s1/records"),
            await writer.post("/namespaces/team-a/agents/demo/s1?wait=true", json=HELLO),
        ]
        allowed = await writer.post("/namespaces/team-a/agents/demo/s1", json=HELLO)

    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "forbidden")] * 5
    assert "'dispatch'" in refused[0].json()["error"]
    assert allowed.status_code == 202


async def test_tokens_are_read_again_when_the_file_changes(tokens_file: Path) -> None:
    now = [0.0]
    tokens = Tokens(tokens_file, monotonic=lambda: now[0])
    assert (await tokens.identify({b"authorization": b"Bearer a"})).name == "name of a"

    fresh = tokens_file.with_name("fresh")
    fresh.write_text(json.dumps([entry("c", namespaces=["x"], rights=["read"])]))
    os.replace(fresh, tokens_file)
    now[0] += 2
    assert (await tokens.identify({b"authorization": b"bearer c"})).namespaces == frozenset({"x"})
    with pytest.raises(Unauthorized):
        await tokens.identify({b"authorization": b"Bearer a"})

    tokens_file.write_text("nonsense")
    now[0] += 2
    assert (await tokens.identify({b"authorization": b"Bearer c"})).rights == frozenset({"read"})


@pytest.mark.parametrize(
    "content",
    [
        "nonsense",
        "{}",
        "[1]",
        '[{"name":"x"}]',
        '[{"name":"x","sha256":"00"}]',
        json.dumps([{**entry("x", namespaces=[], rights=[]), "extra": 1}]),
        json.dumps([entry("x", namespaces=[], rights=["fly"])]),
        json.dumps([{**entry("x", namespaces=[], rights=[]), "namespaces": "all"}]),
    ],
)
def test_a_tokens_file_is_read_strictly(content: str) -> None:
    with pytest.raises(BadTokensFile):
        parse_tokens(content.encode())


def test_a_key_grants_only_what_it_says() -> None:
    bare = {"name": "x", "sha256": "0" * 64}
    ((_, principal),) = parse_tokens(json.dumps([bare]).encode())

    assert not principal.may_enter("default")
    assert principal.rights == frozenset()


async def origin_status(client: httpx2.AsyncClient, origin: str, **headers: str) -> int:
    answer = await client.post("/agents/demo/s1", json=HELLO, headers={"origin": origin, **headers})
    return answer.status_code


async def test_pages_of_other_origins_may_not_write(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo")
    settings = ApiSettings(allowed_origins=frozenset({"https://console.test"}))
    async with gateway(store, waker, settings=settings) as served, served.client() as client:
        assert await origin_status(client, "https://evil.test") == 403
        assert await origin_status(client, "null") == 403
        assert await origin_status(client, "https://console.test") == 202
        assert await origin_status(client, served.url) == 202
        # A name that was pointed at us is its own origin, and still not ours.
        assert await origin_status(client, "http://evil.test", host="evil.test") == 403
        assert (await client.get("/agents/demo/s1/records", headers={"origin": "https://evil.test"})).status_code == 200
