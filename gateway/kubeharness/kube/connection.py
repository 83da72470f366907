"""The client of the Kubernetes API, with this process's own account: the pod's, else that of a kubeconfig."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def connect(kubeconfig: Path | None = None, *, context: str | None = None) -> "ApiClient":
    """A client for the caller to close; a pod's token is read again as it rotates, a kubeconfig is never written.

    Raises ValueError with the remedy where there is neither a mounted account nor a kubeconfig.
    """
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    try:
        if kubeconfig is None and context is None and await asyncio.to_thread(IN_CLUSTER_TOKEN.exists):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            await config.load_kube_config(
                config_file=file, context=context, client_configuration=configuration, persist_config=False
            )
    except config.ConfigException as error:
        raise ValueError(
            f"no way to the Kubernetes API server ({error}); mount a ServiceAccount's token, or set KUBECONFIG"
        ) from error
    return client.ApiClient(configuration)


async def namespace_of(kubeconfig: Path | None = None, *, context: str | None = None) -> str | None:
    """The namespace of a kubeconfig's context, where `kubectl apply` puts what names none; None if it says none."""
    from kubernetes_asyncio import config

    file = None if kubeconfig is None else str(kubeconfig)
    try:
        contexts, current = await asyncio.to_thread(config.list_kube_config_contexts, file)
    except config.ConfigException:
        return None
    chosen = next((one for one in contexts if one["name"] == context), current)
    found = ((chosen or {}).get("context") or {}).get("namespace")
    return found if isinstance(found, str) and found else None
