"""Who may do what: static tokens, namespaces, rights, origins (C52)."""

import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from kubeharness.api.auth import SERVED
from kubeharness.api.problems import Unauthorized
from kubeharness.api.settings import ApiSettings
from kubeharness.api.tokens import BadTokensFile, Tokens, parse_tokens
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


async def rights(tokens: Tokens, token: bytes, namespace: str) -> set[str]:
    principal = await tokens.identify({b"authorization": b"bearer " + token})
    return {right for right in SERVED if await principal.access.allows(right, namespace, "demo")}


async def test_tokens_are_read_again_when_the_file_changes(tokens_file: Path) -> None:
    now = [0.0]
    tokens = Tokens(tokens_file, monotonic=lambda: now[0])
    assert await rights(tokens, b"a", "team-a") == set(SERVED)
    assert await rights(tokens, b"a", "x") == set()

    fresh = tokens_file.with_name("fresh")
    fresh.write_text(json.dumps([entry("c", namespaces=["x"], rights=["read"])]))
    os.replace(fresh, tokens_file)
    now[0] += 2
    assert await rights(tokens, b"c", "x") == {"read"}
    with pytest.raises(Unauthorized):
        await tokens.identify({b"authorization": b"Bearer a"})

    tokens_file.write_text("nonsense")
    now[0] += 2
    assert await rights(tokens, b"c", "x") == {"read"}
    tokens_file.unlink()
    now[0] += 2
    assert await rights(tokens, b"c", "x") == {"read"}
    assert tokens.unready() is None


async def test_without_a_tokens_file_the_gateway_is_unready_and_says_why_until_it_is_there(
    store: Store, waker: LocalWaker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "later" / "tokens.json"
    now = [0.0]
    await publish(store, "demo")
    async with (
        gateway(store, waker, auth=Tokens(path, monotonic=lambda: now[0])) as served,
        served.client(headers=bearer("late")) as late,
        served.client() as nobody,
    ):

        async def look() -> tuple[int, str]:
            now[0] += 2
            answer = await nobody.get("/readyz")
            return answer.status_code, answer.json().get("error", "")

        status, why = await look()
        assert (status, "KUBEHARNESS_TOKENS_FILE" in why, "No such file" in why) == (503, True, True)
        assert str(tmp_path) not in why
        assert (await nobody.get("/healthz")).status_code == 200
        assert (await nobody.get("/agents/demo/s1")).status_code == 401
        early = await late.get("/agents/demo/s1/records")
        assert (early.status_code, early.headers["retry-after"]) == (503, "1")

        path.parent.mkdir()
        path.write_text("half a fi")
        status, why = await look()
        assert (status, "not JSON" in why) == (503, True)
        await look()
        assert sum("cannot be used" in record.message for record in caplog.records) == 2  # said once a reason

        path.write_text(json.dumps([entry("late", namespaces=["default"], rights=["read"])]))
        assert await look() == (200, "")
        assert (await late.get("/agents/demo/s1/records")).status_code == 200


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


async def test_a_key_grants_only_what_it_says() -> None:
    bare = {"name": "x", "sha256": "0" * 64}
    placed = {**bare, "namespaces": ["default"]}
    found = [principal for _, principal in parse_tokens(json.dumps([bare, placed]).encode())]

    for principal in found:
        assert not any([await principal.access.allows(right, "default", "demo") for right in SERVED])
        assert not await principal.access.knows("default", "demo")


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
