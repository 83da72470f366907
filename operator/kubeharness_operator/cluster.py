"""The only file that speaks to the Kubernetes API. Every call has a deadline; no verb on Secrets, ever.

Watching is kopf's; this is the rest: reads of single objects, status by server-side apply, Events, and complete
lists of metadata. Foreign exceptions end here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.exceptions import ApiException

from kubeharness.core.json import JsonObject
from kubeharness.kinds.common import API_VERSION, GROUP, VERSION
from kubeharness_operator.objects import CONFIG_MAPS, KINDS
from kubeharness_operator.ports import (
    ClusterError,
    ClusterUnavailable,
    Conflicted,
    Document,
    NamespaceLeaving,
    NotServed,
    ObjectEvent,
    ObjectMeta,
    SchemaMismatch,
)

FIELD_MANAGER = "kubeharness-operator"
REQUEST_SECONDS = 10.0
LIST_SECONDS = 30.0
PAGE = 500
MOST_PAGES = 10_000

APPLY = "application/apply-patch+yaml"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
"""What may name an object: a name out of a spec that no schema ever saw may be a path to somewhere else."""

METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


async def load_configuration() -> client.Configuration:
    """How to reach the API server: a pod's ServiceAccount, else the kubeconfig that KUBECONFIG names.

    Raises ClusterError if there is neither.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # it carries no types
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except config.ConfigException as error:
            raise ClusterError(f"neither in a pod nor with a kubeconfig: {error}; set KUBECONFIG") from error
    return configuration


class KubernetesCluster:
    """`ports.Cluster` over a real API server."""

    def __init__(self, configuration: client.Configuration, *, instance: str) -> None:
        self._client = client.ApiClient(configuration)
        self._instance = instance

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def schemas(self) -> Mapping[str, JsonObject]:
        """What the server takes as our kinds, by plural."""
        try:
            answer = await self._call("GET", f"/openapi/v3/apis/{GROUP}/{VERSION}")
        except NotServed as error:
            raise NotServed(f"none of the CRDs of {API_VERSION} is served") from error
        found = {
            plural: _schema(answer, plural, kind)
            for plural, kind in KINDS.items()
            if f"/apis/{API_VERSION}/namespaces/{{namespace}}/{plural}/{{name}}/status" in answer.get("paths", {})
        }
        missing = sorted(set(KINDS) - set(found))
        if missing:
            raise NotServed("CRDs not served: " + ", ".join(f"{plural}.{GROUP}" for plural in missing))
        return found

    async def get(self, plural: str, namespace: str, name: str) -> Document | None:
        """The object as it is now, or None if the server says that it is gone, or nothing can have that name."""
        if not NAME.match(name):
            return None
        return await self._call_of(name, "GET", _path(plural, namespace, name))

    async def apply_status(
        self, plural: str, namespace: str, name: str, *, version: str, status: JsonObject
    ) -> Document | None:
        """Write the status by server-side apply under our own field manager."""
        body = {
            "apiVersion": API_VERSION,
            "kind": KINDS[plural],
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
            "status": status,
        }
        path = _path(plural, namespace, name) + "/status"
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call_of(name, "PATCH", path, body=body, query=query, content=APPLY)

    async def check_list(self, plural: str, namespace: str | None) -> None:
        """List one of them."""
        await self._call("GET", _path(plural, namespace), query={"limit": "1"}, accept=METADATA_LIST)

    async def list_metadata(self, plural: str, namespace: str | None) -> Sequence[ObjectMeta]:
        """All objects of a kind, page by page, each page as of now and all as of the first."""
        found: list[ObjectMeta] = []
        query = {"limit": str(PAGE)}
        for _ in range(MOST_PAGES):
            page = await self._call(
                "GET", _path(plural, namespace), query=query, accept=METADATA_LIST, seconds=LIST_SECONDS
            )
            for item in page.get("items") or ():  # an empty list is null
                metadata = item["metadata"]
                found.append(
                    ObjectMeta(metadata["namespace"], metadata["name"], metadata["uid"], metadata["resourceVersion"])
                )
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query = {"limit": str(PAGE), "continue": more}
        raise ClusterError(f"the list of {plural} does not end")

    async def record(self, event: ObjectEvent) -> None:
        """Create a core/v1 Event."""
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{event.name}.", "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": event.api_version,
                "kind": event.kind,
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
                "resourceVersion": event.version,
            },
            "type": "Warning" if event.warning else "Normal",
            "reason": event.reason,
            "message": event.message[:1024],
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._instance,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        }
        await self._call("POST", f"/api/v1/namespaces/{event.namespace}/events", body=body)

    async def _call_of(self, name: str, method: str, path: str, **options: Any) -> Document | None:
        """A call about one object: a 404 that names it says that it is gone, another that its kind is."""
        try:
            return await self._call(method, path, **options)
        except NotServed as error:
            cause = error.__cause__
            if isinstance(cause, ApiException) and _names(cause, name):
                return None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Document | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        seconds: float = REQUEST_SECONDS,
    ) -> Document:
        what = f"{method} {path}"
        try:
            answer = await self._client.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                response_types_map={200: "object", 201: "object"},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=seconds,
            )
        except ApiException as error:
            raise _translated(what, error) from error
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise ClusterUnavailable(f"{what}: {type(error).__name__} {error}".rstrip()) from error
        if not isinstance(answer, dict):
            raise ClusterUnavailable(f"{what}: the answer is no JSON object")
        return cast("Document", answer)


def _translated(what: str, error: ApiException) -> ClusterError:
    sentence = f"{what}: {error.status} {_status_of(error).get('message') or error.reason}"
    match error.status:
        case 403 if "NamespaceTerminating" in _causes(error):
            return NamespaceLeaving(sentence)
        case 404:
            return NotServed(sentence)
        case 409:
            return Conflicted(sentence)
        case 400 | 422 | 500 if what.startswith("PATCH"):
            return SchemaMismatch(sentence)
        case _:
            return ClusterUnavailable(sentence)


def _names(error: ApiException, name: str) -> bool:
    """A Status about this very object; a server that lacks the kind answers 404 without details."""
    details = _status_of(error).get("details")
    return isinstance(details, dict) and details.get("name") == name


def _causes(error: ApiException) -> set[object]:
    """The machine-readable reasons of a refusal."""
    details = _status_of(error).get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return {cause.get("reason") for cause in causes or () if isinstance(cause, dict)}


def _status_of(error: ApiException) -> Document:
    try:
        status = json.loads(error.body or "")
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _path(plural: str, namespace: str | None, name: str | None = None) -> str:
    root = "/api/v1" if plural == CONFIG_MAPS else f"/apis/{API_VERSION}"
    within = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{root}{within}/{plural}" + (f"/{name}" if name is not None else "")


def _schema(answer: Document, plural: str, kind: str) -> JsonObject:
    """The schema of a kind in an OpenAPI v3 document. Raises NotServed if it says nothing of a status."""
    for schema in answer.get("components", {}).get("schemas", {}).values():
        for named in schema.get("x-kubernetes-group-version-kind", ()):
            ours = (named.get("group"), named.get("version"), named.get("kind")) == (GROUP, VERSION, kind)
            if ours and isinstance(schema.get("properties", {}).get("status"), dict):
                return cast("JsonObject", schema)
    raise NotServed(f"the CRD {plural}.{GROUP} has no schema for a status")
