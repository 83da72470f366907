"""Secrets read at claim: `get` only, by the worker's own account; nothing is listed, watched or stored."""

import asyncio
import base64
import logging
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from kubeharness.core.errors import SecretMissing, Unavailable
from kubeharness.kube.connection import connect

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

log = logging.getLogger(__name__)

CACHE_SECONDS = 15.0
REQUEST_SECONDS = 5.0


class KubernetesSecrets(AbstractAsyncContextManager["KubernetesSecrets"]):
    """A SecretSource over the API server, with a cache of 15 s; `grant` is what a missing right's remedy binds."""

    def __init__(self, grant: str) -> None:
        self._grant = grant
        self._client: ApiClient | None = None
        self._lock = asyncio.Lock()
        self._cache: dict[tuple[str, str], tuple[float, dict[str, str]]] = {}

    async def _api(self) -> "ApiClient":
        async with self._lock:
            if self._client is None:
                self._client = await connect()
            return self._client

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str:
        """The value, a trailing newline trimmed. Raises SecretMissing naming Secret and key, and the remedy."""
        known = self._cache.get((namespace, name))
        if fresh or known is None or time.monotonic() - known[0] > CACHE_SECONDS:
            data = await self._get(namespace, name, key)
            self._cache[namespace, name] = (time.monotonic(), data)
        else:
            data = known[1]
        if key not in data:
            self._cache.pop((namespace, name), None)
            raise SecretMissing(namespace, name, key, "is not a key of the Secret")
        try:
            return base64.b64decode(data[key]).decode().rstrip("\r\n")
        except (ValueError, UnicodeDecodeError) as error:
            raise SecretMissing(namespace, name, key, "is not UTF-8 text") from error

    async def _get(self, namespace: str, name: str, key: str) -> dict[str, str]:
        import aiohttp
        from kubernetes_asyncio import client

        try:
            found = await client.CoreV1Api(await self._api()).read_namespaced_secret(
                name, namespace, _request_timeout=REQUEST_SECONDS
            )
        except client.ApiException as error:
            self._cache.pop((namespace, name), None)
            if error.status == 404:
                raise SecretMissing(namespace, name, key, "does not exist") from error
            if error.status in (401, 403):
                raise SecretMissing(
                    namespace, name, key, f"may not be read; run: {self._binding(namespace)}"
                ) from error
            raise Unavailable(f"the API server answered {error.status} for Secret {namespace}/{name}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"the API server did not answer for Secret {namespace}/{name}") from error
        return dict(found.data or {})

    def _binding(self, namespace: str) -> str:
        """The command that lets workers read Secrets of a namespace."""
        return f"kubectl create rolebinding kubeharness-worker-secrets -n {namespace} {self._grant}"

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()
