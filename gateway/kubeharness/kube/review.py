"""Who calls and what it may do, asked of the API server: TokenReview, then SubjectAccessReview on `agents/{name}`.

Fits `AccessReview` of api/auth.py by shape. A token is held in clear only while it is asked about: answers are kept
for seconds, by its digest. Nothing of a review is logged.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kubeharness.core.errors import Unavailable
from kubeharness.core.principal import Identity
from kubeharness.kube.answers import Answers
from kubeharness.kube.connection import connect

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

log = logging.getLogger(__name__)

GROUP, VERSION, RESOURCE = "kubeharness.dev", "v1alpha1", "agents"

KNOWN_SECONDS, UNKNOWN_SECONDS = 15.0, 5.0
"""How long a token counts as its owner's, or as nobody's: a revoked one works so much longer."""
ALLOWED_SECONDS, DENIED_SECONDS = 10.0, 5.0
"""How long a decision is kept: a RoleBinding works so much later."""
MOST_TOKENS, MOST_DECISIONS = 4096, 16384
REQUEST_SECONDS = 5.0
"""The longest that a caller waits for one answer, the queue before the API server included."""
AT_ONCE = 16
"""Questions of one kind at once. Each kind has its own share: who floods us with tokens delays nobody who is known."""

Decision = tuple[Identity, str, str, str]
Create = Callable[..., Awaitable[Any]]


class KubernetesReview(AbstractAsyncContextManager["KubernetesReview"]):
    """The API server's word, bounded in time, in memory and in requests.

    Entering raises ValueError where there is no way to an API server; that it does not answer is no matter until
    somebody calls.
    """

    def __init__(
        self,
        *,
        audiences: tuple[str, ...] = (),
        kubeconfig: Path | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._audiences = audiences
        self._kubeconfig = kubeconfig
        self._api: ApiClient | None = None
        self._owners: Answers[bytes, Identity | None] = Answers(
            keep=lambda owner: UNKNOWN_SECONDS if owner is None else KNOWN_SECONDS,
            most=MOST_TOKENS,
            monotonic=monotonic,
        )
        self._decisions: Answers[Decision, bool] = Answers(
            keep=lambda allowed: ALLOWED_SECONDS if allowed else DENIED_SECONDS,
            most=MOST_DECISIONS,
            monotonic=monotonic,
        )
        self._reviews_of_tokens = asyncio.Semaphore(AT_ONCE)
        self._reviews_of_access = asyncio.Semaphore(AT_ONCE)
        self._trouble = ""

    async def __aenter__(self) -> Self:
        self._api = await connect(self._kubeconfig)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._api is not None:
            await self._api.close()

    async def identify(self, token: str) -> Identity | None:
        """Whose token it is; None if it is nobody's, or not meant for us. Raises Unavailable."""
        digest = hashlib.sha256(token.encode()).digest()
        return await self._owners.get(digest, lambda: self._owner(token))

    async def allows(self, who: Identity, verb: str, namespace: str, agent: str) -> bool:
        """Whether the authorizers allow the verb on that agent; no agent: on every one there. Raises Unavailable."""
        decision = (who, verb, namespace, agent)
        return await self._decisions.get(decision, lambda: self._decided(*decision))

    def _client(self) -> "ApiClient":
        if self._api is None:
            raise RuntimeError("the review is not entered")
        return self._api

    async def _owner(self, token: str) -> Identity | None:
        from kubernetes_asyncio.client import AuthenticationV1Api

        spec: dict[str, object] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        create = AuthenticationV1Api(self._client()).create_token_review
        status = await self._answer(create, "authentication.k8s.io/v1", "TokenReview", spec, self._reviews_of_tokens)
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return None
        # A server that knows nothing of audiences would let in tokens that are meant for others.
        if self._audiences and not set(self._audiences) & set(status.get("audiences") or ()):
            return None
        return Identity(
            name=user["username"],
            uid=user.get("uid") or "",
            groups=tuple(user.get("groups") or ()),
            extra=tuple(sorted((key, tuple(values)) for key, values in (user.get("extra") or {}).items())),
        )

    async def _decided(self, who: Identity, verb: str, namespace: str, agent: str) -> bool:
        from kubernetes_asyncio.client import AuthorizationV1Api

        place = {"group": GROUP, "version": VERSION, "resource": RESOURCE, "namespace": namespace, "name": agent}
        spec = {
            "user": who.name,
            "uid": who.uid,
            "groups": list(who.groups),
            "extra": {key: list(values) for key, values in who.extra},
            "resourceAttributes": {**place, "verb": verb},
        }
        create = AuthorizationV1Api(self._client()).create_subject_access_review
        kind = "SubjectAccessReview"
        status = await self._answer(create, "authorization.k8s.io/v1", kind, spec, self._reviews_of_access)
        return status.get("allowed") is True and status.get("denied") is not True

    async def _answer(
        self, create: Create, version: str, kind: str, spec: dict[str, Any], share: asyncio.Semaphore
    ) -> dict[str, Any]:
        """The status of a review. Raises Unavailable for whatever is not an answer."""
        import aiohttp

        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            async with asyncio.timeout(REQUEST_SECONDS), share:
                try:
                    code, raw = await _send(create, body)
                except aiohttp.ServerDisconnectedError:  # a kept connection that the server gave up meanwhile
                    code, raw = await _send(create, body)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._troubled(f"the API server did not answer a {kind}", type(error).__name__) from None
        if code in (401, 403):
            remedy = f"bind its ServiceAccount to a ClusterRole with create on {kind.lower()}s, as the chart does"
            raise self._troubled(f"this gateway may not ask the API server for a {kind}", f"{code}; {remedy}")
        try:
            status = json.loads(raw)["status"] if code in (200, 201) else None
        except (ValueError, KeyError, TypeError):
            status = None
        if not isinstance(status, dict):
            raise self._troubled(f"the API server could not answer a {kind}", f"status {code}")
        self._trouble = ""
        return status

    def _troubled(self, what: str, detail: str) -> Unavailable:
        """Logged once until something works again; every caller is told."""
        if self._trouble != what:
            self._trouble = what
            log.error("%s: %s", what, detail)
        return Unavailable(what)


async def _send(create: Create, body: dict[str, Any]) -> tuple[int, bytes]:
    # Not preloaded: the client would log what it got, and the answer repeats the token.
    response = await create(body=body, _preload_content=False, _request_timeout=REQUEST_SECONDS)
    async with response:
        return response.status, await response.read()
