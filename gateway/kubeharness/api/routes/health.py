"""Liveness and readiness: without a token, and liveness without the database."""

from fastapi import APIRouter, Request, Response

from kubeharness.api.wire import StatusAnswer
from kubeharness.core.codec import dumps

router = APIRouter()


@router.get("/healthz", summary="Alive", response_model=StatusAnswer)
async def healthz() -> Response:
    """200 as long as the process answers at all."""
    return Response(dumps({"status": "ok"}), media_type="application/json")


@router.get("/readyz", summary="Ready for traffic", response_model=StatusAnswer)
async def readyz(request: Request) -> Response:
    """200 if the database answers, the agents found at start are loaded and callers can be known; else 503: why."""
    await request.app.ready()
    return Response(dumps({"status": "ready"}), media_type="application/json")
