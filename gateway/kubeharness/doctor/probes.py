"""Looks at one URL as a caller would: health, a conversation with a talking agent, a stream on which nothing happens.

Nothing here judges. Every wait has a limit; what goes wrong on the wire is a fact like any other.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx2

from kubeharness.core.ids import parse_record_id
from kubeharness.doctor.observed import Answer, Arrival, Idle, Patience, Seen, Talk

REQUEST_SECONDS = 15.0
MESSAGE = "kubeharness doctor: say your lines"
WAITING = frozenset({"conversation_created", "user_message", "signal"})
"""What is in the log before a worker has touched it."""
SAID_LIMIT = 300


class Probes:
    """One URL, one token, one agent. Close the client yourself."""

    def __init__(self, client: httpx2.AsyncClient, url: str, agent: str, namespace: str | None, patience: Patience):
        self._client = client
        self._url = url
        self._agent = agent
        self._base = f"{url}/namespaces/{namespace}" if namespace else url
        self._patience = patience

    async def look(self, *, idle: bool) -> Seen:
        """Everything, as far as each step leaves something for the next."""
        seen = Seen(url=self._url, agent_name=self._agent, health=await self._ask("GET", f"{self._url}/healthz"))
        if seen.health.status == 0:
            return seen
        seen = replace(seen, ready=await self._ask("GET", f"{self._url}/readyz"))
        seen = replace(seen, agent=await self._ask("GET", f"{self._base}/agents/{self._agent}"))
        if seen.ready.status != 200 or seen.agent.status != 200 or not seen.agent.ours:
            return seen
        mark = secrets.token_hex(6)
        async with asyncio.TaskGroup() as both:
            talk = both.create_task(self._talk(f"doctor-{mark}"))
            quiet = both.create_task(self._quiet(f"doctor-{mark}-idle")) if idle else None
        return replace(seen, talk=talk.result(), idle=quiet.result() if quiet is not None else ())

    async def _ask(self, method: str, url: str, **more: object) -> Answer:
        try:
            return _answer(await self._client.request(method, url, timeout=REQUEST_SECONDS, **more))  # type: ignore[arg-type]  # passed through
        except httpx2.HTTPError as error:
            return Answer(said=_words(error))

    async def _talk(self, instance: str) -> Talk:
        place = f"{self._base}/agents/{self._agent}/{instance}"
        body = {"kind": "user", "body": MESSAGE}
        sent = await self._ask("POST", place, json=body, headers={"idempotency-key": instance})
        submission = sent.body.get("submissionId")
        if sent.status != 202 or not isinstance(submission, str):
            return Talk(sent=sent)
        talk = Talk(sent=sent, location=urlsplit(sent.headers.get("location", "")).path)
        talk = await self._follow(talk, f"{place}?until=settled:{submission}")
        if talk.settled:
            return talk
        view = await self._ask("GET", f"{self._base}/submissions/{submission}")
        if view.status != 200:
            return talk
        attempts = view.body.get("attempts")
        return replace(
            talk,
            state=str(view.body.get("state", "")),
            attempts=attempts if isinstance(attempts, int) else 0,
            last_error=str(view.body.get("lastError", "")),
        )

    async def _follow(self, talk: Talk, url: str) -> Talk:
        """The stream until the settlement, or until it is clear that none comes."""
        began = time.monotonic()
        arrivals: list[Arrival] = []
        settled = error = ""
        try:
            async with (
                asyncio.timeout(self._patience.claim_seconds) as limit,
                self._client.stream("GET", url, headers=STREAM, timeout=_endless()) as response,
            ):
                talk = replace(talk, opened=_head(response))
                async for block in _blocks(response):
                    record = _record(block)
                    if record is None:
                        continue
                    kind, recorded, payload = record
                    arrivals.append(Arrival(kind=kind, recorded=recorded, arrived=time.monotonic() - began))
                    if kind not in WAITING:
                        limit.reschedule(
                            asyncio.get_running_loop().time() + began + self._patience.talk_seconds - time.monotonic()
                        )
                    if kind == "submission_settled":
                        settled = str(payload.get("status", ""))
                        error = f"{payload.get('errorCode', '')} {payload.get('error', '')}".strip()
                        break
                else:
                    talk = replace(talk, broke="the stream ended")
        except TimeoutError:
            talk = replace(talk, broke="nothing more came in time")
        except httpx2.HTTPError as broken:
            talk = replace(talk, broke=_words(broken))
        return replace(talk, arrivals=tuple(arrivals), settled=settled, error=error)

    async def _quiet(self, instance: str) -> tuple[Idle, ...]:
        """A stream on which only heartbeats come; a second one if the first was cut."""
        url = f"{self._base}/agents/{self._agent}/{instance}"
        first = await self._listen(url)
        return (first,) if first.cut_after is None else (first, await self._listen(url))

    async def _listen(self, url: str) -> Idle:
        began = last = time.monotonic()
        heartbeats: list[float] = []
        idle = Idle(opened=Answer())
        cut: float | None = None
        how = ""
        try:
            async with (
                asyncio.timeout(self._patience.watch_seconds),
                self._client.stream("GET", url, headers=STREAM, timeout=_endless()) as response,
            ):
                idle = replace(idle, opened=_head(response))
                if response.status_code == 200:
                    async for block in _blocks(response):
                        last = time.monotonic()
                        if idle.first is None:
                            idle = replace(idle, first=last - began)
                        if block.startswith(":"):
                            heartbeats.append(last - began)
                    how = "the connection was closed"
                cut = time.monotonic() - began
        except TimeoutError:
            pass  # still open at the end of the watch: as it should be
        except httpx2.HTTPError as error:
            cut, how = time.monotonic() - began, _words(error)
        end = time.monotonic()
        return replace(
            idle, heartbeats=tuple(heartbeats), cut_after=cut, silence=end - last, watched=end - began, how=how
        )


STREAM = {"accept": "text/event-stream", "accept-encoding": "gzip"}
"""With what a browser says, so that a hop that compresses does it here too."""


def _endless() -> httpx2.Timeout:
    """Limits for reaching the other side alone: how long a stream may say nothing is what we want to see."""
    return httpx2.Timeout(REQUEST_SECONDS, read=None)


async def _blocks(response: httpx2.Response) -> AsyncIterator[str]:
    """What stands between two empty lines, as it arrives."""
    rest = ""
    async for piece in response.aiter_text():
        rest = (rest + piece).replace("\r\n", "\n")
        *whole, rest = rest.split("\n\n")
        for block in whole:
            yield block


def _record(block: str) -> tuple[str, float, dict[str, object]] | None:
    """Kind, time in the log, and payload of a frame; None for comments and `retry`."""
    fields = dict(line.partition(": ")[::2] for line in block.split("\n") if not line.startswith(":"))
    if "id" not in fields or "data" not in fields:
        return None
    try:
        recorded = parse_record_id(fields["id"]).milliseconds / 1000
        data = json.loads(fields["data"])
    except ValueError:
        return None
    payload = data.get("payload") if isinstance(data, dict) else None
    return fields.get("event", ""), recorded, payload if isinstance(payload, dict) else {}


def _head(response: httpx2.Response) -> Answer:
    return Answer(status=response.status_code, headers={k.lower(): v for k, v in response.headers.items()})


def _answer(response: httpx2.Response) -> Answer:
    """An answer; ours if its body is a JSON object that says what all of ours say."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return replace(_head(response), said=" ".join(response.text.split())[:SAID_LIMIT])
    ours = ("error" in body and "code" in body) if response.status_code >= 400 else bool(MARKS & body.keys())
    return replace(
        _head(response),
        said=str(body.get("error", ""))[:SAID_LIMIT],
        code=str(body.get("code", "")) if ours else "",
        ours=ours,
        body=body,
    )


MARKS = frozenset({"status", "workers", "submissionId"})


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")[:SAID_LIMIT]
