"""What the processes of a node read: containerd, CNI, kubelet, kube-proxy, CoreDNS, Traefik. Pure: text and documents.

Each line that a machine without CAP_SYS_RESOURCE, without swap accounting or with cgroups v1 needs says so.
"""

from pathlib import Path
from typing import Any

from cluster.namespaces import ADDRESS, BRIDGE, POD_RANGE

Document = dict[str, Any]

NODE = "node1"
PAUSE_IMAGE = "localhost/pause:1"
DOMAIN = "cluster.local"
ROUTER_PORT = 80
ROUTER = "router"
"""The namespace and the name of the Gateway; the IngressClass and the GatewayClass are `traefik`."""
ROUTER_CLASS = "traefik"

_NEVER_EVICT = ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree")


def containerd(folder: Path) -> str:
    """containerd 1.6 with everything of its own below the folder."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "{folder}/containerd"
state = "{folder}/run"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE no score can be lowered
netns_mounts_under_state_dir = true  # else pods' namespaces are mounted beside the host's
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{folder}/runc"
[{cri}.cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"""


def cni(name: str, folder: Path) -> Document:
    """Pods on the bridge; `name` is the network's, by which what CNI keeps elsewhere is found again."""
    return {
        "cniVersion": "0.4.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                "hairpinMode": True,  # a pod may reach itself through its Service
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(folder / "addresses"),
                    "ranges": [[{"subnet": POD_RANGE, "gateway": ADDRESS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def kubelet(folder: Path, *, ca: Path, certificate: Path, key: Path, cgroup: str) -> Document:
    """The kubelet's configuration; `cgroup` must exist in every controller before it starts."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "authentication": {
            "x509": {"clientCAFile": str(ca)},
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "clusterDomain": DOMAIN,
        "clusterDNS": [ADDRESS],
        "resolvConf": str(folder / "resolv.conf"),
        "podLogsDir": str(folder / "logs" / "pods"),
        "volumePluginDir": str(folder / "volume-plugins"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",  # two kubelets on one root kill each other's pods
        "failCgroupV1": False,
        "featureGates": {"KubeletInUserNamespace": True},  # goes on where the kernel refuses a setting
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": dict.fromkeys(_NEVER_EVICT, "0%"),  # the machine's disk is not the test's concern
        "imageGCHighThresholdPercent": 100,  # what was imported cannot be pulled again
        "healthzPort": 0,
    }


def kube_proxy(kubeconfig: Path) -> Document:
    """Services by iptables."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": NODE,
        "bindAddress": ADDRESS,
        "healthzBindAddress": f"{ADDRESS}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0, "min": 0},  # the limit is the host's
        "iptables": {"minSyncPeriod": "0s"},
    }


def corefile(kubeconfig: Path) -> str:
    """Names of Services and pods; the namespace has no way out, so no other name is answered."""
    return f"""\
.:53 {{
    bind {ADDRESS}
    errors
    ready {ADDRESS}:8181
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
    }}
}}
"""


def traefik() -> Document:
    """Ingress and Gateway API on one port; KUBECONFIG tells it the cluster."""
    return {
        "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
        "log": {"level": "INFO"},
        "entryPoints": {"web": {"address": f"{ADDRESS}:{ROUTER_PORT}"}},
        "providers": {
            "kubernetesIngress": {"ingressClass": ROUTER_CLASS, "ingressEndpoint": {"ip": ADDRESS}},
            "kubernetesGateway": {"statusAddress": {"ip": ADDRESS}},
        },
    }


def router_objects() -> list[Document]:
    """The classes and the Gateway that Ingresses and HTTPRoutes of every namespace may use."""
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {
                "name": ROUTER_CLASS,
                "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"},
            },
            "spec": {"controller": "traefik.io/ingress-controller"},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "GatewayClass",
            "metadata": {"name": ROUTER_CLASS},
            "spec": {"controllerName": "traefik.io/gateway-controller"},
        },
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ROUTER}},
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": ROUTER, "namespace": ROUTER},
            "spec": {
                "gatewayClassName": ROUTER_CLASS,
                "listeners": [
                    {
                        "name": "web",
                        "protocol": "HTTP",
                        "port": ROUTER_PORT,
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    }
                ],
            },
        },
    ]
