"""What the API is told at its start; the process's settings fill it in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Limits and names of one gateway."""

    default_namespace: str = "default"
    """What the bare paths mean."""
    root_path: str = ""
    """The path prefix that the API is served under, whether or not a proxy takes it off."""
    wait_seconds: float = 50.0
    """The longest `?wait=true`: below the time after which common proxies give up."""
    max_body_bytes: int = 8_388_608
    body_seconds: float = 30.0
    """A request's body has to arrive within this."""
    allowed_origins: frozenset[str] = frozenset()
    """Origins of browsers that may write, beside the API's own."""
    heartbeat_seconds: float = 12.0
    retry_milliseconds: int = 2000
    """When an EventSource comes back after a cut."""
    write_seconds: float = 30.0
    """A reader that takes nothing for so long is cut off; it can come back by its offset (C24)."""
    max_streams: int = 10_000
    max_streams_per_principal: int = 5_000
