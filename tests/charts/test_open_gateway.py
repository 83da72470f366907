"""`auth.insecure`: what the chart says is what the gateway takes, and nothing less opens it."""

import pytest

from charts.rendering import render
from kubeharness.api.auth import Open
from kubeharness.composition import open_auth
from kubeharness.settings import Settings


def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the gateway of an open release is told."""
    rendered = render({"auth": {"modes": ["none"], "insecure": True}})
    [container] = rendered.pods()["Deployment/kubeharness-gateway"]["spec"]["containers"]
    for item in container["env"]:
        monkeypatch.setenv(item["name"], item.get("value", "memory:"))


async def test_the_gateway_of_an_open_release_lets_everybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    async with open_auth(Settings()) as auth:
        assert isinstance(auth, Open)


async def test_without_the_insecure_word_the_same_gateway_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    monkeypatch.delenv("KUBEHARNESS_AUTH_INSECURE")
    with pytest.raises(ValueError, match=r"would be open on 0\.0\.0\.0"):
        async with open_auth(Settings()):
            pass
