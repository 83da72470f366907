"""Bodies of requests and answers, to and from core. JSON is camelCase, absent instead of null."""

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from kubeharness.core import codec
from kubeharness.core.dispatch import Address, DispatchMessage, SignalMeta
from kubeharness.core.errors import InvalidRequest, NotSupported
from kubeharness.core.ids import DEFAULT_SESSION
from kubeharness.core.json import Json, JsonObject
from kubeharness.core.records import SubmissionSettled
from kubeharness.core.text import clean_json, clean_text
from kubeharness.engine.runtime import AgentView, Cancelled, Ended, Order, Receipt, Snapshot, SubmissionView

M = TypeVar("M", bound="Body")


class Wire(BaseModel):
    """What all of them share."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Body(Wire):
    """A request's body: exact types, and no field that we would silently pass over."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SignalBody(Body):
    """Whose activity a signal is."""

    type: str
    sender: dict[str, str] = {}
    tag: str | None = None


class DispatchBody(Body):
    """`POST /agents/{agent}/{id}`."""

    kind: Literal["user", "signal"]
    body: str
    session: str = DEFAULT_SESSION
    dispatch_id: str | None = None
    signal: SignalBody | None = None
    labels: dict[str, str] = {}
    attachments: list[Any] = []
    """Later releases: only its default is taken."""
    result_schema: Any = None
    """Later releases: only its default is taken."""
    result_retries: Any = None
    """Later releases: only its default, 2, is taken."""
    priority: Any = "interactive"
    """Later releases: only its default is taken."""
    on_busy: Any = "enqueue"
    """Later releases: only its default is taken."""


class MessageBody(Body):
    """`POST …/steer` and `…/followup`."""

    body: str
    session: str = DEFAULT_SESSION


class CancelBody(Body):
    """`POST …/cancel`."""

    session: str = DEFAULT_SESSION
    submission_id: str | None = None
    reason: str | None = None


class CancelSubmissionBody(Body):
    """`POST /submissions/{submissionId}/cancel`."""

    reason: str | None = None


class ReceiptAnswer(Wire):
    """Admitted; the same for every repeat of the key."""

    submission_id: str
    conversation_id: str


class OutcomeAnswer(ReceiptAnswer):
    """How a submission ended."""

    status: Literal["succeeded", "failed"]
    error: str | None = None
    error_code: str | None = None
    result: Any = None
    output: str | None = None


class InjectedAnswer(Wire):
    """The message is durable and reaches the run at its next seam."""

    status: Literal["injected"] = "injected"
    message_id: str


class CancelAnswer(Wire):
    """`cancelled`: settled; `cancelling`: its owner settles it at the next seam."""

    submission_id: str
    status: Literal["cancelled", "cancelling"]


class AgentAnswer(Wire):
    """An agent as it is served now. `workers`: how many live ones could claim its work; `releases`: what runs."""

    namespace: str
    name: str
    desired_revision: str | None = None
    active_revision: str | None = None
    note: str | None = None
    workers: int
    releases: list[str]


class SubmissionAnswer(ReceiptAnswer):
    """A submission as it stands."""

    namespace: str
    agent: str
    instance: str
    session: str
    state: Literal["queued", "running", "waiting", "settled"]
    position: int
    attempts: int
    labels: dict[str, str] = {}
    last_error: str | None = None
    settled: dict[str, Any] | None = None
    """The payload of its submission_settled record."""
    usage: dict[str, int] | None = None


class SnapshotAnswer(Wire):
    """The projected conversation, what is open, and where to tail from."""

    conversation_id: str
    session: str
    messages: list[dict[str, Any]]
    submissions: list[SubmissionAnswer]
    inputs: list[dict[str, Any]] = []
    offset: str | None = None


class RecordsAnswer(Wire):
    """A page of the log. `next` is where to go on from, absent at the end."""

    records: list[dict[str, Any]]
    next: str | None = None
    pruned_to: int | None = None


class ProblemAnswer(Wire):
    """What went wrong, and what to do."""

    error: str
    code: str
    field: str | None = None
    ref: str | None = None


class StatusAnswer(Wire):
    """Alive, or ready."""

    status: str


IDENTIFIERS = ("session", "dispatchId", "submissionId")
"""Never mended: what is not clean in them is refused."""


def parse(of: type[M], raw: JsonObject) -> M:
    """A body by its model, text sanitised (I15); null is the same as absent.

    Raises InvalidRequest naming the first field that is wrong.
    """
    clean = {clean_text(name): clean_json(value) for name, value in raw.items() if value is not None}
    for name in IDENTIFIERS:
        if clean.get(name) != raw.get(name):
            raise InvalidRequest(name, "use no NUL and no lone surrogates")
    try:
        return of.model_validate(clean)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])[:200] or "body"
        if first["type"] == "extra_forbidden":
            raise NotSupported(field) from None
        raise InvalidRequest(field, _remedy(first["type"], first["msg"])) from None


