"""Served under a path prefix behind a real Traefik, which takes the prefix off or passes it on (C51).

One setting, ROOT_PATH, serves both.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import httpx2
import pytest

from kubeharness.api.paths import prefix_of
from kubeharness.api.settings import ApiSettings
from kubeharness.engine.ports import Store
from kubeharness.store.wakers import LocalWaker
from support.gateways import Served, each_frame, frames, gateway
from support.playing import publish, run_all
from support.routes import routes_of
from support.traefik import Doors, traefik

PREFIX = "/team/harness"
HELLO = {"kind": "user", "body": "hello"}


@pytest.fixture
async def prefixed(store: Store, waker: LocalWaker) -> AsyncIterator[Served]:
    await publish(store, "demo")
    async with gateway(store, waker, settings=ApiSettings(root_path=f"{PREFIX}/")) as served:
        yield served


@pytest.fixture
async def doors(prefixed: Served, tmp_path: Path) -> AsyncIterator[Doors]:
    async with traefik(tmp_path, prefixed.url, PREFIX) as doors:
        yield doors


@pytest.fixture(params=["strips", "passes"])
async def door(request: pytest.FixtureRequest, doors: Doors) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=getattr(doors, request.param), timeout=20) as client:
        yield client


@pytest.mark.parametrize("where", ["", "/namespaces/default"])
async def test_a_post_is_admitted_and_its_location_leads_back_c51(door: httpx2.AsyncClient, where: str) -> None:
    for slash in ("", "/"):
        answer = await door.post(f"{PREFIX}{where}/agents/demo/s1{slash}", json=HELLO)
        assert answer.status_code == 202
        location = answer.headers["location"]
        assert location == f"{PREFIX}{where}/submissions/{answer.json()['submissionId']}"
        for link in (location, f"{location}/"):
            found = await door.get(link)
            assert (found.status_code, found.json()["submissionId"]) == (200, answer.json()["submissionId"])
    replayed = await door.post(f"{PREFIX}/agents/demo/s2/", json=HELLO, headers={"idempotency-key": "k"})
    again = await door.post(f"{PREFIX}/agents/demo/s2", json=HELLO, headers={"idempotency-key": "k"})
    assert again.headers["location"] == replayed.headers["location"]


async def test_the_stream_comes_frame_by_frame_and_resumes_c51(
    door: httpx2.AsyncClient, store: Store, waker: LocalWaker
) -> None:
    for path in (f"{PREFIX}/agents/demo/s1", f"{PREFIX}/agents/demo/s1/"):
        await door.post(path, json=HELLO)
        async with door.stream("GET", path) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            live = each_frame(response)
            # The first record is here before there is anything to follow it: nobody holds it back.
            async with asyncio.timeout(5):
                first = await anext(live)
            await run_all(store, waker)
            async with asyncio.timeout(5):
                seen = [first]
                while seen[-1].event != "submission_settled":
                    seen.append(await anext(live))
        async with door.stream("GET", f"{path}?until=idle", headers={"last-event-id": first.id}) as response:
            rest = await frames(response)

        assert [frame.raw for frame in rest[: len(seen) - 1]] == [frame.raw for frame in seen[1:]]


async def test_no_route_redirects_with_or_without_a_trailing_slash_c51(
    door: httpx2.AsyncClient, prefixed: Served
) -> None:
    submission = (await door.post(f"{PREFIX}/agents/demo/s1", json=HELLO)).json()["submissionId"]
    values = {"namespace": "default", "agent": "demo", "id": "s1", "submissionId": submission}
    bodies: dict[str, dict[str, str]] = {"cancel": {}, "steer": {"body": "x"}, "followup": {"body": "x"}}
    for route in routes_of(prefixed.app):
        path = PREFIX + route.filled(values)
        body = bodies.get(path.rsplit("/", 1)[-1], HELLO) if route.method == "POST" else None
        answers = []
        for slash in ("", "/"):
            async with door.stream(route.method, path + slash, json=body) as answer:
                answers.append(answer)
                # What happens when it is done again differs: a cancel finds what it cancelled.
                assert answer.status_code in (200, 202, 409), route
                assert all(link.startswith(f"{PREFIX}/") for link in links_in(answer)), route
        assert answers[0].status_code == answers[1].status_code or route.path.endswith("cancel"), route


def links_in(answer: httpx2.Response) -> list[str]:
    """What the headers of an answer point to."""
    return [answer.headers[name] for name in ("location", "content-location", "link") if name in answer.headers]


class Page(HTMLParser):
    """What a page loads and links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "action") and value is not None]


async def test_the_documentation_needs_nothing_from_elsewhere_and_links_under_the_prefix_c51(
    door: httpx2.AsyncClient, prefixed: Served
) -> None:
    docs, same = [await door.get(f"{PREFIX}/docs{slash}") for slash in ("", "/")]
    assert (docs.status_code, docs.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert same.text == docs.text
    page = Page(docs.text)
    outside = [link for link in page.links if not link.startswith("#")]
    ids = set(re.findall(r'id="([^"]+)"', docs.text))

    assert outside == [f"{PREFIX}/openapi.json"]
    assert {link[1:] for link in page.links if link.startswith("#")} == ids
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "base"})
    assert "//" not in docs.text.partition("<body>")[2]
    assert "default-src 'none'" in docs.headers["content-security-policy"]
    for route in routes_of(prefixed.app):
        if "namespace" not in route.parameters and route.path not in ("/docs", "/openapi.json"):
            assert f"<code>{PREFIX}{route.path}</code>" in docs.text, route

    schema = (await door.get(outside[0])).json()
    [server] = schema["servers"]
    assert server == {"url": PREFIX}
    assert (await door.get(server["url"] + "/healthz")).status_code == 200


async def test_errors_are_ours_under_the_prefix_too_c51(door: httpx2.AsyncClient) -> None:
    missing = await door.get(f"{PREFIX}/agents/nobody/s1")
    nowhere = await door.get(f"{PREFIX}/nowhere/")
    broken = await door.post(f"{PREFIX}/agents/demo/s1/", content="{")

    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "not_found")
    assert (broken.status_code, broken.json()["field"]) == (400, "body")


@pytest.mark.parametrize("root", ["harness", "/a b", "/agents", "/docs/x", "http://host/x", "/../x", "/a//b", "/x?y"])
def test_a_prefix_that_could_not_work_is_refused_c51(root: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"KUBEHARNESS_ROOT_PATH={root}: ")):
        prefix_of(root)


async def test_one_gateway_serves_both_at_once_c51(doors: Doors) -> None:
    async with httpx2.AsyncClient(timeout=20) as client:
        made = await client.post(f"{doors.strips}{PREFIX}/agents/demo/s1", json=HELLO)
        found = await client.get(doors.passes + made.headers["location"])

    assert json.loads(found.text)["submissionId"] == made.json()["submissionId"]
