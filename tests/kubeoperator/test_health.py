"""The health port, over a real socket."""

import asyncio

import pytest

from kubeharness_operator.health import Health, serving


async def ask(port: int, request: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0].removeprefix("HTTP/1.1 "), body


async def get(port: int, path: str) -> tuple[str, str]:
    return await ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_it_is_alive_at_once_and_ready_once_the_watches_run() -> None:
    health = Health(waiting_for="CRDs not served: agents.kubeharness.dev")
    async with serving(health, host="127.0.0.1", port=0) as port:
        alive, unready = await get(port, "/healthz"), await get(port, "/readyz?verbose")
        health.served = health.watching = True
        ready = await get(port, "/readyz")
        health.lacking = lambda: "CRD agents.kubeharness.dev lacks status.tools"
        lacking = await get(port, "/readyz")
        health.database = lambda: "nothing listens"
        lost = await get(port, "/readyz")
        health.trouble = lambda: "GET: 503"
        troubled = await get(port, "/readyz")
        health.trouble = str
        health.watching = False
        stopped = await get(port, "/readyz")

    assert alive == ("200 OK", "ok\n")
    assert unready == ("503 Service Unavailable", "waiting for CRDs not served: agents.kubeharness.dev\n")
    assert ready == ("200 OK", "ok\n")
    assert lacking == ("503 Service Unavailable", "CRD agents.kubeharness.dev lacks status.tools\n")
    assert lost == ("503 Service Unavailable", "the database cannot be used: nothing listens\n")
    assert troubled[0] == "503 Service Unavailable"
    assert "GET: 503" in troubled[1]
    assert stopped[0] == "503 Service Unavailable"


async def test_deaf_watches_fail_liveness_so_that_the_pod_is_restarted_c43() -> None:
    deaf = 1
    health = Health(deaf=lambda: deaf)
    async with serving(health, host="127.0.0.1", port=0) as port:
        once = await get(port, "/healthz")
        deaf = 2
        twice = await get(port, "/healthz")

    assert once[0] == "200 OK"
    assert twice[0] == "503 Service Unavailable"
    assert "deaf" in twice[1]


async def test_metrics_have_types_and_prefixes() -> None:
    health = Health(gauges=lambda: {"queue_length": 3, "sweeps_total": 2})
    async with serving(health, host="127.0.0.1", port=0) as port:
        _, body = await get(port, "/metrics")

    assert "# TYPE kubeharness_operator_queue_length gauge\nkubeharness_operator_queue_length 3\n" in body
    assert "# TYPE kubeharness_operator_sweeps_total counter\nkubeharness_operator_sweeps_total 2\n" in body


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /nothing HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /healthz HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("\r\n\r\n", "405 Method Not Allowed"),
        ("GET\r\n\r\n", "405 Method Not Allowed"),
        ("x" * 20_000, ""),
    ],
)
async def test_odd_requests_are_answered_or_dropped_and_end_nothing(request_text: str, status: str) -> None:
    async with serving(Health(), host="127.0.0.1", port=0) as port:
        try:
            answered, _ = await ask(port, request_text)
        except ConnectionError:
            answered = ""

        assert answered == status
        assert (await get(port, "/healthz"))[0] == "200 OK"