def _remedy(kind: str, message: str) -> str:
    return "the field is missing" if kind == "missing" else message[:1].lower() + message[1:]


def order(
    body: DispatchBody,
    *,
    namespace: str,
    agent: str,
    instance: str,
    dispatch_id: str | None,
    principal: str | None,
    traceparent: str | None,
) -> Order:
    """A dispatch to the engine. Raises NotSupported for what this release does not honour."""
    for name, value, defaults in (
        ("attachments", body.attachments, ([],)),
        ("resultSchema", body.result_schema, (None,)),
        ("resultRetries", body.result_retries, (None, 2)),
        ("priority", body.priority, ("interactive",)),
        ("onBusy", body.on_busy, ("enqueue",)),
    ):
        if value not in defaults or isinstance(value, bool):
            raise NotSupported(name)
    signal = body.signal
    return Order(
        address=Address(namespace=namespace, agent=agent, instance=instance, session=body.session),
        message=DispatchMessage(
            kind=body.kind,
            body=body.body,
            signal=SignalMeta(type=signal.type, sender=signal.sender, tag=signal.tag) if signal else None,
        ),
        dispatch_id=dispatch_id,
        labels=body.labels,
        principal=principal,
        traceparent=traceparent,
    )


def receipt_json(receipt: Receipt) -> JsonObject:
    """The 202."""
    return {"submissionId": receipt.submission_id, "conversationId": receipt.conversation_id}


def ended_json(ended: Ended) -> JsonObject:
    """The 200 of a waiter: status, error, errorCode, result, output."""
    answer: JsonObject = {
        "submissionId": ended.view.submission_id,
        "conversationId": ended.view.conversation_id,
    }
    settled = settled_json(ended.settled)
    answer |= {name: settled[name] for name in ("status", "error", "errorCode", "result") if name in settled}
    if ended.output is not None:
        answer["output"] = ended.output
    return answer


def settled_json(settled: SubmissionSettled) -> JsonObject:
    """The payload of a settlement, as it lies in the log."""
    payload = codec.to_json(settled)
    return payload if isinstance(payload, dict) else {}


def agent_json(view: AgentView) -> JsonObject:
    """An agent as it is served now."""
    answer: JsonObject = {"namespace": view.namespace, "name": view.name, "workers": view.workers}
    answer["releases"] = list(view.releases)
    for name, value in (("desiredRevision", view.desired), ("activeRevision", view.active), ("note", view.note)):
        if value:
            answer[name] = value
    return answer


def submission_json(view: SubmissionView, settled: SubmissionSettled | None = None) -> JsonObject:
    """A submission as it stands."""
    answer: JsonObject = {
        "submissionId": view.submission_id,
        "conversationId": view.conversation_id,
        "namespace": view.key.namespace,
        "agent": view.key.agent,
        "instance": view.key.instance,
        "session": view.key.session,
        "state": view.state.value,
        "position": view.position,
        "attempts": view.attempts,
    }
    if view.labels:
        answer["labels"] = dict(view.labels)
    if view.last_error:
        answer["lastError"] = view.last_error
    if settled is not None:
        answer["settled"] = settled_json(settled)
        if settled.usage is not None:
            answer["usage"] = codec.to_json(settled.usage)
    return answer


def snapshot_json(snapshot: Snapshot) -> JsonObject:
    """The conversation at once."""
    messages: list[Json] = list(snapshot.messages)
    submissions: list[Json] = [submission_json(view) for view in snapshot.submissions]
    answer: JsonObject = {
        "conversationId": snapshot.conversation_id,
        "session": snapshot.session,
        "messages": messages,
        "submissions": submissions,
        "inputs": [],
    }
    if snapshot.offset is not None:
        answer["offset"] = snapshot.offset
    return answer


def cancelled_json(cancelled: Cancelled) -> JsonObject:
    """The 202 of a cancel."""
    return {
        "submissionId": cancelled.submission_id,
        "status": "cancelled" if cancelled.settled else "cancelling",
    }


def records_json(frames: Sequence[bytes], *, next_: str | None, pruned_to: int) -> bytes:
    """A page: the records' own bytes."""
    tail = b"" if next_ is None else b',"next":' + codec.dumps(next_)
    pruned = b"" if not pruned_to else b',"prunedTo":%d' % pruned_to
    return b'{"records":[' + b",".join(frames) + b"]" + tail + pruned + b"}"
