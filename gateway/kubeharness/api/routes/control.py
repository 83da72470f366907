"""Steering, cancelling, pages of the log and submissions: what is asked less often, as ordinary routes."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as PathParameter

from kubeharness.api.asgi import while_connected
from kubeharness.api.call import Call
from kubeharness.api.routes.stream import offset_of
from kubeharness.api.wire import (
    AgentAnswer,
    CancelAnswer,
    CancelBody,
    CancelSubmissionBody,
    InjectedAnswer,
    MessageBody,
    RecordsAnswer,
    SnapshotAnswer,
    SubmissionAnswer,
    agent_json,
    cancelled_json,
    records_json,
    snapshot_json,
    submission_json,
)
from kubeharness.core import codec
from kubeharness.core.errors import InvalidRequest
from kubeharness.core.ids import SubmissionId, record_id
from kubeharness.core.json import Json
from kubeharness.engine.runtime import Ended

router = APIRouter()

PAGE, MAX_PAGE = 100, 1000


def called(request: Request) -> Call:
    """The request as the gateway has read it."""
    call: Call = request.scope["state"]["call"]
    return call


Called = Annotated[Call, Depends(called)]
AgentName = Annotated[str, PathParameter(description="The agent's name, a DNS label.")]
InstanceId = Annotated[
    str, PathParameter(description="1 to 256 of letters, digits and . _ ~ : @ -, and not '.' or '..'.")
]
Submission = Annotated[str, PathParameter(alias="submissionId")]


def takes(model: str, *, required: bool = True) -> dict[str, Any]:
    """The request body of a route, for its documentation."""
    reference = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": reference}}}}


def asks(*parameters: tuple[str, str, str]) -> dict[str, Any]:
    """Query parameters of a route, for its documentation: name, type, description."""
    return {
        "parameters": [
            {"name": name, "in": "query", "required": False, "schema": {"type": of}, "description": text}
            for name, of, text in parameters
        ]
    }


SESSION = ("session", "string", "The session's name; `default` if absent.")
AFTER = ("after", "string", "A record's id, exclusive.")


def _json(value: Json, status: int = 200) -> Response:
    return Response(codec.dumps(value), status, media_type="application/json", headers={"cache-control": "no-store"})


@router.get("/agents/{agent}", summary="An agent as it is served now", response_model=AgentAnswer)
async def agent(call: Called, agent: AgentName) -> Response:
    """Its revisions, why the newest is not in force, and how many live workers could claim its work."""
    await call.require("read")
    return _json(agent_json(await call.runtime.agent(call.namespace, call.path.agent or "")))


@router.post(
    "/agents/{agent}/{id}/steer",
    summary="Inject a message at the run's next seam",
    response_model=InjectedAnswer,
    openapi_extra=takes("MessageBody"),
)
async def steer(call: Called, agent: AgentName, id: InstanceId) -> Response:
    """200 once the message is durable; 409 if the session has no run in flight. Takes an Idempotency-Key."""
    await call.require("steer")
    body = await call.body(MessageBody)
    message = await call.runtime.steer(
        call.address(body.session), body=body.body, key=call.key(), principal=call.principal.name
    )
    return _json({"status": "injected", "messageId": message})


@router.post(
    "/agents/{agent}/{id}/followup",
    summary="Add a message after the current exchange",
    response_model=InjectedAnswer,
    openapi_extra=takes("MessageBody"),
)
async def follow_up(call: Called, agent: AgentName, id: InstanceId) -> Response:
    """Like steer, in the same submission but after the exchange at hand."""
    await call.require("steer")
    body = await call.body(MessageBody)
    message = await call.runtime.follow_up(
        call.address(body.session), body=body.body, key=call.key(), principal=call.principal.name
    )
    return _json({"status": "injected", "messageId": message})


@router.post(
    "/agents/{agent}/{id}/cancel",
    summary="Cancel the session's head, or a submission of it",
    status_code=202,
    response_model=CancelAnswer,
    openapi_extra=takes("CancelBody", required=False),
)
async def cancel(call: Called, agent: AgentName, id: InstanceId) -> Response:
    """What is queued or delayed settles at once, what runs at its next seam."""
    await call.require("cancel")
    body = await call.body(CancelBody, optional=True)
    done = await call.runtime.cancel(
        call.address(body.session),
        submission=SubmissionId(body.submission_id) if body.submission_id is not None else None,
        reason=body.reason,
    )
    return _json(cancelled_json(done), 202)


@router.post(
    "/submissions/{submissionId}/cancel",
    summary="Cancel a submission",
    status_code=202,
    response_model=CancelAnswer,
    openapi_extra=takes("CancelSubmissionBody", required=False),
)
async def cancel_submission(call: Called, submission: Submission) -> Response:
    """The same by the submission's id alone."""
    view = await call.submission("cancel")
    body = await call.body(CancelSubmissionBody, optional=True)
    done = await call.runtime.cancel_submission(view, reason=body.reason)
    return _json(cancelled_json(done), 202)


@router.get(
    "/agents/{agent}/{id}/records",
    summary="A page of the log",
    response_model=RecordsAnswer,
    openapi_extra=asks(SESSION, AFTER, ("limit", "integer", f"1 to {MAX_PAGE}; {PAGE} if absent.")),
)
async def records(call: Called, agent: AgentName, id: InstanceId) -> Response:
    """Records in order, byte for byte what the stream sends as data."""
    await call.require("read")
    page = await call.runtime.records(call.address(), after=offset_of(call), limit=_limit(call))
    next_ = None
    if page.records and page.records[-1].seq < page.last_seq:
        last = page.records[-1]
        next_ = record_id(last.milliseconds, last.seq, last.bits)
    body = records_json([codec.frame(r) for r in page.records], next_=next_, pruned_to=page.pruned_to)
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


def _limit(call: Call) -> int:
    text = call.query("limit")
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_PAGE):
        raise InvalidRequest("limit", f"give a number from 1 to {MAX_PAGE}")
    return int(text)


@router.get(
    "/agents/{agent}/{id}/messages",
    summary="The projected conversation",
    response_model=SnapshotAnswer,
    openapi_extra=asks(SESSION),
)
async def messages(call: Called, agent: AgentName, id: InstanceId) -> Response:
    """What was said, what is open, and where to tail from."""
    await call.require("read")
    return _json(snapshot_json(await call.runtime.snapshot(call.address())))


@router.get(
    "/submissions/{submissionId}",
    summary="A submission as it stands",
    response_model=SubmissionAnswer,
    openapi_extra=asks(
        ("wait", "boolean", "Answer when it is settled, or when the time is over."),
        ("timeout", "number", "Seconds to wait at most."),
    ),
)
async def submission(call: Called, submission: Submission) -> Response:
    """State, attempts, and once it is settled its outcome and usage."""
    view = await call.submission("read")
    waits = call.flag("wait")
    seconds = call.seconds("timeout", at_most=call.settings.wait_seconds) if waits else 0.0
    found = await while_connected(call.receive, call.runtime.wait_for(view, seconds))
    if isinstance(found, Ended):
        return _json(submission_json(found.view, found.settled))
    return _json(submission_json(found))
