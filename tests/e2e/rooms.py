"""A namespace of a test's own: what is applied there, what its objects say, and the runs of its agents."""

import time
from collections.abc import Callable
from typing import Any, cast

import httpx2

from cluster.accounts import serve_namespace
from e2e import manifests
from e2e.installation import Installation

Json = dict[str, Any]

PAUSE = 0.02
"""Fifty looks a second."""
SECONDS = 25.0
CONDITIONS = ("Accepted", "ResolvedRefs", "Programmed", "Ready", "Available")


def until(holds: Callable[[], Any], why: Callable[[], object], *, within: float = SECONDS, pause: float = PAUSE) -> Any:
    """Wait for something; returns it, fails with `why` if it does not come."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {why()}"
        time.sleep(pause)
    return found


class Room:
    """A namespace. Everything blocks, and every wait has an end."""

    def __init__(self, installation: Installation, namespace: str) -> None:
        self.installation, self.namespace = installation, namespace

    # what is there

    def serve(self) -> None:
        """Let the workers read the Secrets here."""
        serve_namespace(self.installation.cluster, self.namespace)

    def kubectl(self, *args: str, **options: Any) -> str:
        """kubectl in this namespace, as the administrator."""
        return self.installation.cluster.kubectl("--namespace", self.namespace, *args, **options)

    def apply(self, *documents: Json) -> None:
        """Apply these in their order."""
        for document in documents:
            self.installation.api.apply(self.namespace, document)

    def wire(self, name: str = "wire", **more: Any) -> Json:
        """A ModelProvider that is aimock."""
        return manifests.provider(name, base_url=self.installation.mock.base_url, **more)

    def tools(self, name: str = "everything") -> Json:
        """A ToolServer that is server-everything."""
        return manifests.tool_server(name, url=self.installation.everything.url)

    def edit(self, name: str = "demo", *, kind: str = "Agent", **spec: Any) -> int:
        """Merge into a spec; returns the new generation."""
        changed = self.installation.api.patch(self.namespace, kind, name, {"spec": spec})
        return int(changed["metadata"]["generation"])

    def point(self, provider: str, name: str = "demo") -> int:
        """Have an Agent refer to this provider."""
        return self.edit(name, model={"providerRef": {"name": provider}})

    def get(self, name: str = "demo", kind: str = "Agent") -> Json:
        """An object as it is now."""
        return self.installation.api.get(self.namespace, kind, name)

    def conditions(self, name: str = "demo", kind: str = "Agent") -> dict[str, Json]:
        """What an object says of itself, by type."""
        return conditions_of(self.get(name, kind))

    def reaches(
        self,
        type: str,
        status: str,
        name: str = "demo",
        *,
        kind: str = "Agent",
        reason: str | None = None,
        generation: int | None = None,
        within: float = SECONDS,
    ) -> dict[str, Json]:
        """Wait until a condition says this (of this generation); returns all conditions as they then are."""

        def said() -> dict[str, Json] | None:
            found = self.conditions(name, kind)
            one = found.get(type, {})
            holds = (
                one.get("status") == status
                and reason in (None, one.get("reason"))
                and generation in (None, one.get("observedGeneration"))
            )
            return found if holds else None

        def why() -> str:
            return f"{kind} {name} {type}={status} {reason or ''} of {generation}: {brief(self.conditions(name, kind))}"

        return cast("dict[str, Json]", until(said, why, within=within))

    def ready(self, name: str = "demo", **more: Any) -> dict[str, Json]:
        """Wait until an Agent is Ready, at the generation that it has now; returns its conditions."""
        generation = int(self.get(name)["metadata"]["generation"])
        return self.reaches("Ready", "True", name, generation=generation, **more)

    # what runs

    def url(self, path: str, gateway: int = 0) -> str:
        """A route of this namespace."""
        return f"{self.installation.gateways[gateway].url}/namespaces/{self.namespace}{path}"

    def dispatch(self, body: str, *, agent: str = "demo", to: str = "s1", gateway: int = 0, **more: Any) -> Any:
        """POST a message; returns the answer, whatever it is."""
        url = self.url(f"/agents/{agent}/{to}", gateway)
        return httpx2.post(url, json={"kind": "user", "body": body, **more}, timeout=15)

    def post(self, body: str, **more: Any) -> str:
        """The same, and it must be admitted; returns the submission's id."""
        answer = self.dispatch(body, **more)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["submissionId"])

    def submission(self, submission: str, gateway: int = 1) -> Json:
        """A submission as it stands, asked of the other gateway."""
        answer = httpx2.get(self.url(f"/submissions/{submission}", gateway), timeout=15)
        assert answer.status_code == 200, answer.text
        return cast("Json", answer.json())

    def settled(self, submission: str, *, within: float = SECONDS) -> Json:
        """Wait for its end; returns the payload of its settlement."""

        def ended() -> Json | None:
            found = self.submission(submission)
            return cast("Json", found["settled"]) if found["state"] == "settled" else None

        return cast("Json", until(ended, lambda: self.submission(submission), within=within, pause=0.1))

    def succeeds(self, body: str, **more: Any) -> Json:
        """Dispatch, wait, insist on success."""
        settled = self.settled(self.post(body, **more))
        assert settled["status"] == "succeeded", settled
        return settled

    def records(self, *, agent: str = "demo", of: str = "s1", gateway: int = 0) -> list[Json]:
        """The log of an instance."""
        answer = httpx2.get(self.url(f"/agents/{agent}/{of}/records?limit=1000", gateway), timeout=15)
        assert answer.status_code == 200, answer.text
        return cast("list[Json]", answer.json()["records"])

    def requests(self, about: str) -> list[Json]:
        """The requests to aimock whose messages hold a text, oldest first."""
        return [request for request in self.installation.mock.requests() if about in str(request["messages"])]

    def until_asked(self, about: str, times: int = 1) -> None:
        """Wait until aimock has the n-th request about something."""
        until(lambda: len(self.requests(about)) >= times, self.installation.mock.requests)


def conditions_of(document: Json) -> dict[str, Json]:
    """The conditions of an object, by type."""
    return {item["type"]: item for item in document.get("status", {}).get("conditions", ())}


def statuses(conditions: dict[str, Json]) -> dict[str, str]:
    """Only their statuses."""
    return {of: conditions[of]["status"] for of in CONDITIONS if of in conditions}


def brief(conditions: dict[str, Json]) -> dict[str, str]:
    """What a failure shows of an object."""
    return {
        of: f"{said['status']} of {said.get('observedGeneration')}, {said['reason']}: {said['message']}"
        for of, said in conditions.items()
    }


def system_of(request: Json) -> str:
    """The system prompt of a model request."""
    return "\n".join(str(message["content"]) for message in request["messages"] if message["role"] == "system")
