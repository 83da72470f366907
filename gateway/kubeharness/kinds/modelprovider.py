"""Kind ModelProvider: where models are served, and with which credential. Also the Scripted one's script."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from kubeharness.kinds.common import (
    ATOMIC,
    INSECURE,
    NAME_IS_A_LABEL,
    Column,
    Insecure,
    Kind,
    Names,
    Part,
    Raw,
    Rule,
    SecretKeyRef,
    ToolName,
    Url,
    has,
    https_unless_allowed,
    immutable,
    list_map,
    one_of,
)
from kubeharness.kinds.conditions import PENDING, Condition

Text = Annotated[str, Field(max_length=8_192)]
Needle = Annotated[str, Field(min_length=1, max_length=1_024)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000)]
Ordinal = Annotated[int, Field(ge=1, le=1_000)]
PLACEHOLDERS = "{{input}}, {{tool}}, {{turn}}, {{system}}, {{model}} and {{call}} are filled in."


class When(Part):
    """Conditions of a rule; those that are set must all hold."""

    contains: Needle | None = Field(None, description="The last user or signal text contains this, in any case.")
    turn: Ordinal | None = Field(None, description="The turn of the model since that message, counted from 1.")
    after_tool: ToolName | None = Field(None, description="The tool whose outcome came last.")
    try_: Ordinal | None = Field(
        None, description="1 and the failed tries of this turn; a completed message starts anew, a kill adds none."
    )
    model: Needle | None = Field(None, description="The name of the model that is asked.")
    system_contains: Needle | None = Field(None, description="The system prompt contains this.")


class ScriptedCall(Part):
    """A call that the model makes."""

    name: ToolName = Field(description="Name of the tool.")
    arguments: dict[str, Any] = Field(
        {},
        max_length=64,
        description=f"The arguments, any JSON object. In strings {PLACEHOLDERS}",
    )


class ScriptedError(Part):
    """An error that the model wire answers with."""

    kind: Literal["Transient", "Overflow", "Fatal", "Auth"] = Field(
        description="Transient is tried again, Overflow says the context is too long, Fatal and Auth end the run."
    )
    message: Annotated[str, Field(max_length=1_024)] = Field("scripted error", description="What the wire says.")
    retry_after_seconds: Annotated[int, Field(ge=0, le=3_600)] | None = Field(
        None, description="How long the wire asks to wait before the next try."
    )


class ScriptedUsage(Part):
    """Tokens that the answer claims to have cost."""

    input: Count = Field(0, description="Tokens read.")
    output: Count = Field(0, description="Tokens written.")


class Step(Part):
    """One thing that the model does."""

    reasoning: Text | None = Field(None, description=f"Thinks this, streamed. {PLACEHOLDERS}")
    text: Text | None = Field(None, description=f"Says this, streamed. {PLACEHOLDERS}")
    tool_call: ScriptedCall | None = Field(None, description="Calls a tool.")
    delay_milliseconds: Annotated[int, Field(ge=0, le=600_000)] | None = Field(
        None, description="Waits before the next step."
    )
    error: ScriptedError | None = Field(None, description="Fails the turn here.")
    end: Literal["Length", "Refusal", "Cut"] | None = Field(
        None, description="Ends the turn early: at the token limit, by refusing, or with the stream cut off."
    )
    usage: ScriptedUsage | None = Field(None, description="Reports what the answer cost.")

    RULES: ClassVar = (one_of("reasoning", "text", "toolCall", "delayMilliseconds", "error", "end", "usage"),)


class ScriptedRule(Part):
    """What the model does in one situation."""

    when: When = Field(When(), description="The situation. Absent or empty: any.")
    steps: list[Step] = Field(
        min_length=1, max_length=32, description="What the model does, in order.", json_schema_extra=ATOMIC
    )


class Script(Part):
    """A model without a model: a pure function of the request."""

    chunk_characters: int = Field(12, ge=1, le=8_192, description="Characters of one streamed delta.")
    chunk_delay_milliseconds: int = Field(0, ge=0, le=60_000, description="Pause between two deltas.")
    rules: list[ScriptedRule] = Field(
        default_factory=list,
        max_length=64,
        description="The first rule whose conditions all hold is played. None fits: 'You said: {{input}}'.",
        json_schema_extra=ATOMIC,
    )


def _fits(spec: Raw, field: str, of: str) -> bool:
    """The field is there for this type only; a type that is none of ours is the schema's business."""
    return spec.get("type") not in ("OpenAICompatible", "Scripted") or has(spec, field)[0] == (spec["type"] == of)


class ModelProviderSpec(Part):
    """Where the models are served."""

    type: Literal["OpenAICompatible", "Scripted"] = Field(
        description="The wire. Scripted answers from its script and needs no network. Cannot be changed.",
        json_schema_extra=immutable("type"),
    )
    base_url: Url | None = Field(
        None,
        alias="baseURL",
        description="Root of the API, to which the client adds /chat/completions. Only for OpenAICompatible.",
    )
    insecure: Insecure = Field("Deny", description=INSECURE)
    api_key_secret_ref: SecretKeyRef | None = Field(
        None, description="The key of a Secret that holds the API key. Absent: requests carry none."
    )
    scripted: Script | None = Field(None, description="The script. Only for Scripted.")

    RULES: ClassVar = (
        Rule(
            cel="has(self.baseURL) == (self.type == 'OpenAICompatible')",
            message="baseURL is required for type OpenAICompatible and must be absent for others",
            field="baseURL",
            holds=lambda spec: _fits(spec, "baseURL", "OpenAICompatible"),
        ),
        Rule(
            cel="has(self.scripted) == (self.type == 'Scripted')",
            message="scripted is required for type Scripted and must be absent for others",
            field="scripted",
            holds=lambda spec: _fits(spec, "scripted", "Scripted"),
        ),
        Rule(
            cel="!has(self.apiKeySecretRef) || self.type != 'Scripted'",
            message="type Scripted takes no API key",
            field="apiKeySecretRef",
            holds=lambda spec: not has(spec, "apiKeySecretRef")[0] or spec.get("type") != "Scripted",
        ),
        https_unless_allowed("baseURL"),
    )


class ModelProviderStatus(Part):
    """What the operator saw."""

    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        None, description="The generation of the spec that the status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Accepted, ResolvedRefs, Ready.",
        json_schema_extra=list_map("type"),
    )


class ModelProvider(Kind):
    """A service of models, and the credential for it."""

    names: ClassVar = Names(
        kind="ModelProvider",
        plural="modelproviders",
        short="khm",
        columns=(
            Column(name="READY", path='.status.conditions[?(@.type=="Ready")].status'),
            Column(name="REASON", path='.status.conditions[?(@.type=="Ready")].reason'),
            Column(name="TYPE", path=".spec.type"),
            Column(name="URL", path=".spec.baseURL", wide=True),
            Column(name="MESSAGE", path='.status.conditions[?(@.type=="Ready")].message', wide=True),
            Column(name="AGE", path=".metadata.creationTimestamp", type="date"),
        ),
    )
    RULES: ClassVar = (NAME_IS_A_LABEL,)

    spec: ModelProviderSpec = Field(description="Where the models are served.")
    status: ModelProviderStatus = Field(ModelProviderStatus(conditions=[PENDING]), description="What the operator saw.")
