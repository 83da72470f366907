"""The application: one gate for every request, two plain ASGI routes for the hot paths, FastAPI for the rest."""

import logging
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from kubeharness.api import documentation
from kubeharness.api.asgi import ClientGone, Receive, Scope, Send, answer_problem
from kubeharness.api.auth import Auth, Grants, Principal
from kubeharness.api.call import Call, headers_of
from kubeharness.api.paths import Path, parse_path, prefix_of
from kubeharness.api.problems import MethodNotAllowed, problem
from kubeharness.api.routes import control, docs, health
from kubeharness.api.routes.dispatch import dispatch
from kubeharness.api.routes.stream import Places, show
from kubeharness.api.settings import ApiSettings
from kubeharness.core.errors import InvalidRequest, KubeharnessError, NotFound, Unavailable
from kubeharness.engine.runtime import Runtime

log = logging.getLogger(__name__)

WITHOUT_TOKEN = frozenset({"/healthz", "/readyz"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
NOBODY = Principal(name="", access=Grants(namespaces=frozenset(), rights=frozenset()), by_token=False)


class Gateway(FastAPI):
    """The API over one runtime. Every request passes the gate: path, sender, origin, in this order.

    Rights are asked for by the routes: what they need to reach the runtime is not to be had without (`Call.require`).
    """

    def __init__(self, runtime: Runtime, auth: Auth, settings: ApiSettings) -> None:
        settings = replace(settings, root_path=prefix_of(settings.root_path))
        super().__init__(
            title="Kubeharness",
            description=documentation.DESCRIPTION,
            version=documentation.version(),
            servers=[{"url": settings.root_path}] if settings.root_path else None,
            redirect_slashes=False,
            docs_url=None,  # it would load its scripts from other hosts
            redoc_url=None,
        )
        self.runtime = runtime
        self.auth = auth
        self.settings = settings
        self.places = Places(settings)
        self.include_router(health.router)
        self.include_router(docs.router)
        self.include_router(control.router)
        self.include_router(control.router, prefix="/namespaces/{namespace}", include_in_schema=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Whatever goes wrong is answered in one shape; input never gives a 500."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        started = False

        async def sending(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._serve(scope, receive, send, sending)
        except ClientGone:
            pass  # nobody to answer, and nothing of it is ours to mend
        except Exception as error:  # noqa: BLE001 - the last door: one bad request stops no other
            if started:
                log.warning("an answer was cut short: %r", error)
                return
            await answer_problem(send, problem(error))

    async def _serve(self, scope: Scope, receive: Receive, send: Send, routed: Send) -> None:
        call = await self._call(scope, receive)
        method: str = scope["method"]
        if call.path.is_session:
            match method:
                case "POST":
                    await dispatch(call, send)
                case "GET" | "HEAD":
                    await show(call, send, self.places)
                case _:
                    raise MethodNotAllowed(method, "GET, HEAD, POST")
            return
        namespace = f"/namespaces/{call.path.namespace}" if call.path.namespace else ""
        path = self.settings.root_path + namespace + call.path.route
        await super().__call__(
            {
                **scope,
                "method": "GET" if method == "HEAD" else method,
                "path": path,
                "raw_path": path.encode(),
                "root_path": self.settings.root_path,
                "state": {**scope.get("state", {}), "call": call},
            },
            receive,
            routed,
        )

    async def _call(self, scope: Scope, receive: Receive) -> Call:
        headers = headers_of(scope)
        refused: InvalidRequest | None = None
        try:
            path = parse_path(scope.get("raw_path") or scope["path"].encode(), self.settings.root_path)
        except InvalidRequest as error:
            refused, path = error, Path(())
        open_to_all = refused is None and path.namespace is None and path.route in WITHOUT_TOKEN
        principal = NOBODY if open_to_all else await self.auth.identify(headers)
        if refused is not None:
            raise refused
        call = Call(self.runtime, self.settings, path, principal, headers, scope, receive)
        if not open_to_all and scope["method"] not in SAFE:
            call.check_origin()
        return call

    async def ready(self) -> None:
        """Raises Unavailable, with the reason, while this gateway should get no traffic."""
        if (why := self.auth.unready()) is not None:
            raise Unavailable(why)
        await self.runtime.ready()

    def openapi(self) -> dict[str, Any]:
        """The description of all routes, those that are served by hand included."""
        if self.openapi_schema is None:
            self.openapi_schema = documentation.described(super().openapi())
        return self.openapi_schema


def create_app(runtime: Runtime, auth: Auth, settings: ApiSettings | None = None) -> Gateway:
    """The ASGI application of a gateway."""
    app = Gateway(runtime, auth, settings or ApiSettings())
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _refused)
    app.add_exception_handler(KubeharnessError, _refused)
    app.add_exception_handler(ClientGone, _refused)
    app.add_exception_handler(Exception, _refused)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    """What a route of FastAPI raised, in our shape."""
    if isinstance(error, ClientGone):
        return Response(status_code=499)  # nobody reads it
    found = problem(_translated(request.scope, error))
    response = Response(found.body, found.status, media_type="application/json")
    response.raw_headers += found.headers
    return response


def _translated(scope: Scope, error: Exception) -> Exception:
    """What the framework refuses, as one of ours."""
    match error:
        case HTTPException(status_code=404):
            return NotFound(f"route {scope['path']!r}")
        case HTTPException(status_code=405, headers=headers):
            return MethodNotAllowed(scope["method"], (headers or {}).get("Allow", "another method"))
        case RequestValidationError():
            first = error.errors()[0]
            return InvalidRequest(".".join(str(part) for part in first["loc"][1:]) or "request", first["msg"])
        case _:
            return error
