"""The operator's settings: the environment with the prefix KUBEHARNESS_, or a `.env` file. Nobody else reads it."""

import re
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class OperatorSettings(BaseSettings):
    """What an operator process is told."""

    model_config = SettingsConfigDict(
        env_prefix="KUBEHARNESS_", env_file=".env", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    database_url: SecretStr = Field(description="postgresql://… of the store that gateways and workers read.")
    database_direct_url: SecretStr | None = Field(
        None, description="The same database for LISTEN, when DATABASE_URL goes through a pooler."
    )
    database_pooled: bool = Field(False, description="DATABASE_URL goes through a transaction pooler.")
    namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Comma list of the namespaces that are served. Empty: all."
    )
    installation_id: str = Field(
        "kubeharness", min_length=1, max_length=128, description="Whose the database is; another's is refused."
    )
    health_host: str = Field("127.0.0.1", description="Address of the health port; in a pod 0.0.0.0.")
    health_port: int = Field(8481, ge=0, le=65_535, description="/healthz, /readyz, /metrics.")
    watch_silence_seconds: int = Field(
        70,
        ge=1,
        le=3600,
        description="How long a watch may be silent before it is opened anew; a server speaks each 60.",
    )
    pod_name: str | None = Field(
        None, description="The pod this runs in: while it is unready, an Event on it says why."
    )
    pod_namespace: str | None = Field(None, description="The pod's namespace; needed with POD_NAME.")
    pod_uid: str | None = Field(None, description="The pod's uid; needed with POD_NAME.")
    log_format: Literal["json", "text"] = Field("json", description="How log lines look.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="From which level on.")

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """From `a, b` to its names, each at most once."""
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))

    @field_validator("namespaces")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not DNS_LABEL.match(name):
                raise ValueError(f"{name!r} is no name of a namespace")
        return value

    def database(self) -> str:
        """The DSN, without the newline that a Secret made from a file ends with."""
        return self.database_url.get_secret_value().strip()

    def direct(self) -> str:
        """The DSN for LISTEN: the same, unless it is said apart."""
        return self.database_direct_url.get_secret_value().strip() if self.database_direct_url else self.database()
