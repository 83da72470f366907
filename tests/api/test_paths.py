"""What a path may hold, on every route alike (C21), and under a prefix (C51)."""

import json
from urllib.parse import quote

import httpx2
import pytest

from kubeharness.api.paths import parse_path
from kubeharness.api.settings import ApiSettings
from kubeharness.core.errors import InvalidRequest
from kubeharness.engine.ports import Store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, gateway
from support.playing import publish, run_all

HELLO = json.dumps({"kind": "user", "body": "hello"})
ALLOWED = ["a", "steer", "cancel", "a~b", "a:b", "a@b", "a.b", "...", "-", "_", "A" * 256, "%61", "a%7Eb", "x%3Ay"]
REFUSED = [
    "a%2Fb",
    "a%252Fb",
    "%2e",
    "%2E%2E",
    "..",
    "a%20b",
    "%C3%A9",
    "e%CC%81",
    quote("日本"),
    quote("👩‍👩‍👧"),
    "%ZZ",
    "%",
    "%4",
    "%00",
    "%FF",
    "x;y",
    "x+y",
    "a%3Fb",
    "a%23b",
    "a%5Cb",
    "A" * 257,
    "A" * 10_000,
]


async def ask(served: Served, method: str, path: str, body: str = "") -> tuple[int, dict[str, object]]:
    """Send the path as it stands: a client would mend it."""
    length = f"content-length: {len(body)}\r\n" if method == "POST" else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}\r\n"
    answer = await served.raw(head.encode() + body.encode())
    status_line, _, rest = answer.partition(b"\r\n")
    _, _, raw = rest.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in rest.partition(b"\r\n\r\n")[0]:
        return int(status_line.split()[1]), {}
    return int(status_line.split()[1]), json.loads(raw) if raw else {}


@pytest.mark.parametrize("instance", ALLOWED)
async def test_an_allowed_id_works_on_every_route_c21(
    served: Served, store: Store, waker: LocalWaker, instance: str
) -> None:
    status, receipt = await ask(served, "POST", f"/agents/demo/{instance}", HELLO)
    assert status == 202
    await run_all(store, waker)
    routes = [
        ("GET", "?until=idle", "", 200),
        ("GET", "/records", "", 200),
        ("GET", "/messages", "", 200),
        ("POST", "/steer", '{"body":"x"}', 409),
        ("POST", "/cancel", "", 409),
    ]
    for method, rest, body, expected in routes:
        found, _ = await ask(served, method, f"/agents/demo/{instance}{rest}", body)
        assert found == expected, (method, rest)
    _, snapshot = await ask(served, "GET", f"/agents/demo/{instance}/messages")
    assert snapshot["conversationId"] == receipt["conversationId"]


@pytest.mark.parametrize("instance", REFUSED)
async def test_any_other_id_is_a_400_on_every_route_c21(served: Served, instance: str) -> None:
    routes = [
        ("POST", "", HELLO),
        ("GET", "", ""),
        ("GET", "/records", ""),
        ("GET", "/messages", ""),
        ("POST", "/steer", '{"body":"x"}'),
        ("POST", "/followup", '{"body":"x"}'),
        ("POST", "/cancel", ""),
        ("DELETE", "", ""),
    ]
    for method, rest, body in routes:
        status, problem = await ask(served, method, f"/agents/demo/{instance}{rest}", body)
        assert (status, problem["code"]) == (400, "invalid"), (method, rest)
    status, _ = await ask(served, "GET", f"/submissions/{instance}")
    assert status == 400


@pytest.mark.parametrize(
    "session",
    ["a/b", "a%2Fb", ".", "..", "a b", "\u00e9", "e\u0301", "\u65e5\u672c", "\x00", "a?b", "A" * 257],
)
async def test_a_session_outside_of_the_alphabet_is_a_400_in_body_and_query_c21(
    client: httpx2.AsyncClient, session: str
) -> None:
    bodies = [
        await client.post("/agents/demo/s1", json={"kind": "user", "body": "x", "session": session}),
        await client.post("/agents/demo/s1/steer", json={"body": "x", "session": session}),
        await client.post("/agents/demo/s1/cancel", json={"session": session}),
        await client.get("/agents/demo/s1", params={"session": session}),
        await client.get("/agents/demo/s1/records", params={"session": session}),
        await client.get("/agents/demo/s1/messages", params={"session": session}),
    ]

    assert [(answer.status_code, answer.json()["field"]) for answer in bodies] == [(400, "session")] * 6


