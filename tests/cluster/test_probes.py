"""The DNS question that tells whether CoreDNS is up, against a server that answers as CoreDNS does."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from cluster import probes

ALIAS, ADDRESS = 5, 1


def record(kind: int, data: bytes) -> bytes:
    return b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 5, len(data)) + data


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Records that a server on loopback gives for every name."""
    records: list[bytes] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        monkeypatch.setattr(probes, "DNS_PORT", server.getsockname()[1])

        def serve() -> None:
            question, client = server.recvfrom(4096)
            head = question[:2] + struct.pack(">HHHHH", 0x8180, 1, len(records), 0, 0)
            server.sendto(head + question[12:] + b"".join(records), client)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield records
        thread.join(5)


def test_addresses_are_read_and_other_records_passed_over(answer: list[bytes]) -> None:
    answer += [record(ALIAS, b"\x01a\xc0\x0c"), record(ADDRESS, bytes([10, 96, 0, 1]))]

    assert probes.resolve("kubernetes.default.svc.cluster.local", server="127.0.0.1") == ["10.96.0.1"]


def test_a_name_without_records_has_no_address(answer: list[bytes]) -> None:
    assert probes.resolve("nobody.test", server="127.0.0.1") == []


def test_a_server_that_says_rubbish_has_given_no_address(answer: list[bytes]) -> None:
    answer += [b"\xff"]

    assert probes.resolve("nobody.test", server="127.0.0.1") == []


def test_nobody_there_is_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(probes, "DNS_PORT", taken.getsockname()[1])

        assert probes.resolve("nobody.test", server="127.0.0.1") == []
