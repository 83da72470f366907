"""From what was seen to what is wrong: the code, what was seen, which hop it probably is, and the remedy (pure)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from kubeharness.doctor import remedies
from kubeharness.doctor.observed import Answer, Idle, Seen, Talk

HEARTBEAT_SECONDS = 12.0
"""What the gateway's heartbeat is, unless it is told otherwise."""
FIRST_BYTE_SECONDS = 3.0
"""A stream's first bytes leave the gateway at once."""
HELD_SECONDS = 1.5
"""How much later than others a record may arrive: more than a gateway's safety poll, which is a second."""
ALIKE = 0.35
"""Two cuts are one limit's if they came after about the same time."""
DATABASE = re.compile(r"database|\bDSN\b|schema", re.IGNORECASE)

PATH_CODES = frozenset(
    {"buffering", "idle_cut", "lifetime_cut", "stream_cut", "compressed", "not_a_stream", "no_backend", "unreachable"}
)
"""What a hop before the gateway can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    code: str
    seen: str
    hop: str
    remedy: str
    url: str
    """Through which URL it was seen."""
    agent: str = ""


class CannotRun(Exception):
    """The examination itself lacks something; the sentence says what."""


def diagnose(through: Seen, direct: Seen | None = None) -> list[Finding]:
    """Everything that is wrong with what was seen through the URL, each cause once, causes before what follows.

    `direct` is what was seen past all proxies: what it shows too is not theirs. Raises CannotRun.
    """
    found = list(_of(through, follows_path=True))
    if through.health.status == 0 and direct is None:
        raise CannotRun(f"{through.url} does not answer: {through.health.said}")
    try:
        behind = list(_of(direct, follows_path=False)) if direct is not None else []
    except CannotRun:
        if not found:
            raise
        behind = []  # what was found through the URL is worth saying without it
    shown = {finding.code for finding in behind}
    placed = [_placed(finding, through, direct, finding.code in shown) for finding in found]
    seen = {finding.code for finding in found}
    return [finding for finding in behind if finding.code not in seen] + placed


def _of(seen: Seen, *, follows_path: bool) -> Iterator[Finding]:
    """What one URL shows; the hop is filled in by who knows of both."""

    def finding(code: str, what: str, remedy: str, hop: str = "") -> Finding:
        return Finding(code=code, seen=what, remedy=remedy, hop=hop, url=seen.url, agent=seen.agent_name)

    health, ready = seen.health, seen.ready
    if health.status == 0:
        yield finding("unreachable", f"no answer: {health.said}", remedies.UNREACHABLE)
        return
    if 300 <= health.status < 400:
        raise CannotRun(f"{seen.url} redirects to {health.headers.get('location', '?')}; call that URL instead")
    if health.status != 200 or not health.ours:
        yield _door(seen, finding("", "", ""))
        return
    if ready.status != 200:
        yield _unready(seen, ready, finding("", "", ""))
        return
    yield from _agent(seen, finding("", "", ""))
    if seen.talk is not None:
        yield from _talk(seen, seen.talk, finding("", "", ""), follows_path=follows_path)
    yield from _idle(seen, finding("", "", ""))


def _door(seen: Seen, blank: Finding) -> Finding:
    """/healthz needs no token and no database: whoever does not answer it is no gateway, or asks for another path."""
    path = urlsplit(seen.url).path
    if seen.health.ours:
        what = f"the gateway answers {seen.health.status} to {path}/healthz: it does not know the prefix {path or '/'}"
        return _with(blank, "prefix_unknown", what, remedies.prefix_unknown(path), "the gateway: it answered itself")
    said = f" ({seen.health.said[:80]!r})" if seen.health.said else ""
    what = f"{seen.health.status} to /healthz, and not from a gateway{said}"
    return _with(blank, "no_backend", what, remedies.NO_BACKEND)


def _unready(seen: Seen, answer: Answer, blank: Finding) -> Finding:
    if not answer.ours:
        what = f"{answer.status} to {urlsplit(seen.url).path}/readyz, and not from a gateway"
        return _with(blank, "no_backend", what, remedies.NO_BACKEND)
    if DATABASE.search(answer.said):
        what = f"the gateway answers {answer.status}: {answer.said}"
        return _with(blank, "database", what, remedies.DATABASE, "between the gateway and its database")
    what = f"the gateway says that it is not ready: {answer.said}"
    return _with(blank, "not_ready", what, remedies.NOT_READY, "the gateway")


def _agent(seen: Seen, blank: Finding) -> Iterator[Finding]:
    """Whether there is somebody to talk to."""
    answer = seen.agent
    if answer.status in (401, 403):
        raise CannotRun(
            f"{seen.url} answers {answer.status} ({answer.said}); give --token-file a token with the rights dispatch "
            f"and read on agent {seen.agent_name}"
        )
    if answer.status == 404 and answer.ours:
        raise CannotRun(f"there is no agent {seen.agent_name!r} to talk to. {remedies.APPLY}")
    if answer.status == 503 and answer.ours:
        yield _unready(seen, answer, blank)
    elif answer.status != 200 or not answer.ours:
        what = f"{answer.status or answer.said} to GET /agents/{seen.agent_name}, and not from a gateway"
        yield _with(blank, "no_backend", what, remedies.NO_BACKEND)
    elif note := answer.body.get("note"):
        in_force = "an older revision serves" if answer.body.get("activeRevision") else "nothing serves"
        what = f"agent {seen.agent_name}: its newest generation is not in force, {in_force}: {note}"
        yield _with(blank, "agent_not_ready", what, remedies.agent_not_ready(seen.agent_name), "the Agent object")


def _talk(seen: Seen, talk: Talk, blank: Finding, *, follows_path: bool) -> Iterator[Finding]:
    if talk.sent.status != 202:
        yield _refused(seen, talk.sent, blank)
        return
    path = urlsplit(seen.url).path.rstrip("/")
    if follows_path and path and talk.location and not talk.location.startswith(path + "/"):
        what = f"called under {path}, the gateway links to {talk.location}: whoever follows it leaves the prefix"
        hop = "the hop that takes the prefix off, and the gateway that is not told"
        yield _with(blank, "prefix_stripped", what, remedies.prefix_stripped(path), hop)
    if not talk.settled and talk.state in ("queued", "running", "waiting"):
        yield _unclaimed(seen, talk, blank)
    if talk.settled == "failed":
        yield _with(blank, "run_failed", f"the run settled as failed: {talk.error}", remedies.RUN_FAILED, "the worker")
    yield from _stream(talk, blank)


def _refused(seen: Seen, sent: Answer, blank: Finding) -> Finding:
    if sent.status in (401, 403):
        raise CannotRun(f"{seen.url} answers {sent.status} to a dispatch ({sent.said}); the token lacks the right")
    if sent.status == 503 and sent.ours:
        return _unready(seen, sent, blank)
    if sent.ours:
        what = f"the gateway refuses the message with {sent.status}: {sent.said}"
        return _with(blank, "refused", what, "do what the sentence says", "the gateway")
    what = f"{sent.status or sent.said} to the POST of a message, and not from a gateway"
    return _with(blank, "no_backend", what, remedies.NO_BACKEND)


def _unclaimed(seen: Seen, talk: Talk, blank: Finding) -> Finding:
    """Admitted and not run: nobody there, nobody free, or somebody who cannot begin."""
    hop = "behind the gateway: the workers"
    if talk.attempts == 0 and not talk.last_error and not seen.workers:
        count = "no worker is alive" if seen.workers == 0 else "nobody claims it"
        what = f"the message was admitted (202) and stays queued; {count}"
        return _with(blank, "no_worker", what, remedies.NO_WORKER, hop)
    if talk.last_error:
        what = f"the message was admitted and the run is put off again and again: {talk.last_error}"
        return _with(blank, "delayed", what, remedies.RUN_FAILED, hop)
    if talk.attempts == 0:
        what = f"the message was admitted and stays queued, although {seen.workers} workers beat within the last minute"
        return _with(blank, "not_claimed", what, remedies.NOT_CLAIMED, hop)
    what = f"the run was begun {talk.attempts} times and has not ended ({talk.broke})"
    return _with(blank, "slow", what, remedies.SLOW, hop)


def _stream(talk: Talk, blank: Finding) -> Iterator[Finding]:
    opened = talk.opened
    kind = opened.headers.get("content-type", "")
    if opened.status == 200 and not kind.startswith("text/event-stream"):
        yield _with(blank, "not_a_stream", f"the stream's Content-Type is {kind!r}", remedies.NOT_A_STREAM)
    if encoding := opened.headers.get("content-encoding"):
        what = f"the stream comes with Content-Encoding {encoding}, which the gateway never sends"
        yield _with(blank, "compressed", what, remedies.COMPRESSED)
    if held := _held(talk):
        yield _with(blank, "buffering", held, remedies.BUFFERING)
    elif talk.broke and talk.state == "settled":
        what = f"the stream broke before the run's end: {talk.broke}"
        yield _with(blank, "stream_cut", what, remedies.IDLE_CUT)


def _held(talk: Talk) -> str:
    """How records arrived that were written one after another; empty if about as they were written."""
    if talk.state == "settled" and not talk.arrivals:
        return "the run is over, and not one record of it has arrived"
    late = [arrival.arrived - arrival.recorded for arrival in talk.arrivals]
    if not late or max(late) - min(late) < HELD_SECONDS:
        return ""
    first, last = talk.arrivals[0], talk.arrivals[-1]
    return (
        f"{len(late)} records were written over {last.recorded - first.recorded:.1f} s and arrived within "
        f"{last.arrived - first.arrived:.1f} s; the worst came {max(late) - min(late):.1f} s late"
    )


def _idle(seen: Seen, blank: Finding) -> Iterator[Finding]:
    if not seen.idle:
        return
    idle = seen.idle[0]
    talk_held = seen.talk is not None and _held(seen.talk)
    if not talk_held and (late := _silent(idle)):
        yield _with(blank, "buffering", late, remedies.BUFFERING)
    cuts = [one for one in seen.idle if one.cut_after is not None]
    if len(cuts) < 2:
        return  # once may be chance: a rollout, a restart
    first, second = cuts[0].cut_after or 0.0, cuts[1].cut_after or 0.0
    if abs(first - second) > ALIKE * max(first, second):
        what = f"a stream on which nothing happens was cut after {first:.1f} s, and again after {second:.1f} s"
        yield _with(blank, "stream_cut", what, remedies.STREAM_CUT)
    elif idle.heartbeats:
        what = (
            f"a stream was cut twice, after {first:.1f} and {second:.1f} s, although heartbeats came: "
            "some hop limits how long an answer may last"
        )
        yield _with(blank, "lifetime_cut", what, remedies.LIFETIME_CUT)
    else:
        what = f"a stream on which nothing happens was cut twice, after {first:.1f} and {second:.1f} s, by: {idle.how}"
        yield _with(blank, "idle_cut", what, remedies.idle_cut(max(first, second), HEARTBEAT_SECONDS))


def _silent(idle: Idle) -> str:
    if idle.first is None and idle.watched > FIRST_BYTE_SECONDS:
        return (
            f"the first bytes of a stream, which the gateway sends at once, had not arrived after {idle.watched:.0f} s"
        )
    if idle.first is not None and idle.first > FIRST_BYTE_SECONDS:
        return f"the first bytes of a stream, which the gateway sends at once, arrived after {idle.first:.1f} s"
    if idle.cut_after is None and not idle.heartbeats and idle.silence > 1.6 * HEARTBEAT_SECONDS:
        return f"no heartbeat arrived in {idle.silence:.0f} s; the gateway sends one every {HEARTBEAT_SECONDS:.0f} s"
    return ""


def _with(blank: Finding, code: str, what: str, remedy: str, hop: str = "") -> Finding:
    return Finding(code=code, seen=what, remedy=remedy, hop=hop, url=blank.url, agent=blank.agent)


def _placed(finding: Finding, through: Seen, direct: Seen | None, direct_too: bool) -> Finding:
    """Say which hop it probably is."""
    if finding.hop or finding.code not in PATH_CODES:
        return finding
    answers = (through.talk.opened if through.talk is not None else through.health, through.health)
    named = next((answer.hop for answer in answers if answer.hop), "")
    who = f"one that names itself `{named}`" if named else "one that names itself in no header"
    if direct is None:
        hop = f"probably a proxy before the gateway: {who}; --direct tells whether it is the gateway instead"
    elif direct_too:
        hop = f"at the gateway or between it and {direct.url}, which shows it too"
    else:
        hop = f"between you and the gateway, since {direct.url} does not show it: {who}"
    return _with(finding, finding.code, finding.seen, finding.remedy, hop)
