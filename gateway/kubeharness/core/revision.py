"""What compile gives and a worker runs: immutable, addressed by the hash of its canonical JSON.

Secrets are named here, never held. A reference in it is relative to the namespace of the run.
"""

from dataclasses import dataclass, field
from typing import Literal

from kubeharness.core.ids import RevisionId
from kubeharness.core.json import JsonObject

FORMAT = 1
"""The number of this shape. A worker skips revisions of a format that it cannot read."""

ProviderType = Literal["OpenAICompatible", "Scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKeyRef:
    """A key of a Secret in the run's namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderSpec:
    """A header whose value is written out, or comes from a Secret."""

    name: str
    value: str | None = None
    secret: SecretKeyRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSpec:
    """A ModelProvider as a run needs it."""

    name: str
    type: ProviderType
    base_url: str | None = None
    api_key: SecretKeyRef | None = None
    scripted: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicy:
    """What the platform says of one tool of a server."""

    name: str
    idempotent: bool = False
    timeout_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerSpec:
    """A ToolServer as a run needs it. Its catalogue is a check's result, not part of this."""

    name: str
    url: str
    headers: tuple[HeaderSpec, ...] = ()
    required: bool = True
    policies: tuple[ToolPolicy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGrant:
    """One entry of an Agent's tools: a built-in, or the tools of a server (all, or those included)."""

    name: str
    builtin: str | None = None
    server: ToolServerSpec | None = None
    include: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model, and how it is asked."""

    name: str
    context_window: int
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """The budgets of a submission (I10)."""

    max_attempts: int = 10
    submission_timeout_seconds: int = 3600
    max_turns: int = 32
    model_retries: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRevision:
    """Everything that decides how an attempt runs."""

    format: int = FORMAT
    agent: str
    description: str = ""
    provider: ProviderSpec
    model: ModelSettings
    system_prompt: str = ""
    tools: tuple[ToolGrant, ...] = ()
    durability: Durability = field(default_factory=Durability)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRevision:
    """A revision as it is kept: its id is `sha256:` and the hash of `body`, which names its parts by digest."""

    id: RevisionId
    format: int
    body: bytes
    parts: dict[str, bytes] = field(default_factory=dict)
    """Digest → canonical JSON of prompt, provider and tool servers; each is stored once."""
