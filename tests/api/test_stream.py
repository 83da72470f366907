"""GET /agents/{agent}/{id} as server-sent events, over real sockets."""

import asyncio
import json
import time

import httpx2
import pytest

from kubeharness.api.settings import ApiSettings
from kubeharness.core.ids import record_id
from kubeharness.engine.ports import Store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, each_frame, frames, gateway
from support.playing import claim_one, publish, run_all

HELLO = {"kind": "user", "body": "hello"}
ODD = "a\rb\r\nc\nid: 999\nevent: submission_settled\ndata: {}\n\nd\u2028e\u2029f\u0085g\u000bh"


async def read(client: httpx2.AsyncClient, url: str, **headers: str) -> list[tuple[str, str, str]]:
    """A whole stream as (id, event, data)."""
    async with client.stream("GET", url, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        return [(f.id, f.event, f.data) for f in await frames(response)]


async def test_a_stream_replays_and_ends_when_idle(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    await run_all(store, waker)
    found = await read(client, "/agents/demo/s1?until=idle")

    assert [event for _, event, _ in found] == [
        "conversation_created",
        "user_message",
        "assistant_message_started",
        "assistant_text_delta",
        "assistant_text_delta",
        "assistant_message_completed",
        "submission_settled",
    ]
    for id_, event, data in found:
        record = json.loads(data)
        assert (record["id"], record["kind"]) == (id_, event)


async def test_the_page_route_gives_the_same_records(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    await run_all(store, waker)
    streamed = [data for _, _, data in await read(client, "/agents/demo/s1?until=idle")]
    paged: list[str] = []
    url: str | None = "/agents/demo/s1/records?limit=2"
    while url:
        page = await client.get(url)
        body = page.json()
        assert page.text.startswith('{"records":[' + streamed[len(paged)])
        paged += [json.dumps(record) for record in body["records"]]
        url = f"/agents/demo/s1/records?limit=2&after={body['next']}" if "next" in body else None

    assert paged == [json.dumps(json.loads(data)) for data in streamed]


async def test_the_headers_let_proxies_pass_it_on_and_the_first_bytes_come_at_once_c22(served: Served) -> None:
    async with served.client() as client:
        began = time.monotonic()
        async with client.stream("GET", "/agents/demo/s1", headers={"accept-encoding": "gzip"}) as response:
            chunks = response.aiter_raw()
            first = await anext(chunks)

        assert time.monotonic() - began < 1
        assert first == b"retry: 2000\n\n"
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in response.headers
        assert "content-encoding" not in response.headers


async def test_a_silent_stream_is_kept_open_by_comments_c22(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo")
    settings = ApiSettings(heartbeat_seconds=0.1)
    async with (
        gateway(store, waker, settings=settings) as served,
        served.client() as client,
        client.stream("GET", "/agents/demo/s1") as response,
    ):
        received = b""
        async for chunk in response.aiter_raw():
            received += chunk
            if received.count(b":\n\n") == 3:
                break

    assert received == b"retry: 2000\n\n" + b":\n\n" * 3


async def test_a_stream_opened_before_anything_was_said_gets_what_comes(
    served: Served, client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    async with served.client() as reader, reader.stream("GET", "/agents/demo/new") as response:
        assert response.status_code == 200
        await client.post("/agents/demo/new", json=HELLO)
        await run_all(store, waker)
        found = await frames(response, limit=7)

    assert found[0].event == "conversation_created"
    assert found[-1].event == "submission_settled"


async def test_a_stream_of_an_unknown_agent_is_a_404(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/agents/nobody/s1")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_frames_come_live_one_by_one(served: Served, client: httpx2.AsyncClient, waker: LocalWaker) -> None:
    store = served.runtime._store
    await client.post("/agents/demo/s1", json=HELLO)
    attempt = await claim_one(store, waker)
    await attempt.hear()
    await attempt.start()
    async with served.client() as reader, reader.stream("GET", "/agents/demo/s1") as response:
        live = each_frame(response)
        for _ in range(3):
            await anext(live)
        for text in ("one", "two", "three"):
            began = time.monotonic()
            await attempt.delta(text)
            frame = await anext(live)

            assert json.loads(frame.data)["payload"] == {"text": text}
            assert time.monotonic() - began < 0.15  # woken: the poll comes every 0.2 s


async def test_until_settled_ends_after_that_record(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    first = (await client.post("/agents/demo/s1", json=HELLO)).json()["submissionId"]
    await client.post("/agents/demo/s1", json=HELLO)
    live = asyncio.TaskGroup()
    async with live as tasks:
        reading = tasks.create_task(read(client, f"/agents/demo/s1?until=settled:{first}"))
        await asyncio.sleep(0.05)
        await run_all(store, waker)
    replayed = await read(client, f"/agents/demo/s1?until=settled:{first}")

    assert reading.result() == replayed
    assert [event for _, event, _ in replayed].count("submission_settled") == 1
    assert replayed[-1][1] == "submission_settled"
    assert await read(client, f"/agents/demo/s1?until=settled:{first}&after={replayed[-1][0]}") == []
    missing = await client.get("/agents/demo/s1?until=settled:sub_nothing")
    assert missing.status_code == 404
    assert (await client.get("/agents/demo/s1?until=tomorrow")).status_code == 400


async def test_until_idle_waits_for_what_is_queued(client: httpx2.AsyncClient, store: Store, waker: LocalWaker) -> None:
    for _ in range(3):
        await client.post("/agents/demo/s1", json=HELLO)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read(client, "/agents/demo/s1?until=idle"))
        await asyncio.sleep(0.05)
        await run_all(store, waker)

    assert [event for _, event, _ in reading.result()].count("submission_settled") == 3


async def test_readers_that_reconnect_at_every_record_see_what_one_that_stays_sees_c23(
    store: Store, waker: LocalWaker
) -> None:
    await publish(store, "demo")
    async with (
        gateway(store, waker) as one,
        gateway(store, waker) as two,
        one.client() as first,
        two.client() as second,
    ):
        await first.post("/agents/demo/s1", json=HELLO)
        async with asyncio.TaskGroup() as tasks:
            staying = [tasks.create_task(read(client, "/agents/demo/s1?until=idle")) for client in (first, second)]
            hopping = tasks.create_task(hop(first, second, "/agents/demo/s1"))
            attempt = await claim_one(store, waker)
            await attempt.hear()
            await attempt.start()
            text = [f"word {n} " for n in range(60)]
            for word in text:
                await attempt.delta(word)
                await asyncio.sleep(0.002)
            await attempt.complete("".join(text))
            await attempt.settle()
    whole = staying[0].result()

    assert staying[1].result() == whole
    assert hopping.result() == whole
    ids = [id_ for id_, _, _ in whole]
    assert ids == sorted(set(ids))
    assert len(ids) == 65


async def hop(first: httpx2.AsyncClient, second: httpx2.AsyncClient, url: str) -> list[tuple[str, str, str]]:
    """Read one record, go away, come back to the other gateway."""
    found: list[tuple[str, str, str]] = []
    while not found or found[-1][1] != "submission_settled":
        headers = {"last-event-id": found[-1][0]} if found else {}
        async with (first, second)[len(found) % 2].stream("GET", url, headers=headers) as response:
            (frame,) = await frames(response, limit=1)
            found.append((frame.id, frame.event, frame.data))
    return found


async def test_frames_go_on_over_a_restart_of_the_gateway_c23(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo")
    async with gateway(store, waker) as served, served.client() as client:
        await client.post("/agents/demo/s1", json=HELLO)
        attempt = await claim_one(store, waker)
        await attempt.hear()
        async with client.stream("GET", "/agents/demo/s1") as response:
            before = await frames(response, limit=2)
    await attempt.say("while it was down")
    await attempt.settle()
    async with gateway(store, waker) as served, served.client() as client:
        rest = await read(client, "/agents/demo/s1?until=idle", **{"last-event-id": before[-1].id})
        whole = await read(client, "/agents/demo/s1?until=idle")

    assert [(f.id, f.event, f.data) for f in before] + rest == whole


@pytest.mark.parametrize("offset", ["x", "0" * 25, "0" * 27, "U" * 26, "é" * 26])
async def test_an_offset_of_another_shape_is_a_400(client: httpx2.AsyncClient, offset: str) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    answer = await client.get("/agents/demo/s1", params={"after": offset})

    assert (answer.status_code, answer.json()["field"]) == (400, "after")


async def test_an_unknown_offset_is_a_416_with_the_head(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    await client.post("/agents/demo/foreign", json=HELLO)
    await run_all(store, waker)
    mine = await read(client, "/agents/demo/s1?until=idle")
    foreign = await read(client, "/agents/demo/foreign?until=idle")
    head = mine[-1][0]
    reissued = head[:-1] + ("0" if head[-1] != "0" else "1")
    beyond = record_id(2**47, 10_000, 1)
    far = record_id(2**47, 2**64 - 1, 1)
    nowhere = record_id(2**47, 0, 1)
    for offset in (foreign[3][0], reissued, beyond, far, nowhere):
        for url in ("/agents/demo/s1", "/agents/demo/s1/records"):
            answer = await client.get(url, headers={"last-event-id": offset})

            assert (answer.status_code, answer.json()["code"], answer.json()["head"]) == (416, "offset_unknown", head)


async def test_odd_separators_stay_inside_one_frame_c25(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await client.post("/agents/demo/s1", json={"kind": "user", "body": ODD})
    attempt = await claim_one(store, waker)
    await attempt.hear()
    await attempt.say(ODD)
    await attempt.settle(error=ODD)
    found = await read(client, "/agents/demo/s1?until=idle")
    payloads = {event: json.loads(data)["payload"] for _, event, data in found}

    assert len(found) == 6
    assert payloads["user_message"]["body"] == ODD
    assert payloads["assistant_text_delta"]["text"] == ODD
    assert payloads["submission_settled"]["error"] == ODD


async def test_a_reader_that_never_reads_is_cut_and_the_others_are_not_delayed_c24(
    store: Store, waker: LocalWaker
) -> None:
    await publish(store, "demo")
    settings = ApiSettings(write_seconds=0.5)
    async with gateway(store, waker, settings=settings) as served, served.client() as client:
        await client.post("/agents/demo/s1", json=HELLO)
        attempt = await claim_one(store, waker)
        await attempt.start()
        for _ in range(400):
            await attempt.delta("x" * 50_000)
        stalled = []
        for _ in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
            writer.write(b"GET /agents/demo/s1 HTTP/1.1\r\nhost: x\r\n\r\n")
            stalled.append(writer)
        async with asyncio.timeout(5):
            while served.app.places.taken < 10:
                await asyncio.sleep(0.01)
        tail = (await client.get("/agents/demo/s1/messages")).json()["offset"]
        async with client.stream("GET", f"/agents/demo/s1?after={tail}") as response:
            live = each_frame(response)
            began = time.monotonic()
            await attempt.delta("y")
            await anext(live)
            took = time.monotonic() - began
        async with asyncio.timeout(10):
            await served.app.places.wait_empty()
        for writer in stalled:
            writer.close()

    assert took < 0.5


async def test_streams_that_are_dropped_leave_nothing_c20(served: Served, client: httpx2.AsyncClient) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    before = len(asyncio.all_tasks())
    for _ in range(200):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /agents/demo/s1 HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.read(64)
        writer.close()
    async with asyncio.timeout(5):
        await served.app.places.wait_empty()
        while len(asyncio.all_tasks()) > before:
            await asyncio.sleep(0.02)

    assert served.runtime._transcripts.watched == 0


async def test_a_caller_has_so_many_streams(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo")
    settings = ApiSettings(max_streams_per_principal=1, max_streams=1)
    async with gateway(store, waker, settings=settings) as served, served.client() as client:
        async with client.stream("GET", "/agents/demo/s1") as response:
            chunks = response.aiter_raw()
            await anext(chunks)
            refused = await client.get("/agents/demo/s1")

        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert "retry-after" in refused.headers


async def test_a_closing_gateway_ends_its_streams(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo")
    async with gateway(store, waker, drain_seconds=1.0) as served, served.client() as client:
        await client.post("/agents/demo/s1", json=HELLO)
        async with client.stream("GET", "/agents/demo/s1") as response:
            live = each_frame(response)
            await anext(live)
            served.stop.set()
            rest = [frame async for frame in live]  # ends properly: no error of a cut connection

    assert rest == []


async def test_the_accept_header_chooses_the_snapshot(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    await client.post("/agents/demo/s1", json=HELLO)
    await run_all(store, waker)
    await client.post("/agents/demo/s1", json=HELLO)
    snapshot = (await client.get("/agents/demo/s1", headers={"accept": "application/json"})).json()
    same = (await client.get("/agents/demo/s1/messages")).json()

    assert snapshot == same
    assert [(m["role"], m["content"]) for m in snapshot["messages"]] == [
        ("user", "hello"),
        ("assistant", "Hello, world."),
    ]
    assert [s["state"] for s in snapshot["submissions"]] == ["queued"]
    assert snapshot["inputs"] == []
    assert await read(client, f"/agents/demo/s1?until=settled:{snapshot['messages'][0]['submissionId']}")
    page = await client.get("/agents/demo/s1/records", params={"after": snapshot["offset"]})
    assert page.json() == {"records": []}


async def test_hints_may_be_lost(store: Store) -> None:
    """The safety poll brings what no hint announced (I1)."""
    await publish(store, "demo")
    deaf = LocalWaker()
    async with gateway(store, deaf) as served, served.client() as client:
        await client.post("/agents/demo/s1", json=HELLO)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read(client, "/agents/demo/s1?until=idle"))
            await asyncio.sleep(0.05)
            await run_all(store, LocalWaker())

    assert reading.result()[-1][1] == "submission_settled"