async def test_a_session_is_one_conversation_by_query_and_body_c21(
    client: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    receipt = (await client.post("/agents/demo/s1", json={"kind": "user", "body": "x", "session": "two"})).json()
    await run_all(store, waker)
    snapshot = (await client.get("/agents/demo/s1/messages?session=two")).json()

    assert snapshot["conversationId"] == receipt["conversationId"]
    assert (await client.get("/agents/demo/s1/messages")).json()["messages"] == []
    twice = await client.get("/agents/demo/s1/records?session=a&session=b")
    assert (twice.status_code, twice.json()["field"]) == (400, "session")
    other = await client.post("/agents/demo/s1?session=one", json={"kind": "user", "body": "x", "session": "two"})
    assert (other.status_code, other.json()["field"]) == (400, "session")


@pytest.mark.parametrize("agent", ["Demo", "demo_", "-demo", "d" * 64, "d%2Fx", "%00", "é"])
async def test_an_agents_name_is_a_dns_label_c21(served: Served, agent: str) -> None:
    status, problem = await ask(served, "POST", f"/agents/{quote(agent, safe='%')}/s1", HELLO)

    assert (status, problem["code"]) == (400, "invalid")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("//agents/demo/s1", 400),
        ("/agents//s1", 400),
        ("/agents/demo/s1//", 400),
        ("/agents/demo//steer", 400),
        ("/agents/demo/s1/steer%2F", 400),
        ("/agents/demo/s1/a%2F..%2Fsteer", 400),
        ("/nothing%2Fhealthz", 400),
        ("/%61gents/demo/s1", 202),
    ],
)
async def test_empty_segments_name_nothing_c21(served: Served, path: str, expected: int) -> None:
    status, _ = await ask(served, "POST", path, HELLO)

    assert status == expected


@pytest.mark.parametrize("prefix", ["/harness", "/a/b"])
async def test_everything_works_under_a_prefix_with_and_without_rewrite_c51(
    store: Store, waker: LocalWaker, prefix: str
) -> None:
    await publish(store, "demo")
    settings = ApiSettings(root_path=prefix)
    async with gateway(store, waker, settings=settings) as served, served.client() as client:
        for seen in (prefix, ""):  # what the gateway sees: a proxy may take the prefix off
            for slash in ("", "/"):
                answer = await client.post(f"{seen}/agents/demo/s1{slash}", content=HELLO)
                assert answer.status_code == 202
                link = answer.headers["location"]
                assert link == f"{prefix}/submissions/{answer.json()['submissionId']}"
                assert (await client.get(link)).status_code == 200
                assert (await client.get(link.removeprefix(prefix))).status_code == 200
            steered = await client.post(f"{seen}/agents/demo/s1/steer/", json={"body": "x"})
            assert steered.status_code == 409
            named = await client.post(f"{seen}/namespaces/default/agents/demo/s1", content=HELLO)
            assert named.headers["location"].startswith(f"{prefix}/namespaces/default/submissions/")
            assert (await client.get(named.headers["location"])).status_code == 200
            docs = await client.get(f"{seen}/docs")
            assert f"{prefix}/openapi.json" in docs.text
            schema = (await client.get(f"{seen}/openapi.json")).json()
            assert schema["servers"] == [{"url": prefix}]
            assert (await client.get(f"{seen}/healthz")).status_code == 200


async def test_a_namespace_in_the_path_is_that_namespace(store: Store, waker: LocalWaker) -> None:
    await publish(store, "demo", namespace="team-a")
    async with gateway(store, waker) as served, served.client() as client:
        assert (await client.post("/agents/demo/s1", content=HELLO)).status_code == 404
        answer = await client.post("/namespaces/team-a/agents/demo/s1", content=HELLO)
        assert answer.status_code == 202
        submission = answer.json()["submissionId"]

        assert (await client.get(f"/namespaces/team-a/submissions/{submission}")).status_code == 200
        assert (await client.get(f"/submissions/{submission}")).status_code == 404
        assert (await client.post(f"/submissions/{submission}/cancel")).status_code == 404


def test_a_path_is_split_before_it_is_decoded_c21() -> None:
    path = parse_path(b"/namespaces/n1/agents/demo/s~1/steer?x=/", "")

    assert (path.namespace, path.agent, path.instance, path.route) == ("n1", "demo", "s~1", "/agents/demo/s~1/steer")
    assert not path.is_session
    with pytest.raises(InvalidRequest):
        parse_path(b"/agents/demo/s1%2Fsteer", "")
