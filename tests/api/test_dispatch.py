"""POST /agents/{agent}/{id}, over real sockets."""

import asyncio
import json

import httpx2
import pytest

from kubeharness.engine.ports import Store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, gateway
from support.playing import claim_one, publish, run_all

FORM = {"content-type": "application/x-www-form-urlencoded"}
HELLO = {"kind": "user", "body": "hello"}


async def test_a_dispatch_is_answered_with_a_receipt(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/agents/demo/s1", json=HELLO)

    assert answer.status_code == 202
    receipt = answer.json()
    assert set(receipt) == {"submissionId", "conversationId"}
    assert answer.headers["location"] == f"/submissions/{receipt['submissionId']}"
    assert (await client.get(answer.headers["location"])).json()["state"] == "queued"


async def test_the_line_of_the_seed_works_as_curl_sends_it(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/agents/demo/s1", content=json.dumps(HELLO), headers=FORM)

    assert answer.status_code == 202


async def test_a_waiter_gets_the_outcome(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(client.post("/agents/demo/s1?wait=true", json=HELLO))
        async with asyncio.timeout(5):
            while not await run_all(store, waker, "It is ", "noon."):
                await asyncio.sleep(0.01)
    answer = waiting.result()

    assert answer.status_code == 200
    assert answer.json()["status"] == "succeeded"
    assert answer.json()["output"] == "It is noon."


async def test_a_waiter_is_told_of_a_failure_too(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    await client.post("/agents/demo/s1", json={**HELLO, "dispatchId": "d1"})
    attempt = await claim_one(store, waker)
    await attempt.hear()
    await attempt.settle(error="the model said no")

    answer = await client.post("/agents/demo/s1?wait=true", json={**HELLO, "dispatchId": "d1"})

    assert answer.status_code == 200
    assert answer.headers["idempotency-replayed"] == "true"
    body = answer.json()
    assert (body["status"], body["errorCode"], body["error"]) == ("failed", "run_failed", "the model said no")
    assert "output" not in body


async def test_a_wait_that_is_over_gives_the_receipt(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/agents/demo/s1?wait=true&timeout=0.2", json=HELLO)

    assert answer.status_code == 202
    assert set(answer.json()) == {"submissionId", "conversationId"}


async def test_fifty_equal_posts_at_once_through_two_gateways_give_one_submission_c19(
    store: Store, waker: LocalWaker
) -> None:
    await publish(store, "demo", "other")
    pay = {"kind": "user", "body": "pay", "dispatchId": "k1"}
    async with (
        gateway(store, waker) as one,
        gateway(store, waker) as two,
        one.client() as first,
        two.client() as second,
    ):
        async with asyncio.TaskGroup() as tasks:
            posts = [tasks.create_task((first, second)[n % 2].post("/agents/demo/new", json=pay)) for n in range(50)]
        answers = [post.result() for post in posts]
        receipts = {answer.text for answer in answers}

        assert {answer.status_code for answer in answers} == {202}
        assert len(receipts) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1

        receipt = answers[0].json()
        forms = [
            '{ "dispatchId" : "k1", "body":"pay",\n "kind":"user" }',
            json.dumps({**pay, "session": "default"}),
            json.dumps({**pay, "labels": {}, "attachments": [], "priority": "interactive"}),
        ]
        for form in forms:
            again = await second.post("/agents/demo/new", content=form)
            assert (again.status_code, again.json()) == (202, receipt)

        changed = await first.post("/agents/demo/new", json={**pay, "body": "pay "})
        assert (changed.status_code, changed.json()["code"]) == (409, "dispatch_conflict")

        others = [
            (await first.post(path, json=pay)).json()["submissionId"]
            for path in ("/agents/demo/elsewhere", "/agents/other/new")
        ]
        assert len({receipt["submissionId"], *others}) == 3

        await run_all(store, waker)
        after = await first.post("/agents/demo/new", json=pay)
        assert (after.status_code, after.json()) == (202, receipt)
        page = (await first.get("/agents/demo/new/records")).json()
        kinds = [record["kind"] for record in page["records"]]
        assert kinds.count("conversation_created") == 1
        assert kinds.count("user_message") == 1
        assert kinds.count("submission_settled") == 1


async def test_the_header_is_the_dispatch_id(client: httpx2.AsyncClient) -> None:
    by_header = await client.post("/agents/demo/s1", json=HELLO, headers={"idempotency-key": "k"})
    by_body = await client.post("/agents/demo/s1", json={**HELLO, "dispatchId": "k"})
    both = await client.post("/agents/demo/s1", json={**HELLO, "dispatchId": "k"}, headers={"idempotency-key": "k"})
    other = await client.post("/agents/demo/s1", json={**HELLO, "dispatchId": "l"}, headers={"idempotency-key": "k"})

    assert by_header.json() == by_body.json() == both.json()
    assert (other.status_code, other.json()["field"]) == (400, "dispatchId")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("", "body"),
        ("   ", "body"),
        ("[]", "body"),
        ("{", "body"),
        ('{"kind":"user"}', "body"),
        ('{"kind":"user","body":1}', "body"),
        ('{"kind":"robot","body":"x"}', "kind"),
        ('{"body":"x"}', "kind"),
        ('{"kind":"user","body":"x","body":"y"}', "body"),
        ('{"kind":"user","body":"x","labels":{"a":"1","a":"2"}}', "a"),
        ('{"kind":"user","body":"x","labels":{"a":NaN}}', "body"),
        ('{"kind":"user","body":"x","labels":{"a":-Infinity}}', "body"),
        ('{"kind":"user","body":"x","labels":{"a":1e999}}', "body"),
        ('{"kind":"user","body":"x","labels":{"a":1}}', "labels.a"),
        ('{"kind":"user","body":"x","labels":{"a":' + "9" * 5000 + "}}", "body"),
        ('{"kind":"user","body":"x","attachments":' + "[" * 100 + "]" * 100 + "}", "body"),
        ('{"kind":"user","body":"x","attachments":' + "[" * 200_000 + "]" * 200_000 + "}", "body"),
        ('{"kind":"user","body":"x","session":""}', "session"),
        ('{"kind":"user","body":"x","session":".."}', "session"),
        ('{"kind":"user","body":"x","session":"a/b"}', "session"),
        ('{"kind":"user","body":"x","session":"\\u00e9"}', "session"),
        ('{"kind":"user","body":"x","session":"\\ud83d"}', "session"),
        ('{"kind":"user","body":"x","dispatchId":""}', "dispatchId"),
        ('{"kind":"user","body":"x","dispatchId":"a\\nb"}', "dispatchId"),
        ('{"kind":"user","body":"x","dispatchId":"a\\u0000"}', "dispatchId"),
        ('{"kind":"user","body":"x","signal":{"type":"t"}}', "signal"),
        ('{"kind":"signal","body":"x"}', "signal"),
        ('{"kind":"signal","body":"x","signal":{"type":""}}', "signal.type"),
        ('{"kind":"signal","body":"x","signal":{"type":"kubeharness.spoof"}}', "signal.type"),
        ('{"kind":"signal","body":"x","signal":{"sender":{}}}', "signal.type"),
        ('{"kind":"user","body":"x"} {}', "body"),
        (b'{"kind":"user","body":"\xff"}', "body"),
        (b'\xef\xbb\xbf{"kind":"user","body":"x"}', "body"),
    ],
)
async def test_bad_input_is_a_400_that_names_the_field(
    client: httpx2.AsyncClient, body: str | bytes, field: str
) -> None:
    answer = await client.post("/agents/demo/s1", content=body)

    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
    assert answer.json()["code"] == "invalid"
    assert (await client.get("/agents/demo/s1/records")).json() == {"records": []}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attachments", [{"digest": "sha256:0"}]),
        ("resultSchema", {"type": "object"}),
        ("resultRetries", 1),
        ("priority", "batch"),
        ("onBusy", "steer"),
        ("colour", "red"),
    ],
)
async def test_a_field_that_is_not_honoured_is_refused(client: httpx2.AsyncClient, field: str, value: object) -> None:
    answer = await client.post("/agents/demo/s1", json={**HELLO, field: value})

    assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, "not_supported", field)


