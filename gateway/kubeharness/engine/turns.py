"""One model turn as the engine sees it: its own id, our call ids, a bound on the context, a staged `started`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from kubeharness.core.errors import ProviderFatal, ProviderOverflow
from kubeharness.core.events import CompletionEnd, ProviderEvent
from kubeharness.core.ids import TurnId, call_id, turn_id
from kubeharness.core.lane import Claimed
from kubeharness.core.messages import ProviderMessage, ToolDefinition
from kubeharness.core.ports import Provider
from kubeharness.core.records import AssistantMessageStarted
from kubeharness.core.revision import AgentRevision
from kubeharness.engine.context import clean_message, in_call_order
from kubeharness.engine.recorder import Recorder

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_IMAGE = 1500


class TurnProvider:
    """The Provider that an attempt's loop streams from. `turn` is the id of the turn at hand (I12)."""

    def __init__(self, *, claimed: Claimed, revision: AgentRevision, recorder: Recorder) -> None:
        self.inner: Provider | None = None
        """Who is asked; set anew where a key was read again."""
        self._claimed = claimed
        self._revision = revision
        self._recorder = recorder
        self._calls = 0
        self.turn: TurnId = turn_id(claimed.position, claimed.lane.claim, 0)
        self.failed_tries = claimed.lane.counters.tries

    async def stream(
        self, messages: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ProviderEvent]:
        """Stream one turn under a fresh turn id; calls get our ids (C26). Raises ProviderOverflow before the call."""
        if self.inner is None:
            raise ProviderFatal("there is no model provider to ask")
        self._calls += 1
        self.turn = turn = turn_id(self._claimed.position, self._claimed.lane.claim, self._calls)
        system = self._revision.system_prompt
        request = in_call_order(messages)
        if system:
            request.insert(0, ProviderMessage(role="system", content=system))
        self._check_size(request, tools)
        started = False
        events = self.inner.stream(request, tools)
        try:
            async for event in events:
                if not started:
                    started = True
                    self._stage_started(turn)
                if isinstance(event, CompletionEnd):
                    event = replace(event, message=self._our_own(event.message, turn))
                    self.failed_tries = 0
                yield event
        finally:
            close = getattr(events, "aclose", None)  # the model's call ends now, not when the collector finds it
            if close is not None:
                await close()

    def _our_own(self, message: ProviderMessage, turn: TurnId) -> ProviderMessage:
        calls = tuple(
            replace(call, id=call_id(turn, index), provider_call_id=call.provider_call_id or call.id or None)
            for index, call in enumerate(message.tool_calls)
        )
        return clean_message(replace(message, tool_calls=calls))

    def _stage_started(self, turn: TurnId) -> None:
        payload = AssistantMessageStarted(
            model=self._revision.model.name, try_=self.failed_tries + 1, revision=self._claimed.revision
        )
        self._recorder.stage(self._recorder.draft(payload, turn), open_turn=turn)

    def _check_size(self, request: Sequence[ProviderMessage], tools: Sequence[ToolDefinition]) -> None:
        window = self._revision.model.context_window
        told = sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in tools)
        system = len(self._revision.system_prompt)
        said = sum(len(message.content) + sum(len(str(c.arguments)) for c in message.tool_calls) for message in request)
        images = sum(len(message.image_data_urls) for message in request)
        tokens = (said + told) // CHARACTERS_PER_TOKEN + images * TOKENS_PER_IMAGE
        if tokens > window:
            fixed = (system + told) // CHARACTERS_PER_TOKEN
            raise ProviderOverflow(
                f"the request is about {tokens} tokens, {fixed} of them system prompt and tools; "
                f"model.contextWindow is {window}"
            )
