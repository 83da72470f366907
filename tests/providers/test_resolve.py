"""From a revision to its provider, over pools that are shared."""

import subprocess
import sys
from typing import Any

import pytest

from kubeharness.core.errors import ProviderAuth, ProviderFatal, ProviderTransient
from kubeharness.core.revision import AgentRevision, ModelSettings, ProviderSpec
from kubeharness.providers.resolve import ModelProviders
from support.rawwire import HANG, Answer, raw_wire, sse, text, whole
from support.turns import turn_of


def revision(**spec: Any) -> AgentRevision:
    return AgentRevision(
        agent="demo", provider=ProviderSpec(name="p", **spec), model=ModelSettings(name="m", context_window=1000)
    )


async def test_a_scripted_provider_needs_no_key() -> None:
    rules = [{"when": {"try": 2}, "steps": [{"text": "again"}]}]
    models = ModelProviders()
    provider = models.provider(revision(type="Scripted", scripted={"rules": rules}), api_key=None, failed_tries=1)

    assert (await turn_of(provider, "hi")).message.content == "again"
    bare = models.provider(revision(type="Scripted"), api_key=None, failed_tries=0)
    assert (await turn_of(bare, "hi")).message.content == "You said: hi"


async def test_the_key_is_trimmed_and_connections_are_shared_by_address_c53() -> None:
    models = ModelProviders()
    async with raw_wire([whole(text("hi"))]) as wire:
        for key in ("one\n", "two"):
            spec = revision(type="OpenAICompatible", base_url=wire.base_url)
            await turn_of(models.provider(spec, api_key=key, failed_tries=0), "hi")
        await models.aclose()

    assert [request.headers["authorization"] for request in wire.requests] == ["Bearer one", "Bearer two"]
    assert wire.connections == 1


async def test_the_deadlines_are_the_pools() -> None:
    models = ModelProviders(idle_seconds=0.2)
    async with raw_wire([Answer([sse(text("a")), HANG])]) as wire:
        spec = revision(type="OpenAICompatible", base_url=wire.base_url)
        with pytest.raises(ProviderTransient, match=r"silent for 0.2 s"):
            await turn_of(models.provider(spec, api_key=None, failed_tries=0), "hi")
        await models.aclose()


@pytest.mark.parametrize("key", ["ключ", "a\x00b", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused_without_saying_it_c53(key: str) -> None:
    spec = revision(type="OpenAICompatible", base_url="http://127.0.0.1:9/v1")

    with pytest.raises(ProviderAuth) as raised:
        ModelProviders().provider(spec, api_key=key, failed_tries=0)
    assert key not in str(raised.value)


def test_an_address_is_needed() -> None:
    with pytest.raises(ProviderFatal, match="model provider 'p' has no base URL"):
        ModelProviders().provider(revision(type="OpenAICompatible"), api_key="k", failed_tries=0)


def test_no_model_sdk_is_imported() -> None:
    """Neither gateway nor operator may pay for one; this wire does not either."""
    code = (
        "import sys, kubeharness.providers.resolve, kubeharness.providers.openai_compatible;"
        "print([m for m in ('openai', 'pydantic_ai', 'anthropic', 'google') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)

    assert done.stdout.strip() == "[]"