async def test_the_defaults_of_what_is_not_honoured_are_taken(client: httpx2.AsyncClient) -> None:
    defaults: dict[str, object] = {
        "attachments": [],
        "resultSchema": None,
        "resultRetries": 2,
        "priority": "interactive",
        "onBusy": "enqueue",
        "signal": None,
        "session": None,
    }
    answer = await client.post("/agents/demo/s1", json={**HELLO, **defaults})

    assert answer.status_code == 202


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8", "application/x+json", None])
async def test_what_is_json_is_read(client: httpx2.AsyncClient, media: str | None) -> None:
    headers = {"content-type": media} if media else {}
    answer = await client.post("/agents/demo/s1", content=json.dumps(HELLO), headers=headers)

    assert answer.status_code == 202


@pytest.mark.parametrize(
    "headers",
    [{"content-type": "text/plain"}, {"content-type": "multipart/form-data"}, {"content-encoding": "gzip"}],
)
async def test_what_is_no_json_is_a_415(client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    answer = await client.post("/agents/demo/s1", content=json.dumps(HELLO), headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_a_body_over_the_limit_is_a_413_announced_or_not(served: Served) -> None:
    limit = served.app.settings.max_body_bytes
    head = b"POST /agents/demo/s1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    announced = await served.raw(head + b"content-length: %d\r\n\r\n" % (limit + 1))
    chunk = b"%x\r\n%s\r\n" % (1_000_000, b" " * 1_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(head + b"transfer-encoding: chunked\r\n\r\n" + chunk * 9)
    async with asyncio.timeout(10):
        sent = await reader.read(4096)
    writer.close()

    assert announced.startswith(b"HTTP/1.1 413 ")
    assert sent.startswith(b"HTTP/1.1 413 ")


async def test_nul_and_lone_surrogates_are_stored_as_replacements_c12(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    for instance, text in (("nul", r"a\u0000b"), ("half", r"a\ud83db")):
        answer = await client.post(f"/agents/demo/{instance}", content=f'{{"kind":"user","body":"{text}"}}')
        assert answer.status_code == 202
        await run_all(store, waker)
        records = (await client.get(f"/agents/demo/{instance}/records")).json()["records"]
        said = [record["payload"]["body"] for record in records if record["kind"] == "user_message"]

        assert said == ["a\ufffdb"]
    refused = await client.post("/agents/demo/s1", content=r'{"kind":"user","body":"x","session":"a\u0000b"}')
    assert (refused.status_code, refused.json()["field"]) == (400, "session")


async def test_half_a_body_leaves_nothing_and_a_dropped_answer_can_be_had_again_c20(
    served: Served, client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    body = json.dumps({**HELLO, "dispatchId": "once"}).encode()
    head = b"POST /agents/demo/s1 HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    _, half = await asyncio.open_connection("127.0.0.1", served.port)
    half.write(head + body[:20])
    await half.drain()
    half.close()
    await half.wait_closed()
    assert (await client.get("/agents/demo/s1/records")).json() == {"records": []}

    _, gone = await asyncio.open_connection("127.0.0.1", served.port)
    gone.write(head + body)
    await gone.drain()
    gone.close()
    await gone.wait_closed()
    async with asyncio.timeout(5):
        while not await run_all(store, waker):
            await asyncio.sleep(0.01)
    again = await client.post("/agents/demo/s1?wait=true", content=body)

    assert (again.status_code, again.json()["status"]) == (200, "succeeded")
    assert again.headers["idempotency-replayed"] == "true"


async def test_waiters_that_leave_do_not_touch_the_run_and_leave_no_task_c20(
    served: Served, client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await client.post("/agents/demo/s1", json={**HELLO, "dispatchId": "d"})
    before = len(asyncio.all_tasks())
    body = json.dumps({**HELLO, "dispatchId": "d"}).encode()
    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /agents/demo/s1?wait=true HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.close()
    async with asyncio.timeout(5):
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.02)

    assert await run_all(store, waker) == 1


async def test_an_agent_without_a_revision_is_a_503_that_says_why_and_replays_still_answer(
    store: Store, waker: LocalWaker
) -> None:
    await publish(store, "waiting", active=False, note="SecretNotFound: no Secret 'key'")
    async with gateway(store, waker) as served, served.client() as client:
        early = await client.post("/agents/waiting/s1", json={**HELLO, "dispatchId": "d"})

        assert (early.status_code, early.json()["code"]) == (503, "agent_not_ready")
        assert "SecretNotFound" in early.json()["error"]
        assert "retry-after" in early.headers
        assert (await client.get("/agents/waiting/s1/records")).json() == {"records": []}


async def test_an_unknown_agent_is_a_404(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/agents/nobody/s1", json=HELLO)

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_an_agent_published_a_moment_ago_is_found_without_a_hint(
    client: httpx2.AsyncClient, store: Store
) -> None:
    await publish(store, "fresh")

    assert (await client.post("/agents/fresh/s1", json=HELLO)).status_code == 202
