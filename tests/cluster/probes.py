"""Short questions that tell whether a part of the cluster is up: yes or no, never an error."""

import http.client
import secrets
import socket
import ssl
import struct
from urllib.parse import urlsplit

from cluster.pki import KeyPair

_SECONDS = 5.0
DNS_PORT = 53
_TYPE_A, _CLASS_IN = 1, 1


class ApiProbe:
    """Asks an API server as the bearer of a certificate."""

    def __init__(self, server: str, ca: bytes, client: KeyPair) -> None:
        address = urlsplit(server)
        self._host, self._port = address.hostname or "", address.port or 443
        self._context = ssl.create_default_context(cadata=ca.decode())
        self._context.load_cert_chain(client.certificate, client.key)

    def answers(self, path: str) -> bool:
        """Whether GET of the path is answered with 200."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_SECONDS, context=self._context)
        return _is_ok(connection, path)


def accepts(address: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((address, port), timeout=_SECONDS).close()
    except OSError:
        return False
    return True


def http_status(address: str, port: int, path: str, *, host: str | None = None) -> int | None:
    """The status of a GET over plain HTTP; None if nothing answers."""
    connection = http.client.HTTPConnection(address, port, timeout=_SECONDS)
    try:
        connection.request("GET", path, headers={"Host": host} if host else {})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def resolve(name: str, *, server: str) -> list[str]:
    """The IPv4 addresses that this DNS server gives for a name; none if it does not answer or does not know it."""
    number = secrets.randbelow(1 << 16)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    question = labels + b"\0" + struct.pack(">HH", _TYPE_A, _CLASS_IN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(1.0)
        try:
            udp.connect((server, DNS_PORT))
            udp.send(struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + question)
            answer = udp.recv(4096)
        except OSError:
            return []
    if len(answer) < 12 or struct.unpack(">H", answer[:2])[0] != number:
        return []
    return _addresses(answer, 12 + len(question), struct.unpack(">H", answer[6:8])[0])


def _addresses(answer: bytes, at: int, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        while at < len(answer) and answer[at] & 0xC0 == 0 and answer[at]:  # labels, up to the end or to a pointer
            at += answer[at] + 1
        at += 2 if at < len(answer) and answer[at] & 0xC0 else 1
        if at + 10 > len(answer):
            return found
        kind, _, _, length = struct.unpack(">HHIH", answer[at : at + 10])
        at += 10
        if kind == _TYPE_A and length == 4:
            found.append(socket.inet_ntoa(answer[at : at + 4]))
        at += length
    return found


def _is_ok(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False  # not listening yet, or shutting the door while it starts
    finally:
        connection.close()
