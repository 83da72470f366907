"""Keys that change under a run: read again past the cache, once a turn (C46)."""

from collections.abc import AsyncIterator, Sequence

from kubeharness.core.errors import ProviderAuth
from kubeharness.core.events import CompletionDelta, CompletionEnd, CompletionStart, ProviderEvent
from kubeharness.core.messages import ProviderMessage, TextPart, ToolCall, ToolDefinition
from kubeharness.core.ports import Provider
from kubeharness.core.records import SettledStatus
from kubeharness.core.revision import AgentRevision, SecretKeyRef
from support.house import House, rule

KEY = SecretKeyRef(name="model", key="api-key")


async def test_a_key_that_is_rotated_twice_in_one_run_is_read_again_each_time_c46() -> None:
    async def model(
        messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        turn = sum(message.role == "assistant" for message in messages) + 1
        if house.models.keys[-1] != f"K{turn}":
            house.secrets.values["model", "api-key"] = f"K{turn}"
            raise ProviderAuth("HTTP 401")
        yield CompletionStart()
        calls = (ToolCall("c", "none"),) if turn < 3 else ()
        if not calls:
            yield CompletionDelta("ok")
        parts = () if calls else (TextPart("ok"),)
        yield CompletionEnd(ProviderMessage(role="assistant", parts=parts, tool_calls=calls, stop_reason="stop"), 1)

    async with House(stream=model, api_key=KEY).open() as house:
        house.secrets.values["model", "api-key"] = "K1"
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert house.models.keys == ["K1", "K2", "K3"]
        assert house.secrets.fresh.count(True) == 2
        assert (ended.attempts, ended.failures) == (1, 0)


async def test_a_key_that_no_header_can_carry_is_read_again_before_the_run_fails() -> None:
    async with House(rules=[rule({"text": "ok"})], api_key=KEY).open() as house:
        provider = house.models.provider

        def picky(revision: AgentRevision, *, api_key: str | None, failed_tries: int) -> Provider:
            if api_key != "good":
                house.secrets.values["model", "api-key"] = "good"
                raise ProviderAuth("the API key is no header value")
            return provider(revision, api_key=api_key, failed_tries=failed_tries)

        house.models.provider = picky  # type: ignore[method-assign]
        house.secrets.values["model", "api-key"] = "b\nd"
        ended = await house.ask("go")

        assert ended.status is SettledStatus.SUCCEEDED
        assert house.secrets.fresh[-1]
