"""What NetworkPolicies say about a connection, as their API documentation has it: no cluster of ours enforces them."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One end of a connection: a pod, or an address outside of the cluster (which has no namespace)."""

    address: str = "10.244.0.1"
    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies of a cluster."""

    documents: Sequence[Document]

    def allow(self, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
        """Whether the connection is made: the source's egress and the target's ingress both have to allow it."""
        return self._allows("Egress", source, target, port, protocol) and self._allows(
            "Ingress", target, source, port, protocol
        )

    def _allows(self, way: str, subject: Peer, other: Peer, port: int, protocol: str) -> bool:
        """A pod that no policy of this way selects is open; one that some select needs a rule of any of them."""
        selecting = [
            document["spec"]
            for document in self.documents
            if way in document["spec"]["policyTypes"]
            and document["metadata"]["namespace"] == subject.namespace
            and _selects(document["spec"]["podSelector"], subject.labels)
        ]
        peers = "to" if way == "Egress" else "from"
        rules = [rule for spec in selecting for rule in spec.get(way.lower()) or []]
        return not selecting or any(
            _port(rule.get("ports"), port, protocol) and _peer(rule.get(peers), other, subject.namespace)
            for rule in rules
        )


def _port(ports: Sequence[Document] | None, port: int, protocol: str) -> bool:
    return not ports or any(
        item.get("protocol", "TCP") == protocol and item.get("port") in (None, port) for item in ports
    )


def _peer(peers: Sequence[Document] | None, other: Peer, namespace: str) -> bool:
    return not peers or any(_is(peer, other, namespace) for peer in peers)


def _is(peer: Document, other: Peer, namespace: str) -> bool:
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(other.address)
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(out) for out in block.get("except", ()))
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        if not _selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace}):
            return False
    elif other.namespace != namespace:
        return False
    return _selects(peer.get("podSelector", {}), other.labels)


def _selects(selector: Document, labels: dict[str, str]) -> bool:
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", ()):
        if expression["operator"] != "In":
            raise NotImplementedError(expression["operator"])
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True
