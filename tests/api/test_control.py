"""Steer, cancel, submissions, health, descriptions and the shape of errors."""

import asyncio
import json

import httpx2
import pytest

from kubeharness.core.errors import Unavailable
from kubeharness.core.lane import CallState
from kubeharness.engine.ports import Component, Store
from kubeharness.store.memory import MemoryBackend
from kubeharness.store.store import TransactionalStore
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, gateway
from support.playing import claim_one, publish, run_all

HELLO = {"kind": "user", "body": "hello"}


async def dispatch(client: httpx2.AsyncClient, instance: str = "s1") -> str:
    answer = await client.post(f"/agents/demo/{instance}", json=HELLO)
    assert answer.status_code == 202
    submission: str = answer.json()["submissionId"]
    return submission


async def records(client: httpx2.AsyncClient, instance: str = "s1") -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await client.get(f"/agents/demo/{instance}/records")).json()["records"]
    return found


async def test_a_steer_is_durable_once_it_is_answered(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await dispatch(client)
    attempt = await claim_one(store, waker)
    await attempt.hear()
    answer = await client.post("/agents/demo/s1/steer", json={"body": "in \u0000French"})
    loaded = await store.load(attempt.conversation)

    assert (answer.status_code, answer.json()["status"]) == (200, "injected")
    assert loaded is not None
    assert [(m.via, m.body) for m in loaded.inbox] == [("steer", "in \ufffdFrench")]


async def test_a_followup_is_one_too(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    await dispatch(client)
    attempt = await claim_one(store, waker)
    assert (await client.post("/agents/demo/s1/followup", json={"body": "and then"})).status_code == 200
    loaded = await store.load(attempt.conversation)

    assert loaded is not None
    assert [m.via for m in loaded.inbox] == ["followup"]


async def test_a_steer_with_a_key_is_put_once(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    await dispatch(client)
    attempt = await claim_one(store, waker)
    key = {"idempotency-key": "k1"}
    first = await client.post("/agents/demo/s1/steer", json={"body": "left"}, headers=key)
    again = await client.post("/agents/demo/s1/steer", json={"body": "left"}, headers=key)
    other = await client.post("/agents/demo/s1/steer", json={"body": "right"}, headers=key)
    loaded = await store.load(attempt.conversation)

    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (409, "dispatch_conflict")
    assert "'k1'" in other.json()["error"]
    assert loaded is not None
    assert len(loaded.inbox) == 1


async def test_nothing_in_flight_is_a_409(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    for _ in range(2):  # nobody spoke yet; then queued, then settled
        for path in ("steer", "followup"):
            answer = await client.post(f"/agents/demo/s1/{path}", json={"body": "x"})
            assert (answer.status_code, answer.json()["code"]) == (409, "no_run_in_flight")
        await dispatch(client)
    await run_all(store, waker)
    for path, body in (("steer", {"body": "x"}), ("cancel", {})):
        answer = await client.post(f"/agents/demo/s1/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "no_run_in_flight")


@pytest.mark.parametrize("body", ["", "{}", '{"body":1}', '{"body":null}', "[]"])
async def test_a_steer_needs_a_body(client: httpx2.AsyncClient, body: str) -> None:
    answer = await client.post("/agents/demo/s1/steer", content=body)

    assert (answer.status_code, answer.json()["field"]) == (400, "body")


async def test_what_is_queued_is_cancelled_at_once_and_keeps_its_place(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    first, second, third = [await dispatch(client) for _ in range(3)]
    answer = await client.post(f"/submissions/{second}/cancel", json={"reason": "not needed"})
    again = await client.post("/agents/demo/s1/cancel", json={"submissionId": second})
    view = (await client.get(f"/submissions/{second}")).json()

    assert (answer.status_code, answer.json()) == (202, {"submissionId": second, "status": "cancelled"})
    assert (again.status_code, again.json()) == (202, answer.json())
    assert (view["state"], view["settled"]["errorCode"]) == ("settled", "cancelled")
    assert view["settled"]["error"] == "cancelled: not needed"
    assert await run_all(store, waker) == 2
    late = await client.post(f"/submissions/{first}/cancel")
    assert (late.status_code, late.json()["code"]) == (409, "already_settled")
    assert (await client.get(f"/submissions/{third}")).json()["settled"]["status"] == "succeeded"


async def test_a_run_is_flagged_and_its_owner_settles_it(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    submission = await dispatch(client)
    attempt = await claim_one(store, waker)
    answer = await client.post("/agents/demo/s1/cancel", json={"reason": "stop"})
    (renewal,) = await store.renew(owner="player", attempts=[attempt.claimed.attempt], lease_ms=1000)

    assert (answer.status_code, answer.json()) == (202, {"submissionId": submission, "status": "cancelling"})
    assert renewal.cancel == "stop"


async def test_a_delayed_run_is_cancelled_with_all_that_it_leaves_open(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await dispatch(client)
    attempt = await claim_one(store, waker)
    await attempt.hear()
    await attempt.start()
    await attempt.complete("let me see")
    started = await attempt.call("charge")
    waiting = await attempt.call("read", state=CallState.RECORDED)
    await attempt.start()
    await attempt.delta("I thi")
    await attempt.release(delay_ms=60_000)
    answer = await client.post("/agents/demo/s1/cancel")
    found = await records(client)
    closing = [(record["kind"], record["payload"]) for record in found[-4:]]

    assert answer.json()["status"] == "cancelled"
    assert [kind for kind, _ in closing] == [
        "assistant_message_aborted",
        "tool_outcome",
        "tool_outcome",
        "submission_settled",
    ]
    outcomes = [payload for kind, payload in closing if kind == "tool_outcome"]
    assert [(o["callId"], o["content"], o["isError"], o["cause"]) for o in outcomes if isinstance(o, dict)] == [
        (started, "cancelled, may have run", True, "cancelled"),
        (waiting, "cancelled, was not run", True, "cancelled"),
    ]
    assert await run_all(store, waker) == 0


async def test_an_unread_message_of_a_cancelled_run_is_written_as_undelivered(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await dispatch(client)
    attempt = await claim_one(store, waker)
    await attempt.release(delay_ms=60_000)
    message = (await client.post("/agents/demo/s1/steer", json={"body": "wait"})).json()["messageId"]
    await client.post("/agents/demo/s1/cancel")
    undelivered, settled = (record["payload"] for record in (await records(client))[-2:])

    assert undelivered == {"body": "wait", "via": "steer", "undelivered": True}
    assert isinstance(settled, dict)
    assert settled["undelivered"] == [message]


async def test_a_cancel_checks_that_the_submission_is_of_the_session_c52(client: httpx2.AsyncClient) -> None:
    other = await dispatch(client, "elsewhere")
    await dispatch(client)
    answer = await client.post("/agents/demo/s1/cancel", json={"submissionId": other})
    missing = await client.post("/agents/demo/s1/cancel", json={"submissionId": "sub_nothing"})

    assert (answer.status_code, missing.status_code) == (404, 404)
    assert answer.json()["error"].replace(other, "*") == missing.json()["error"].replace("sub_nothing", "*")


async def test_a_submission_can_be_waited_for(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    submission = await dispatch(client)
    early = await client.get(f"/submissions/{submission}?wait=true&timeout=0.1")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.get(f"/submissions/{submission}?wait=true"))
        await asyncio.sleep(0.05)
        await run_all(store, waker)
    view = waiting.result().json()

    assert early.json()["state"] == "queued"
    assert (view["state"], view["settled"]["status"], view["attempts"]) == ("settled", "succeeded", 1)
    assert (view["agent"], view["instance"], view["session"]) == ("demo", "s1", "default")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/agents/nobody", 404, "not_found"),
        ("POST", "/agents/demo/s1/unknown", 404, "not_found"),
        ("GET", "/agents/demo/s1/a/b/c/d/e/f/g/h/i/j/k/l", 400, "invalid"),
        ("GET", "/submissions/sub_nothing", 404, "not_found"),
        ("GET", "/submissions/sub_nothing?wait=true", 404, "not_found"),
        ("PUT", "/agents/demo/s1", 405, "method_not_allowed"),
        ("DELETE", "/agents/demo/s1", 405, "method_not_allowed"),
        ("GET", "/agents/demo/s1/steer", 405, "method_not_allowed"),
        ("POST", "/submissions/sub_nothing", 405, "method_not_allowed"),
        ("GET", "/agents/demo/s1/records?limit=0", 400, "invalid"),
        ("GET", "/agents/demo/s1/records?limit=x", 400, "invalid"),
        ("GET", "/agents/demo/s1/records?limit=%FF", 400, "invalid"),
        ("POST", "/agents/demo/s1?wait=perhaps", 400, "invalid"),
        ("POST", "/agents/demo/s1?wait=true&timeout=nan", 400, "invalid"),
        ("POST", "/agents/demo/s1?wait=true&timeout=-1", 400, "invalid"),
    ],
)
async def test_errors_have_one_shape(
    client: httpx2.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await client.request(method, path)
    body = answer.json()

    assert (answer.status_code, body["code"]) == (status, code)
    assert set(body) <= {"error", "code", "field"}
    assert answer.headers["content-type"] == "application/json"
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("path", ["/healthz", "/agents/demo/s1/messages", "/agents/demo/s1/records", "/agents/demo/s1"])
async def test_head_is_get_without_a_body(client: httpx2.AsyncClient, path: str) -> None:
    answer = await client.head(path)

    assert (answer.status_code, answer.content) == (200, b"")


async def test_what_is_no_http_is_refused_in_our_shape(served: Served) -> None:
    garbage = await served.raw(b"\x16\x03\x01 hello\r\n\r\n")
    flood = await served.raw(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: " + b"a" * 70_000 + b"\r\n\r\n")

    assert garbage.startswith(b"HTTP/1.1 400 ")
    assert json.loads(garbage.partition(b"\r\n\r\n")[2])["code"] == "invalid"
    assert flood.startswith(b"HTTP/1.1 431 ")


class Broken(MemoryBackend):
    """A database that can go away."""

    down: Exception | None = None

    async def find(self, submission: object) -> None:
        """Fail as told."""
        raise self.down or AssertionError

    async def ready(self) -> None:
        """Fail as told."""
        if self.down:
            raise self.down


async def test_no_database_is_a_503_with_retry_after_and_liveness_does_not_ask(waker: LocalWaker) -> None:
    backend = Broken()
    backend.down = Unavailable("the database is away")
    store = TransactionalStore(backend)
    await publish(store, "demo")
    async with gateway(store, waker) as served, served.client() as client:
        answer = await client.get("/submissions/sub_1")
        ready = await client.get("/readyz")

        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert answer.headers["retry-after"] == "1"
        assert (ready.status_code, (await client.get("/healthz")).status_code) == (503, 200)
        backend.down = None
        async with asyncio.timeout(5):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.02)


async def test_our_own_bug_is_a_500_with_a_reference_and_nothing_else(waker: LocalWaker) -> None:
    backend = Broken()
    backend.down = ZeroDivisionError("secret detail")
    async with gateway(TransactionalStore(backend), waker) as served, served.client() as client:
        answer = await client.get("/submissions/sub_1")

        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert answer.json()["ref"] in answer.json()["error"]
        assert "secret" not in answer.text


async def test_an_agent_says_what_is_in_force_and_how_many_workers_could_claim(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    alone = (await client.get("/agents/demo")).json()
    for name, role, pool, draining in (
        ("w1", "worker", "shared", False),
        ("w2", "worker", "shared", True),
        ("w3", "worker", "gpu", False),
        ("g2", "gateway", "shared", False),
    ):
        said = Component(id=name, role=role, pool=pool, formats=(1,), applied=0, draining=draining, release="1.1.0")
        await store.beat(said)
    manned = (await client.get("/agents/demo/")).json()
    await publish(store, "late", waker=waker, active=False, note="ResolvedRefs: no ModelProvider")
    late = (await client.get("/namespaces/default/agents/late")).json()
    missing = await client.get("/agents/nobody")

    assert alone["activeRevision"] == alone["desiredRevision"]
    assert (alone["namespace"], alone["name"], alone["workers"]) == ("default", "demo", 0)
    assert manned == {**alone, "workers": 1, "releases": ["1.1.0"]}
    assert late == {
        "namespace": "default",
        "name": "late",
        "workers": 1,
        "releases": ["1.1.0"],
        "note": "ResolvedRefs: no ModelProvider",
    }
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_every_route_is_described(client: httpx2.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    operations = {(method, path) for path, item in schema["paths"].items() for method in item if method != "parameters"}

    assert operations == {
        ("post", "/agents/{agent}/{id}"),
        ("get", "/agents/{agent}/{id}"),
        ("get", "/agents/{agent}"),
        ("get", "/agents/{agent}/{id}/records"),
        ("get", "/agents/{agent}/{id}/messages"),
        ("post", "/agents/{agent}/{id}/steer"),
        ("post", "/agents/{agent}/{id}/followup"),
        ("post", "/agents/{agent}/{id}/cancel"),
        ("get", "/submissions/{submissionId}"),
        ("post", "/submissions/{submissionId}/cancel"),
        ("get", "/healthz"),
        ("get", "/readyz"),
    }
    text = json.dumps(schema)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names <= set(schema["components"]["schemas"])
    assert "HTTPValidationError" not in text
    assert (await client.get("/docs")).status_code == 200
