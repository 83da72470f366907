"""Kind Agent: what an agent is made of. Only fields that a run honours."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeharness.kinds.common import (
    NAME_IS_A_LABEL,
    SET,
    Column,
    ConfigMapKeyRef,
    DnsLabel,
    Kind,
    Names,
    ObjectRef,
    Part,
    Raw,
    Rule,
    ToolName,
    list_map,
    one_of,
)
from kubeharness.kinds.conditions import PENDING, Condition

PROMPT_LIMIT = 32_768
"""Characters of a system prompt, written out or from a ConfigMap."""

Temperature = Annotated[str, Field(max_length=6, pattern="^(2([.]0{1,4})?|[01]([.][0-9]{1,4})?)$")]
Share = Annotated[str, Field(max_length=6, pattern="^(1([.]0{1,4})?|0([.][0-9]{1,4})?)$")]


def _window_holds_output(model: Raw) -> bool:
    most, window = model.get("maxTokens"), model.get("contextWindow")
    return not (isinstance(most, int) and isinstance(window, int)) or most < window


class AgentModel(Part):
    """Which model answers, and how it is asked."""

    provider_ref: ObjectRef = Field(description="The ModelProvider that serves the model.")
    name: Annotated[str, Field(min_length=1, max_length=253, pattern="^[!-~]+$")] = Field(
        description="Name of the model, as the provider calls it."
    )
    context_window: Annotated[int, Field(ge=1_024, le=10_000_000)] = Field(
        description="Tokens that the model takes in, prompt and answer together."
    )
    max_tokens: Annotated[int, Field(ge=1, le=9_999_999)] | None = Field(
        None, description="Most tokens of one answer. Absent: the provider decides."
    )
    temperature: Temperature | None = Field(
        None, description="Sampling temperature, a decimal from 0 to 2 in quotes. Absent: the provider decides."
    )
    top_p: Share | None = Field(
        None, description="Nucleus sampling, a decimal from 0 to 1 in quotes. Absent: the provider decides."
    )
    reasoning_effort: Literal["Low", "Medium", "High"] | None = Field(
        None, description="How long the model may think. Absent: the provider decides."
    )

    RULES: ClassVar = (
        Rule(
            cel="!has(self.maxTokens) || self.maxTokens < self.contextWindow",
            message="maxTokens must be less than contextWindow",
            field="maxTokens",
            holds=_window_holds_output,
        ),
    )


class PromptSource(Part):
    """Where a system prompt lies that is not written in the Agent."""

    config_map_key_ref: ConfigMapKeyRef = Field(
        description=f"The key of a ConfigMap that holds the prompt, at most {PROMPT_LIMIT:,} characters. "
        "An edit of it is a new revision."
    )


class ToolServerGrant(Part):
    """The tools of a ToolServer, all or some."""

    ref: ObjectRef = Field(description="The ToolServer.")
    include: list[ToolName] = Field(
        default_factory=list,
        max_length=64,
        description="Names of the tools that the agent may use. Absent: all that the server offers.",
        json_schema_extra=SET,
    )


class BuiltinGrant(Part):
    """A tool that the worker brings along."""

    name: Literal["clock"] = Field(description="Which one. clock: the time in UTC.")


class Tool(Part):
    """One entry of what an agent may use."""

    name: DnsLabel = Field(description="Name of this entry, unique in the list; conditions and patches use it.")
    tool_server: ToolServerGrant | None = Field(None, description="The tools of a ToolServer.")
    builtin: BuiltinGrant | None = Field(None, description="A tool that the worker brings along.")

    RULES: ClassVar = (one_of("toolServer", "builtin"),)


class DurabilitySpec(Part):
    """The budgets of one submission."""

    max_attempts: int = Field(
        10, ge=1, le=100, description="Failed attempts after which a submission settles as failed."
    )
    submission_timeout_seconds: int = Field(
        3600, ge=1, le=2_592_000, description="Seconds from admission after which a submission settles as failed."
    )
    max_turns: int = Field(32, ge=1, le=1_000, description="Calls of the model that one submission may make.")


class AgentSpec(Part):
    """What the agent is made of."""

    description: Annotated[str, Field(max_length=1_024)] | None = Field(
        None, description="What the agent is for, in a sentence or two."
    )
    model: AgentModel = Field(description="Which model answers, and how it is asked.")
    system_prompt: Annotated[str, Field(max_length=PROMPT_LIMIT)] | None = Field(None, description="The system prompt.")
    system_prompt_from: PromptSource | None = Field(
        None, description="Where the system prompt lies, instead of systemPrompt."
    )
    tools: list[Tool] = Field(
        default_factory=list,
        max_length=64,
        description="What the agent may use.",
        json_schema_extra=list_map(),
    )
    durability: DurabilitySpec = Field(DurabilitySpec(), description="The budgets of one submission.")

    RULES: ClassVar = (one_of("systemPrompt", "systemPromptFrom"),)


class ToolCounts(Part):
    """How many of the Agent's tool entries are usable."""

    resolved: int = Field(ge=0, description="Entries whose tools are known.")
    total: int = Field(ge=0, description="Entries in spec.tools.")


Revision = Annotated[str, Field(max_length=128)]


class AgentStatus(Part):
    """What the operator saw. Never prompts, runs or secrets."""

    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        None, description="The generation of the spec that the status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Accepted, ResolvedRefs, Programmed, Ready, Available; Stalled and Reconciling while they hold.",
        json_schema_extra=list_map("type"),
    )
    desired_revision: Revision | None = Field(
        None, description="What the newest generation compiled to; absent while it does not compile or resolve."
    )
    active_revision: Revision | None = Field(None, description="The revision that new submissions run on.")
    tools: ToolCounts | None = Field(None, description="How many of the tool entries are usable.")


class Agent(Kind):
    """An LLM agent: a model, a prompt, tools and budgets. Its conversations are durable."""

    names: ClassVar = Names(
        kind="Agent",
        plural="agents",
        short="kha",
        columns=(
            Column(name="READY", path='.status.conditions[?(@.type=="Ready")].status'),
            Column(name="REASON", path='.status.conditions[?(@.type=="Ready")].reason'),
            Column(name="AVAILABLE", path='.status.conditions[?(@.type=="Available")].status'),
            Column(name="MODEL", path=".spec.model.name"),
            Column(name="REVISION", path=".status.activeRevision", wide=True),
            Column(name="MESSAGE", path='.status.conditions[?(@.type=="Ready")].message', wide=True),
            Column(name="AGE", path=".metadata.creationTimestamp", type="date"),
        ),
    )
    RULES: ClassVar = (NAME_IS_A_LABEL,)

    spec: AgentSpec = Field(description="What the agent is made of.")
    status: AgentStatus = Field(AgentStatus(conditions=[PENDING]), description="What the operator saw.")
