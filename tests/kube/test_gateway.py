"""A gateway whose callers bear Kubernetes tokens: RBAC decides, and what is not theirs looks missing (C52)."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from kube.callers import EDIT, VIEW, Callers
from kubeharness.api.auth import AnyOf, Reviewed
from kubeharness.api.tokens import Tokens
from kubeharness.engine.ports import Store
from kubeharness.kube.review import KubernetesReview
from kubeharness.store.memory import memory_store
from kubeharness.store.wakers import LocalWaker
from kubeoperator.proxies import api_proxy
from support.fleet import fleet
from support.gateways import Served, frames, gateway
from support.playing import publish, run_all

HELLO = {"kind": "user", "body": "hello"}
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "basic"


@pytest.fixture
def store() -> Store:
    return memory_store()


@pytest.fixture
def waker() -> LocalWaker:
    return LocalWaker()


@pytest.fixture
async def served(store: Store, waker: LocalWaker, review: KubernetesReview, callers: Callers) -> AsyncIterator[Served]:
    """Agents `demo` and `other` in the callers' namespace, and `demo` in one where nobody of them has a right."""
    await publish(store, "demo", "other", namespace=callers.namespace)
    await publish(store, "demo", namespace="team-b")
    async with gateway(store, waker, auth=Reviewed(review)) as served:
        yield served


def at(callers: Callers, path: str) -> str:
    return f"/namespaces/{callers.namespace}{path}"


def same(one: httpx2.Response, other: httpx2.Response) -> bool:
    """Whether two answers cannot be told apart."""

    def seen(answer: httpx2.Response) -> tuple[int, bytes, list[str]]:
        return answer.status_code, answer.content, sorted(name for name in answer.headers if name != "date")

    return seen(one) == seen(other)


async def test_a_viewer_reads_the_stream_and_gets_403_on_dispatch(
    served: Served, store: Store, waker: LocalWaker, callers: Callers
) -> None:
    callers.account("viewer")
    callers.grant("viewer", *VIEW)
    callers.account("editor")
    callers.grant("editor", *EDIT)
    async with (
        served.client(headers=callers.bearer("viewer")) as viewer,
        served.client(headers=callers.bearer("editor")) as editor,
    ):
        admitted = await editor.post(at(callers, "/agents/demo/s1"), json=HELLO)
        assert admitted.status_code == 202
        submission = admitted.json()["submissionId"]
        await run_all(store, waker)
        async with viewer.stream("GET", at(callers, "/agents/demo/s1?until=idle")) as response:
            assert response.status_code == 200
            assert (await frames(response))[-1].event == "submission_settled"
        assert (await viewer.get(at(callers, f"/submissions/{submission}"))).status_code == 200
        refused = [
            await viewer.post(at(callers, "/agents/demo/s1"), json=HELLO),
            await viewer.post(at(callers, "/agents/demo/s1?wait=true"), json=HELLO),
            await viewer.post(at(callers, "/agents/demo/s1/steer"), json={"body": "x"}),
            await viewer.post(at(callers, "/agents/demo/s1/followup"), json={"body": "x"}),
            await viewer.post(at(callers, "/agents/demo/s1/cancel")),
            await viewer.post(at(callers, f"/submissions/{submission}/cancel")),
        ]
        # The editor may do all of it: these are refused for what they are.
        steered = await editor.post(at(callers, "/agents/demo/s1/steer"), json={"body": "x"})
        cancelled = await editor.post(at(callers, f"/submissions/{submission}/cancel"))

    assert [(answer.status_code, answer.json()["code"]) for answer in refused] == [(403, "forbidden")] * 6
    assert "'dispatch'" in refused[0].json()["error"]
    assert "role with this verb on agents.kubeharness.dev" in refused[0].json()["error"]
    assert (steered.json()["code"], cancelled.json()["code"]) == ("no_run_in_flight", "already_settled")


async def test_who_may_only_dispatch_is_told_so_and_not_that_the_agent_is_missing(
    served: Served, callers: Callers
) -> None:
    callers.account("sender")
    callers.grant("sender", "dispatch")
    async with served.client(headers=callers.bearer("sender")) as sender:
        answers = [
            await sender.post(at(callers, "/agents/demo/s1"), json=HELLO),
            await sender.post(at(callers, "/agents/demo/s1?wait=true"), json=HELLO),
            await sender.get(at(callers, "/agents/demo/s1/messages")),
        ]

    assert [answer.status_code for answer in answers] == [202, 403, 403]
    assert "'read'" in answers[1].json()["error"]


