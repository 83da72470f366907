"""Kind ToolServer: where tools are served, with which credentials, and what the platform says of single tools."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeharness.kinds.common import (
    INSECURE,
    NAME_IS_A_LABEL,
    Column,
    Insecure,
    Kind,
    Names,
    ObjectName,
    Part,
    Raw,
    Rule,
    SecretKeyRef,
    ToolName,
    Url,
    https_unless_allowed,
    immutable,
    list_map,
    one_of,
)
from kubeharness.kinds.conditions import PENDING, Condition

OWN_HEADERS = ("accept", "connection", "content-length", "content-type", "host", "transfer-encoding")
"""What the transport sets itself."""


def _not_a_header_of_ours(header: Raw) -> bool:
    name = header.get("name")
    return not isinstance(name, str) or name.lower() not in OWN_HEADERS


class ServiceRef(Part):
    """A Service in the same namespace, reached as http://name.namespace.svc:port/path."""

    name: ObjectName = Field(description="Name of the Service, in the same namespace.")
    port: int = Field(ge=1, le=65_535, description="Port of the Service.")
    path: str = Field("/mcp", min_length=1, max_length=1_024, pattern="^/[!-~]*$", description="Path of the endpoint.")


class Header(Part):
    """A header of every request to the server."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern="^[A-Za-z0-9_-]+$")] = Field(
        description="Name of the header."
    )
    value: Annotated[str, Field(max_length=4_096, pattern="^[ -~]*$")] | None = Field(
        None, description="The value, for what is no secret."
    )
    secret_key_ref: SecretKeyRef | None = Field(None, description="The key of a Secret that holds the value.")

    RULES: ClassVar = (
        one_of("value", "secretKeyRef"),
        Rule(
            cel=f"!(self.name.lowerAscii() in {list(OWN_HEADERS)})",
            message=f"the transport sets this header itself: {', '.join(OWN_HEADERS)}",
            field="name",
            holds=_not_a_header_of_ours,
        ),
    )


class Discovery(Part):
    """How the list of tools is kept fresh."""

    interval_seconds: int = Field(300, ge=10, le=86_400, description="Seconds between two good discoveries.")
    mode: Literal["Required", "Optional"] = Field(
        "Required",
        description="Required: an agent waits until the tools are known. Optional: it runs with what is known.",
    )


class ToolPolicySpec(Part):
    """What the platform says of one tool."""

    name: ToolName = Field(description="Name of the tool, as the server calls it.")
    idempotent: bool = Field(
        False,
        description="True: a call that was cut off by a crash is made again. False: it is reported as interrupted.",
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = Field(
        None, description="Seconds after which a call counts as failed. Absent: the worker's default."
    )


class ToolServerSpec(Part):
    """Where the tools are served."""

    type: Literal["MCP"] = Field(description="The protocol. Cannot be changed.", json_schema_extra=immutable("type"))
    url: Url | None = Field(None, description="The endpoint, instead of serviceRef.")
    service_ref: ServiceRef | None = Field(None, description="A Service in the same namespace, instead of url.")
    insecure: Insecure = Field("Deny", description=INSECURE)
    transport: Literal["StreamableHTTP"] = Field("StreamableHTTP", description="How MCP is carried.")
    headers: list[Header] = Field(
        default_factory=list,
        max_length=32,
        description="Headers of every request to the server.",
        json_schema_extra=list_map(),
    )
    discovery: Discovery = Field(Discovery(), description="How the list of tools is kept fresh.")
    tools: list[ToolPolicySpec] = Field(
        default_factory=list,
        max_length=256,
        description="What the platform says of single tools. A tool that is not named here has the defaults.",
        json_schema_extra=list_map(),
    )

    RULES: ClassVar = (one_of("url", "serviceRef"), https_unless_allowed("url"))


class ToolServerStatus(Part):
    """What the operator saw."""

    observed_generation: Annotated[int, Field(ge=0)] | None = Field(
        None, description="The generation of the spec that the status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=16,
        description="Accepted, ResolvedRefs, Reachable, Ready.",
        json_schema_extra=list_map("type"),
    )


class ToolServer(Kind):
    """A service of tools, and the credentials for it."""

    names: ClassVar = Names(
        kind="ToolServer",
        plural="toolservers",
        short="kht",
        columns=(
            Column(name="READY", path='.status.conditions[?(@.type=="Ready")].status'),
            Column(name="REASON", path='.status.conditions[?(@.type=="Ready")].reason'),
            Column(name="REACHABLE", path='.status.conditions[?(@.type=="Reachable")].status'),
            Column(name="TYPE", path=".spec.type"),
            Column(name="URL", path=".spec.url", wide=True),
            Column(name="MESSAGE", path='.status.conditions[?(@.type=="Ready")].message', wide=True),
            Column(name="AGE", path=".metadata.creationTimestamp", type="date"),
        ),
    )
    RULES: ClassVar = (NAME_IS_A_LABEL,)

    spec: ToolServerSpec = Field(description="Where the tools are served.")
    status: ToolServerStatus = Field(ToolServerStatus(conditions=[PENDING]), description="What the operator saw.")
