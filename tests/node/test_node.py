"""Pods, Services, names, both doors, and what an administrator does to a node."""

import datetime
import http.server
import itertools
import os
import socketserver
import threading
import time
from pathlib import Path

import asyncpg
import pytest

from cluster.errors import KubectlFailed
from cluster.node import NodeCluster
from node.house import IMAGE, INGRESS_HOST, NAMESPACE, ROUTE_HOST, Echo, arrivals, until

pytestmark = pytest.mark.timeout(180)


def test_two_restricted_pods_roll_out_and_a_service_reaches_both(echo: Echo) -> None:
    pods = set(echo.pods())

    assert len(pods) == 2
    assert until(lambda: {echo.asked("/") for _ in range(40)} == pods)


def test_a_pod_that_asks_for_more_than_restricted_is_refused(echo: Echo) -> None:
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        echo.kubectl("run", "root", f"--image={IMAGE}", "--dry-run=server")


def test_pods_resolve_names_and_reach_services_the_api_and_themselves(echo: Echo, node: NodeCluster) -> None:
    address = echo.kubectl("get", "service", "echo", "-o", "jsonpath={.spec.clusterIP}")

    assert echo.asked("/resolve?name=echo.echo.svc.cluster.local") == address
    assert echo.asked("/resolve?name=echo") == address
    # Both pods, so also from a pod by its Service to itself.
    assert {echo.fetched("http://echo:8080/") for _ in range(40)} == set(echo.pods())


@pytest.mark.parametrize("host", [INGRESS_HOST, ROUTE_HOST])
def test_a_door_serves_and_streams_piece_by_piece(echo: Echo, node: NodeCluster, host: str) -> None:
    assert until(lambda: echo.through(host)) in echo.pods()
    times = arrivals(f"{node.router}/stream", host=host)

    assert len(times) == 5
    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert min(gaps) > 0.1, f"the lines came together: {gaps}"


def test_a_host_that_no_route_names_is_not_found(echo: Echo) -> None:
    with pytest.raises(AssertionError, match="404"):
        echo.through("elsewhere.test")


def test_logs_and_exec_reach_the_pod(echo: Echo) -> None:
    name = next(iter(echo.pods()))

    assert echo.kubectl("logs", name) == f"serving as {name}\n"
    assert echo.kubectl("exec", name, "--", "/echo", "healthy") == "healthy\n"


async def test_pods_and_host_reach_one_postgres(node: NodeCluster) -> None:
    dsn = node.create_database()
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        owner = await connection.fetchval("SELECT current_user")
        await connection.execute("CREATE TABLE proof (id int)")
    finally:
        await connection.close(timeout=5)

    assert f"//{owner}:" in dsn
    assert node.address in dsn


def test_what_a_test_serves_on_the_nodes_address_is_reached_by_pods(echo: Echo, node: NodeCluster) -> None:
    with socketserver.TCPServer((node.address, 0), Hello) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()

        assert echo.fetched(f"http://{node.address}:{server.server_address[1]}/") == "hello"


def test_the_audit_log_counts_writes(echo: Echo, node: NodeCluster) -> None:
    began = datetime.datetime.now(datetime.UTC)
    echo.kubectl("create", "configmap", "written")

    [write] = until(lambda: node.audit_writes(began, ["kubernetes-admin"]))
    assert (write.verb, write.namespace, write.name) == ("create", NAMESPACE, "written")


def test_a_drained_node_gives_up_its_pods_and_takes_new_ones(echo: Echo, node: NodeCluster) -> None:
    before = echo.pods()
    node.kubectl("drain", node.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=40s", timeout=60)
    drained = echo.pods()
    node.kubectl("uncordon", node.name)
    echo.roll_out()

    assert drained == {}
    assert before.keys().isdisjoint(echo.pods())
    assert len(echo.pods()) == 2


def test_a_kubelet_killed_and_started_again_keeps_its_pods(echo: Echo, node: NodeCluster) -> None:
    before = echo.pods()
    node.kill_kubelet()
    time.sleep(1)
    name = next(iter(before))
    with pytest.raises(KubectlFailed, match="refused"):
        echo.kubectl("exec", name, "--", "/echo", "healthy")
    assert {echo.asked("/") for _ in range(40)} == set(before)
    node.start_kubelet()

    assert echo.pods() == before
    assert echo.kubectl("exec", name, "--", "/echo", "healthy") == "healthy\n"


def test_the_session_is_inside_and_may_go_outside(node: NodeCluster) -> None:
    inside = network()
    with node.outside():
        outside = network()

    assert inside == f"net:[{Path(node.nsenter[1].removeprefix('--net=')).stat().st_ino}]"
    assert outside != inside
    assert network() == inside


class Hello(http.server.BaseHTTPRequestHandler):
    """Says hello."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def network() -> str:
    """The network namespace of this thread."""
    return os.readlink(Path("/proc/thread-self/ns/net"))
