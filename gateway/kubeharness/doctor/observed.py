"""What the probes saw through one URL: facts alone, no judgement."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer, or why there was none."""

    status: int = 0
    """0: no answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    said: str = ""
    """`error` of a problem of ours, else the start of the body, or what kept the answer away."""
    code: str = ""
    """`code` of a problem of ours; empty for what another answered."""
    ours: bool = False
    """The body has the shape of the gateway's answers: it was not a hop that answered."""
    body: Mapping[str, object] = field(default_factory=dict)

    @property
    def hop(self) -> str:
        """Who the headers say passed the answer on: the gateway itself sends none of them."""
        named = [f"{name}: {self.headers[name]}" for name in ("via", "server", "x-served-by") if name in self.headers]
        return ", ".join(named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One record of a stream: when the store took it in, and when it got here."""

    kind: str
    recorded: float
    """Seconds, by the database's clock."""
    arrived: float
    """Seconds since the stream was asked for, by ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A message that was sent, and the stream of what became of it."""

    sent: Answer
    location: str = ""
    """The path of the Location that came with the 202."""
    opened: Answer = field(default_factory=Answer)
    """Status and headers of the stream; its status is 0 if they never came."""
    arrivals: tuple[Arrival, ...] = ()
    settled: str = ""
    """`succeeded`, `failed`, or empty if no settlement came."""
    error: str = ""
    """The settlement's errorCode and error."""
    state: str = ""
    """What the gateway says of the submission, where no settlement came."""
    attempts: int = 0
    last_error: str = ""
    broke: str = ""
    """What ended the stream before the settlement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One stream on which nothing was to come but heartbeats."""

    opened: Answer
    first: float | None = None
    """When the first byte arrived, in seconds since the stream was asked for; the gateway sends some at once."""
    heartbeats: tuple[float, ...] = ()
    """When they arrived, counted alike."""
    cut_after: float | None = None
    """When the connection ended although we still listened."""
    silence: float = 0.0
    """How long nothing had come when the connection, or the watch, ended."""
    watched: float = 0.0
    how: str = ""
    """How it ended, in the transport's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that was seen through one URL."""

    url: str
    agent_name: str
    health: Answer = field(default_factory=Answer)
    ready: Answer = field(default_factory=Answer)
    agent: Answer = field(default_factory=Answer)
    talk: Talk | None = None
    idle: tuple[Idle, ...] = ()
    """A second one where the first was cut: once may be chance."""

    @property
    def workers(self) -> int | None:
        """Live workers, if the gateway said so."""
        found = self.agent.body.get("workers")
        return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the probes watch."""

    watch_seconds: float = 30.0
    """The idle stream. The gateway's heartbeat, every 12 s, has to fall into it."""
    claim_seconds: float = 12.0
    """From the 202 to the first sign of a worker."""
    talk_seconds: float = 45.0
    """From the 202 to the settlement."""
