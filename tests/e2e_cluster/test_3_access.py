"""Who may what: RBAC's viewer reads and may not dispatch; no token, no answer; another namespace looks missing."""

import json
from collections.abc import Iterator

import pytest

from e2e_cluster.callers import Door
from e2e_cluster.release import NAME, Release

pytestmark = pytest.mark.timeout(120)

ELSEWHERE = "elsewhere"


@pytest.fixture
def viewer(installed: Release) -> Iterator[Door]:
    """A ServiceAccount that RBAC lets view the agents of `default`."""
    installed.kubectl("create", "serviceaccount", "reader", namespace="default")
    role = f"--clusterrole={NAME}-viewer"
    installed.kubectl("create", "rolebinding", "reader", role, "--serviceaccount=default:reader", namespace="default")
    installed.kubectl("create", "namespace", ELSEWHERE)
    agent = json.loads(installed.kubectl("get", "kha/assistant", "-o", "json", namespace="default"))
    provider = json.loads(installed.kubectl("get", "khm/demo", "-o", "json", namespace="default"))
    for found in (provider, agent):
        kept = {key: found[key] for key in ("apiVersion", "kind", "spec")}
        kept["metadata"] = {"name": found["metadata"]["name"]}
        installed.kubectl("apply", "-f", "-", input=json.dumps(kept), namespace=ELSEWHERE)
    installed.kubectl(
        "wait", "kha/assistant", "--for=condition=Ready", "--timeout=30s", namespace=ELSEWHERE, timeout=40
    )
    yield installed.door(token=installed.kubectl("create", "token", "reader", namespace="default").strip())
    installed.kubectl("delete", "rolebinding/reader", "serviceaccount/reader", namespace="default")
    installed.kubectl("delete", "namespace", ELSEWHERE, "--wait=false")


def test_a_viewer_reads_and_may_not_dispatch(installed: Release, viewer: Door) -> None:
    message = {"kind": "user", "body": "hello there"}
    with installed.door().client() as client:
        assert client.post("/agents/assistant/seen?wait=true", json=message).status_code == 200
    with viewer.client() as client:
        stream = client.get("/agents/assistant/seen?until=idle", headers={"Accept": "text/event-stream"})
        assert stream.status_code == 200
        assert "event: submission_settled" in stream.text
        refused = client.post("/agents/assistant/seen", json=message)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        steer = client.post("/agents/assistant/seen/steer", json={"body": "no"})
        assert steer.status_code == 403

        foreign = client.get(f"/namespaces/{ELSEWHERE}/agents/assistant/seen")
        missing = client.get(f"/namespaces/{ELSEWHERE}/agents/nobody/seen")
        assert foreign.status_code == missing.status_code == 404
        assert without_ref(foreign.json(), "assistant") == without_ref(missing.json(), "nobody")
        posted = client.post(f"/namespaces/{ELSEWHERE}/agents/assistant/seen", json=message)
        assert posted.status_code == 404


def without_ref(body: dict[str, str], name: str) -> dict[str, str]:
    """An error body without what names the request."""
    return {key: value.replace(name, "NAME") for key, value in body.items() if key != "ref"}


@pytest.mark.parametrize("token", ["", "wrong"])
def test_without_a_right_token_every_route_but_health_answers_401(installed: Release, token: str) -> None:
    door = installed.door(token=token or "x")
    headers = {} if token else {"Authorization": ""}
    with door.client(headers=headers) as client:
        for method, path in (
            ("POST", "/agents/assistant/s"),
            ("GET", "/agents/assistant/s"),
            ("GET", "/agents/assistant/s/records"),
            ("GET", "/agents/assistant/s/messages"),
            ("POST", "/agents/assistant/s/steer"),
            ("POST", "/agents/assistant/s/followup"),
            ("POST", "/agents/assistant/s/cancel"),
            ("GET", "/submissions/sub_aaaaaaaaaaaaaaaaaaaaaaaaaa"),
            ("POST", "/submissions/sub_aaaaaaaaaaaaaaaaaaaaaaaaaa/cancel"),
            ("GET", "/namespaces/default/agents/assistant/s"),
        ):
            answer = client.request(method, path)
            assert answer.status_code == 401, f"{method} {path}: {answer.status_code}"
            assert "WWW-Authenticate" in answer.headers
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200
