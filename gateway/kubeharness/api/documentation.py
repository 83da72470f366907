"""What FastAPI cannot know of itself: the routes that are served by hand, and the schemas of bodies that we parse."""

from importlib import metadata
from typing import Any

from pydantic.json_schema import models_json_schema

from kubeharness.api import wire

DESCRIPTION = (
    "Durable agents over HTTP. Every route also exists under `/namespaces/{namespace}/…`; "
    "the bare paths mean the release's default namespace."
)
MODELS = (
    wire.DispatchBody,
    wire.MessageBody,
    wire.CancelBody,
    wire.CancelSubmissionBody,
    wire.ReceiptAnswer,
    wire.OutcomeAnswer,
    wire.SnapshotAnswer,
    wire.ProblemAnswer,
)
PROBLEMS = {
    "400": "The request breaks a rule; `field` names the place.",
    "401": "No valid token.",
    "403": "The caller lacks the right.",
    "404": "Missing, or not for this caller.",
    "409": "Something stored stands against it.",
    "503": "Repeat it after Retry-After; with the same key it is safe.",
}


def version() -> str:
    """The installed release."""
    try:
        return metadata.version("kubeharness")
    except metadata.PackageNotFoundError:
        return "0"


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """FastAPI's description with ours added."""
    _, definitions = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
    )
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(definitions.get("$defs", {}))
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths = schema.setdefault("paths", {})
    paths["/agents/{agent}/{id}"] = {"parameters": _address(), "post": _dispatch(), "get": _stream()}
    for path, item in paths.items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            operation["responses"].pop("422", None)
            if path in ("/healthz", "/readyz"):
                continue
            operation["security"] = [{"token": []}]
            for status, text in PROBLEMS.items():
                operation["responses"].setdefault(status, _answer("ProblemAnswer", text))
    return schema


def _answer(model: str, text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": _ref(model)}}}


def _ref(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}


def _parameter(name: str, where: str, of: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path",
        "schema": {"type": of},
        "description": text,
    }


def _address() -> list[dict[str, Any]]:
    return [
        _parameter("agent", "path", "string", "The agent's name, a DNS label."),
        _parameter("id", "path", "string", "The instance: 1 to 256 of letters, digits and . _ ~ : @ -."),
    ]


def _dispatch() -> dict[str, Any]:
    return {
        "summary": "Dispatch a message",
        "description": "Durable when it is answered. The same key with the same content gives the same receipt.",
        "operationId": "dispatch",
        "parameters": [
            _parameter("wait", "query", "boolean", "Answer with the outcome."),
            _parameter("timeout", "query", "number", "Seconds to wait at most; then 202 with the receipt."),
            _parameter("Idempotency-Key", "header", "string", "The dispatchId, as a header."),
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("DispatchBody")}}},
        "responses": {
            "200": _answer("OutcomeAnswer", "Settled, succeeded or failed; only with `wait`."),
            "202": _answer("ReceiptAnswer", "Admitted. `Location` is the submission's."),
            "413": _answer("ProblemAnswer", "More than is read."),
            "415": _answer("ProblemAnswer", "Not JSON."),
            "429": _answer("ProblemAnswer", "The session's queue is full."),
        },
    }


def _stream() -> dict[str, Any]:
    return {
        "summary": "Follow a session",
        "description": (
            "Server-sent events: the log from the start or after an offset, then live. "
            "With `Accept: application/json` the projected conversation instead."
        ),
        "operationId": "stream",
        "parameters": [
            _parameter("session", "query", "string", "The session's name; `default` if absent."),
            _parameter("after", "query", "string", "A record's id, exclusive."),
            _parameter("Last-Event-ID", "header", "string", "The same, as an EventSource sends it."),
            _parameter("until", "query", "string", "`idle`, or `settled:{submissionId}`: end there."),
        ],
        "responses": {
            "200": {
                "description": "`id` is the record's id, `event` its kind, `data` the record as JSON.",
                "content": {
                    "text/event-stream": {"schema": {"type": "string"}},
                    "application/json": {"schema": _ref("SnapshotAnswer")},
                },
            },
            "416": _answer("ProblemAnswer", "No such record in this log."),
            "429": _answer("ProblemAnswer", "Too many streams."),
        },
    }
