"""Settings from the environment (prefix KUBEHARNESS_) or a `.env` file; only the env SecretSource reads it beside."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from kubeharness.core.ids import DEFAULT_NAMESPACE

AuthMode = Literal["token", "kubernetes", "none"]


class Settings(BaseSettings):
    """What every process of ours can be told. `kubeharness settings` prints them with secrets hidden."""

    model_config = SettingsConfigDict(env_prefix="KUBEHARNESS_", env_file=".env", extra="ignore")

    database_url: SecretStr | None = Field(None, description="postgresql://…, sqlite:///path or memory:")
    database_direct_url: SecretStr | None = Field(None, description="For LISTEN, where DATABASE_URL is a pooler's")
    database_pooled: bool = Field(False, description="DATABASE_URL goes through a transaction pooler")
    migration_url: SecretStr | None = Field(
        None, description="For migrate: a role that may change the schema; else DATABASE_DIRECT_URL or DATABASE_URL"
    )
    migrate_seconds: float = Field(60, ge=0, description="How long migrate tries a database that does not answer")
    app_role: str | None = Field(
        None, min_length=1, max_length=63, description="Postgres role of the pods: migrate grants it what they need"
    )
    host: str = Field("127.0.0.1", description="Address of gateway and dev")
    port: int = Field(8484, ge=0, le=65535, description="Port of gateway and dev")
    health_port: int = Field(8481, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics")
    health_host: str = Field("127.0.0.1", description="Address of the health port")
    root_path: str = Field("", description="Path prefix that the gateway is served under")
    installation_id: str = Field("publish", min_length=1, description="A database belongs to one installation")
    default_namespace: str = Field(DEFAULT_NAMESPACE, description="What the bare paths mean")
    auth: Annotated[tuple[AuthMode, ...], NoDecode] = Field(
        ("token",), min_length=1, description="Comma list of token and kubernetes, or none alone"
    )
    auth_audiences: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Comma list: whom a Kubernetes token must be meant for; none: the API server itself"
    )
    auth_insecure: bool = Field(False, description="AUTH=none may listen beyond loopback: whoever comes may do all")
    tokens_file: Path | None = Field(None, description="JSON list of name, sha256, namespaces, rights")
    secrets: str | None = Field(None, description="kubernetes (default in a cluster), env (default else), or dir:PATH")
    secrets_grant: str = Field(
        "--clusterrole=kubeharness-worker-secrets --serviceaccount=kubeharness-system:kubeharness-worker",
        description="How an error tells an administrator to let workers read Secrets: a rolebinding's role and account",
    )
    lease_seconds: float = Field(30, gt=0, description="Renewal at a third")
    poll_milliseconds: int | None = Field(None, ge=10, description="Safety poll; worker 250, gateway 1000")
    sweep_milliseconds: int = Field(1000, ge=10, description="Sweep and reap")
    wait_seconds: float = Field(50, gt=0, description="Cap of ?wait=true")
    drain_seconds: float = Field(25, ge=0, description="What a worker may use to reach a seam")
    stream_close_seconds: float = Field(
        5, ge=0, le=300, description="Over how long a gateway that leaves ends its streams, each at a moment of its own"
    )
    pod_name: str | None = Field(
        None, description="The pod this runs in: a worker that is unready says so as its Event"
    )
    pod_namespace: str | None = Field(None, description="The pod's namespace; needed with POD_NAME")
    pod_uid: str | None = Field(None, description="The pod's uid; needed with POD_NAME")
    idempotency_seconds: int = Field(2_592_000, gt=0, description="How long dispatch keys are kept")
    max_body_bytes: int = Field(8_388_608, gt=0, description="Largest request body")
    worker_slots: int = Field(32, ge=1, description="Submissions at once in one worker")
    pool: str = Field("shared", description="Which lanes a worker claims")
    hints: bool = Field(True, description="NOTIFY; off leaves the safety poll alone (tests)")
    log_format: Literal["json", "text"] = Field("json", description="json, or text for people")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged")
    crash_point: str | None = Field(None, description="Tests only: where this worker kills itself")

    @field_validator("auth", "auth_audiences", mode="before")
    @classmethod
    def _comma_list(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    def database(self) -> str:
        """The DSN. Raises ValueError with the remedy if none is set."""
        if self.database_url is None:
            raise ValueError("set KUBEHARNESS_DATABASE_URL to postgresql://…, sqlite:///path or memory:")
        return _trimmed(self.database_url)

    def migrating(self) -> str:
        """The DSN of whoever may change the schema. Raises ValueError with the remedy if none is set."""
        return _trimmed(self.migration_url) if self.migration_url else self.direct() or self.database()

    def secret_source(self) -> str:
        """Where Secrets come from; a pod is told by the variable that Kubernetes gives every container."""
        return self.secrets or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else "env")

    def direct(self) -> str | None:
        """The DSN for LISTEN, if it is another."""
        return _trimmed(self.database_direct_url) if self.database_direct_url else None

    def poll_ms(self, role: Literal["gateway", "worker"]) -> int:
        """The safety poll of a role."""
        return self.poll_milliseconds or {"gateway": 1000, "worker": 250}[role]


def _trimmed(dsn: SecretStr) -> str:
    """Without the newline that a Secret made from a file ends with: it would be part of the database's name."""
    return dsn.get_secret_value().strip()
