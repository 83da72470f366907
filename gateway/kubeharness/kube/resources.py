"""What of our kinds lies in a cluster, read and never written, for `plan`. No verb on Secrets."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kubeharness.core.errors import KubeharnessError, Unavailable

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

REQUEST_SECONDS = 15.0
PAGE = 500
MOST_PAGES = 1000
API = "/apis/kubeharness.dev/v1alpha1"
PLURALS = {"Agent": "agents", "ModelProvider": "modelproviders", "ToolServer": "toolservers"}

Raw = dict[str, Any]
Key = tuple[str, str, str]


class ReadRefused(KubeharnessError):
    """The account may not read what a plan is drawn from; the sentence says what to bind."""

    code = "read_refused"


@dataclass(frozen=True, slots=True)
class Found:
    """What lies there, by kind, namespace and name."""

    documents: dict[Key, Raw]
    served: bool
    """The kinds are known to the API server."""


class Resources:
    """Reads with the account of one client."""

    def __init__(self, api: "ApiClient") -> None:
        self._api = api

    async def read(self, namespaces: Iterable[str], config_maps: Callable[[list[Raw], str], set[str]]) -> Found:
        """All objects of our kinds in the namespaces, and the ConfigMaps that `config_maps` asks for then.

        Raises ReadRefused, Unavailable.
        """
        documents: dict[Key, Raw] = {}
        served = True
        for namespace in sorted(set(namespaces)):
            for kind, plural in PLURALS.items():
                items = await self._list(f"{API}/namespaces/{quote(namespace)}/{plural}")
                served = served and items is not None
                for item in items or ():
                    documents[kind, namespace, str(item["metadata"]["name"])] = {**item, "kind": kind}
            agents = [raw for key, raw in documents.items() if key[:2] == ("Agent", namespace)]
            for name in sorted(config_maps(agents, namespace)):
                path = f"/api/v1/namespaces/{quote(namespace)}/configmaps/{quote(name, safe='')}"
                status, body = await self._get(path)
                if status == 200:
                    documents["ConfigMap", namespace, name] = {**body, "kind": "ConfigMap"}
        return Found(documents, served)

    async def _list(self, path: str) -> list[Raw] | None:
        """Every item, page by page; None if the kind is not served."""
        items: list[Raw] = []
        more = ""
        for _ in range(MOST_PAGES):
            status, body = await self._get(path, [("limit", str(PAGE)), *([("continue", more)] if more else [])])
            if status == 404:
                return None
            items += body.get("items") or []
            more = (body.get("metadata") or {}).get("continue") or ""
            if not more:
                return items
        raise Unavailable(f"the list at {path} does not end")

    async def _get(self, path: str, query: list[tuple[str, str]] | None = None) -> tuple[int, Raw]:
        """200 and the body, or 404."""
        import aiohttp
        from kubernetes_asyncio.client.exceptions import ApiException

        try:
            response = await self._api.call_api(
                path,
                "GET",
                query_params=query or [],
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=REQUEST_SECONDS,
            )
            async with response:
                status, raw = response.status, await response.read()
        except ApiException as error:
            status, raw = int(error.status or 0), b""
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the API server did not answer to GET {path} ({type(error).__name__})") from error
        if status in (401, 403):
            raise ReadRefused(
                f"GET {path} is refused ({status}); a plan needs get and list on agents, modelproviders and "
                "toolservers and get on configmaps: the role `view` has them, to which the chart adds ours"
            )
        if status not in (200, 404):
            raise Unavailable(f"the API server answered {status} to GET {path}")
        body = json.loads(raw) if raw and status == 200 else {}
        return status, body if isinstance(body, dict) else {}
