"""The Secret that the gateway's keys come from: filled once, if it is empty, by whoever comes first.

A compare-and-set on the resourceVersion that was read decides between two; one that dies before it has changed
nothing. What holds anything is its owner's and is left alone. The token is never logged, printed or returned.
"""

import base64
import hashlib
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubeharness.core.errors import Conflict, KubeharnessError, Unavailable
from kubeharness.kube.connection import connect

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

TOKEN, TOKENS_FILE = "token", "tokens.json"
NAME = "admin"
"""Whom the first key is called in logs."""
REQUEST_SECONDS = 10.0
ROUNDS = 8
"""How often somebody may come between, before we say so."""
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class Found:
    """What a Secret holds, by the names of its keys alone."""

    version: str
    keys: tuple[str, ...]


class TokenSecretRefused(KubeharnessError):
    """The Secret cannot be filled until somebody mends what the sentence says."""

    code = "token_secret_refused"


class TokenSecret:
    """One Secret, seen with this process's own account, which needs `get` and `patch` on it and no more."""

    def __init__(self, api: "ApiClient", namespace: str, name: str) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    async def ensure(self) -> str:
        """Fill the Secret if it is empty; returns what was found or done, as a sentence without any value.

        Raises TokenSecretRefused naming Secret and remedy, Unavailable if the API server does not answer.
        """
        for _ in range(ROUNDS):
            found = await self.read()
            if found.keys:
                return self._kept(found)
            try:
                await self.fill(found.version, secrets.token_urlsafe(32))
            except Conflict:
                continue  # somebody came first: look at what is there now
            return f"{self} was empty and now holds a token: `{self._reading()}` shows it"
        raise Unavailable(f"{self} changes all the time")

    async def read(self) -> Found:
        """Its version and the keys that hold something. Raises as `ensure` does."""
        from kubernetes_asyncio.client import CoreV1Api

        status, body = await self._ask(CoreV1Api(self._api).read_namespaced_secret, self._name, self._namespace)
        if status != 200:
            raise self._refused("read", status, body)
        data = body.get("data") or {}
        return Found(body["metadata"]["resourceVersion"], tuple(sorted(key for key, value in data.items() if value)))

    async def fill(self, version: str, token: str) -> None:
        """Write the token and the file that knows its digest, both or nothing.

        Raises Conflict if the Secret is not at this version any more, and as `ensure` does.
        """
        from kubernetes_asyncio.client import CoreV1Api

        digest = hashlib.sha256(token.encode()).hexdigest()
        tokens = json.dumps([{"name": NAME, "sha256": digest, "namespaces": ["*"], "rights": ["*"]}], indent=1)
        values = {TOKEN: token, TOKENS_FILE: tokens}
        patch = {
            "metadata": {"resourceVersion": version},
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
        }
        status, body = await self._ask(
            CoreV1Api(self._api).patch_namespaced_secret,
            self._name,
            self._namespace,
            patch,
            _content_type=MERGE_PATCH,
            field_manager="kubeharness-token",
        )
        if status == 409:
            raise Conflict(f"{self} changed since it was read")
        if status != 200:
            raise self._refused("changed", status, body)

    async def _ask(self, call: Any, *arguments: Any, **options: Any) -> tuple[int, dict[str, Any]]:
        """Status and body. Not preloaded: the client would log what it got, and errors would carry it along."""
        import aiohttp

        try:
            response = await call(*arguments, _preload_content=False, _request_timeout=REQUEST_SECONDS, **options)
            async with response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"the API server did not answer for {self} ({type(error).__name__})") from None
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        return response.status, body if isinstance(body, dict) else {}

    def _kept(self, found: Found) -> str:
        if TOKENS_FILE in found.keys:
            return f"{self} holds {', '.join(found.keys)} already and is left alone"
        return (
            f"{self} holds {', '.join(found.keys)} and no {TOKENS_FILE}, which the gateway reads: it is left alone; "
            f"add the key {TOKENS_FILE}, or empty the Secret to have a token made"
        )

    def _refused(self, done: str, status: int, body: dict[str, Any]) -> KubeharnessError:
        match status:
            case 404:
                return TokenSecretRefused(
                    f"{self} does not exist; the chart makes it empty: run `helm upgrade`, or "
                    f"`kubectl create secret generic {self._name} -n {self._namespace}`"
                )
            case 401 | 403:
                return TokenSecretRefused(
                    f"{self} may not be {done} by this account ({status}); bind its ServiceAccount to a Role with "
                    f"get and patch on secrets, resourceNames [{self._name}], in namespace {self._namespace}"
                )
            case 422:
                return TokenSecretRefused(
                    f"{self} cannot be changed (422 {body.get('reason', '')}); is it immutable? Delete it and run "
                    "`helm upgrade`"
                )
            case _:
                return Unavailable(f"the API server answered {status} for {self}")

    def _reading(self) -> str:
        return f"kubectl get secret {self._name} -n {self._namespace} -o jsonpath='{{.data.{TOKEN}}}' | base64 -d"

    def __str__(self) -> str:
        return f"Secret {self._namespace}/{self._name}"


async def ensure_token(namespace: str, name: str) -> str:
    """Fill this Secret if it is empty, with this process's own account. Raises as `TokenSecret.ensure` does.

    Raises ValueError with the remedy where there is neither a mounted account nor a kubeconfig.
    """
    api = await connect()
    try:
        return await TokenSecret(api, namespace, name).ensure()
    finally:
        await api.close()
