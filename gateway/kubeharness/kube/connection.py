"""The client of the Kubernetes API, with this process's own account: the pod's, else that of a kubeconfig."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubernetes_asyncio.client import ApiClient

IN_CLUSTER_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def connect(kubeconfig: Path | None = None) -> "ApiClient":
    """A client for the caller to close; a pod's token is read again as it rotates.

    Raises ValueError with the remedy where there is neither a mounted account nor a kubeconfig.
    """
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    try:
        if kubeconfig is None and await asyncio.to_thread(IN_CLUSTER_TOKEN.exists):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            await config.load_kube_config(config_file=file, client_configuration=configuration)
    except config.ConfigException as error:
        raise ValueError(
            f"no way to the Kubernetes API server ({error}); mount a ServiceAccount's token, or set KUBECONFIG"
        ) from error
    return client.ApiClient(configuration)
