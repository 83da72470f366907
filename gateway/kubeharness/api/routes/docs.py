"""The documentation page, made of what the application says of itself."""

from fastapi import APIRouter, Request, Response

from kubeharness.api import reference

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The API for people; links carry the prefix."""
    page = reference.page(request.app.openapi(), request.app.settings.root_path)
    return Response(page, media_type="text/html", headers=reference.HEADERS)