async def test_an_agent_that_is_not_ours_looks_missing_c52(
    served: Served, store: Store, waker: LocalWaker, callers: Callers
) -> None:
    callers.account("one")
    callers.grant("one", *EDIT, agents=("demo",))
    callers.account("editor")
    callers.grant("editor", *EDIT)
    async with (
        served.client(headers=callers.bearer("one")) as one,
        served.client(headers=callers.bearer("editor")) as editor,
    ):
        theirs = (await editor.post(at(callers, "/agents/other/s1"), json=HELLO)).json()["submissionId"]
        mine = (await one.post(at(callers, "/agents/demo/s1"), json=HELLO)).json()["submissionId"]
        await run_all(store, waker)
        for method, path in (
            ("GET", "/agents/{}/s1"),
            ("GET", "/agents/{}/s1/records"),
            ("GET", "/agents/{}/s1/messages"),
            ("POST", "/agents/{}/s1"),
            ("POST", "/agents/{}/s1?wait=true"),
            ("POST", "/agents/{}/s1/steer"),
            ("POST", "/agents/{}/s1/cancel"),
        ):
            foreign = await one.request(method, at(callers, path.format("other")), json=HELLO)
            missing = await one.request(method, at(callers, path.format("nobod")), json=HELLO)
            elsewhere = await one.request(method, f"/namespaces/team-b{path.format('demo')}", json=HELLO)
            nowhere = await one.request(method, f"/namespaces/team-z{path.format('demo')}", json=HELLO)

            assert foreign.status_code == elsewhere.status_code == 404, path
            assert foreign.text.replace("other", "nobod") == missing.text, path
            assert foreign.headers.keys() == missing.headers.keys(), path
            assert same(elsewhere, nowhere), path
        # The same by the submission's id: whose it is decides, not who asks where.
        assert (await one.get(at(callers, f"/submissions/{mine}"))).status_code == 200
        for method, path in (("GET", "/submissions/{}"), ("GET", "/submissions/{}?wait=true")):
            foreign = await one.request(method, at(callers, path.format(theirs)))
            missing = await one.request(method, at(callers, path.format("sub_none")))
            assert foreign.status_code == 404
            assert foreign.text == missing.text.replace("sub_none", theirs)
        cancelled = await one.post(at(callers, f"/submissions/{theirs}/cancel"))
        assert cancelled.status_code == 404
        by_body = await one.post(at(callers, "/agents/demo/s1/cancel"), json={"submissionId": theirs})
        assert by_body.status_code == 404
        assert by_body.text == cancelled.text


async def test_without_a_token_that_somebody_bears_every_route_is_401_c52(served: Served, callers: Callers) -> None:
    callers.account("nobody")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {callers.token('nobody')}"}):
        async with served.client(headers=headers) as client:
            for method, path in (("GET", "/agents/demo/s1"), ("POST", "/agents/demo/s1"), ("GET", "/docs")):
                answer = await client.request(method, path)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert (await client.get("/readyz")).status_code == 200
    # Somebody without any right is somebody: the documentation is for all who are known.
    async with served.client(headers=callers.bearer("nobody")) as client:
        assert (await client.get("/openapi.json")).status_code == 200
        assert (await client.get("/agents/demo/s1")).status_code == 404


async def test_while_the_api_server_is_silent_our_own_tokens_work_c52(
    store: Store, waker: LocalWaker, callers: Callers, reviewer: Path, tmp_path: Path
) -> None:
    await publish(store, "demo")
    file = tmp_path / "tokens.json"
    digest = hashlib.sha256(b"ours").hexdigest()
    file.write_text(json.dumps([{"name": "ours", "sha256": digest, "namespaces": ["default"], "rights": ["*"]}]))
    callers.account("viewer")
    callers.grant("viewer", *VIEW, where="default")
    token = callers.bearer("viewer")
    async with (
        api_proxy(callers.cluster, reviewer) as (proxy, kubeconfig),
        KubernetesReview(kubeconfig=kubeconfig) as review,
        gateway(store, waker, auth=AnyOf([Tokens(file), Reviewed(review)])) as served,
        served.client() as client,
    ):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("kubeharness.kube.review.REQUEST_SECONDS", 0.5)
            proxy.black_hole = True
            theirs = await client.get("/agents/demo/s1/records", headers=token)
            nobody = await client.get("/agents/demo/s1/records")
            ours = await client.get("/agents/demo/s1/records", headers={"authorization": "Bearer ours"})
            ready = await client.get("/readyz")
        proxy.black_hole = False
        proxy.reset()
        later = await client.get("/agents/demo/s1/records", headers=token)
        callers.cluster.kubectl("delete", "role,rolebinding", "viewer", "--namespace", "default")

    assert (theirs.status_code, theirs.json()["code"], theirs.headers["retry-after"]) == (503, "unavailable", "1")
    assert nobody.status_code == 401
    assert (ours.status_code, ready.status_code, later.status_code) == (200, 200, 200)


def test_the_gateway_as_a_process_asks_the_api_server(
    callers: Callers, reviewer: Path, postgres_url: str, tmp_path: Path
) -> None:
    callers.account("viewer")
    callers.grant("viewer", *VIEW)
    token = callers.bearer("viewer")
    tokens = tmp_path / "tokens.json"
    with fleet(tmp_path, DATABASE_URL=postgres_url, DEFAULT_NAMESPACE=callers.namespace) as processes:
        processes.run("publish", "-f", str(EXAMPLE))
        started = processes.start(
            "gateway", AUTH="kubernetes,token", KUBECONFIG=str(reviewer), TOKENS_FILE=str(tokens), LOG_LEVEL="debug"
        )
        until_served(started.url)
        early = httpx2.get(f"{started.url}/readyz", timeout=10)
        reads = httpx2.get(f"{started.url}/agents/assistant/s1/messages", headers=token, timeout=10)
        sends = httpx2.post(f"{started.url}/agents/assistant/s1", headers=token, json=HELLO, timeout=10)
        nobody = httpx2.get(f"{started.url}/agents/assistant/s1/messages", timeout=10)
        tokens.write_text("[]")
        started.wait_ready()
        said = started.said()

    assert (early.status_code, "KUBEHARNESS_TOKENS_FILE" in early.text) == (503, True)
    assert (reads.status_code, sends.status_code, nobody.status_code) == (200, 403, 401)
    assert token["authorization"].removeprefix("Bearer ") not in said
    assert started.popen.returncode == 0


def until_served(url: str) -> None:
    """Wait until the gateway answers at all: it is not ready, and need not be."""

    async def answers() -> None:
        async with asyncio.timeout(30), httpx2.AsyncClient() as client:
            while True:
                try:
                    await client.get(f"{url}/healthz")
                    return
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)

    asyncio.run(answers())
