"""Liveness and readiness: without a token, and liveness without the database."""

from fastapi import APIRouter, Depends, Response

from kubeharness.api.call import Call
from kubeharness.api.routes.control import called
from kubeharness.api.wire import StatusAnswer
from kubeharness.core.codec import dumps

router = APIRouter()


@router.get("/healthz", summary="Alive", response_model=StatusAnswer)
async def healthz() -> Response:
    """200 as long as the process answers at all."""
    return Response(dumps({"status": "ok"}), media_type="application/json")


@router.get("/readyz", summary="Ready for traffic", response_model=StatusAnswer)
async def readyz(call: Call = Depends(called)) -> Response:
    """200 if the database answers and the agents found at start are loaded; else 503 that says why."""
    await call.runtime.ready()
    return Response(dumps({"status": "ready"}), media_type="application/json")
