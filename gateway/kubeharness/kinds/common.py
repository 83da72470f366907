"""What the kinds share: the base of every model, rules that hold offline and in CEL alike, references, conditions.

A model is the one source of a CRD. A fact that a schema cannot say is a `Rule`: its CEL goes into the CRD, its
Python half is applied to documents that never met an API server. Both halves stand in one place on purpose.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

GROUP = "kubeharness.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "kubeharness"

Raw = dict[str, Any]
"""A part of a document as it was written, before any check."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A fact about one part of a spec, as CEL for the API server and as Python for documents on disk."""

    cel: str
    message: str
    field: str = ""
    """The field below the part that the message is about (`fieldPath` in the CRD)."""
    holds: Callable[[Raw], bool] | None = None
    """Judges the part as written, nulls left out. None: a transition rule, which needs a server."""


class Part(BaseModel):
    """Base of every model: camelCase outside, closed, frozen, no conversion between types."""

    model_config = ConfigDict(
        alias_generator=lambda name: to_camel(name.rstrip("_")),
        extra="forbid",
        frozen=True,
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> Raw:
        """The schema with the rules in it."""
        schema = handler(core_schema)
        if cls.RULES:
            handler.resolve_ref_schema(schema)["x-kubernetes-validations"] = [
                {
                    "rule": rule.cel,
                    "message": rule.message,
                    **({"fieldPath": f".{rule.field}"} if rule.field else {}),
                }
                for rule in cls.RULES
            ]
        return schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What `kubectl get` prints of an object; a wide one only with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How the API server calls a kind."""

    kind: str
    plural: str
    short: str
    columns: tuple[Column, ...]

    @property
    def crd(self) -> str:
        """The CRD's own name."""
        return f"{self.plural}.{GROUP}"


class Kind(Part):
    """Base of the kinds: `spec` and `status` of an object of ours."""

    names: ClassVar[Names]


def has(part: Raw, *fields: str) -> list[bool]:
    """Which of the fields are set."""
    return [part.get(field) is not None for field in fields]


def one_of(*fields: str) -> Rule:
    """Exactly one member of a union is set."""
    listed = ", ".join(f"has(self.{field})" for field in fields)
    cel = (
        f"has(self.{fields[0]}) != has(self.{fields[1]})"
        if len(fields) == 2
        else f"[{listed}].filter(x, x).size() == 1"
    )
    return Rule(
        cel=cel,
        message=f"set exactly one of {', '.join(fields)}",
        holds=lambda part: sum(has(part, *fields)) == 1,
    )


def immutable(what: str) -> Raw:
    """The schema of a required field that keeps its first value."""
    return {
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": f"{what} cannot be changed; create another object"}
        ]
    }


def list_map(key: str = "name") -> Raw:
    """The schema of a list whose entries are told apart by a field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


ATOMIC: Raw = {"x-kubernetes-list-type": "atomic"}
SET: Raw = {"x-kubernetes-list-type": "set"}

_HTTPS = "^https://[^/?#@]+([/?#]|$)"
_HTTP = "^http://[^/?#@]+([/?#]|$)"
_IN_CLUSTER = "^http://[a-z0-9-]+[.][a-z0-9-]+[.]svc([.]cluster[.]local)?(:[0-9]{1,5})?([/?#]|$)"


def https_unless_allowed(field: str) -> Rule:
    """The URL is https, or http inside the cluster, or http anywhere with `insecure: Allow`."""
    value = f"self.{field}"
    return Rule(
        cel=(
            f"!has({value}) || {value}.matches('{_HTTPS}') || ({value}.matches('{_HTTP}') && "
            f"(self.insecure == 'Allow' || {value}.matches('{_IN_CLUSTER}')))"
        ),
        message="use https, or http to a Service (http://name.namespace.svc), or set insecure: Allow",
        field=field,
        holds=lambda part: _url_allowed(part.get(field), part.get("insecure")),
    )


def _url_allowed(url: object, insecure: object) -> bool:
    if not isinstance(url, str) or _matches(_HTTPS, url):
        return True  # absent, or wrong in a way that the schema names
    return _matches(_HTTP, url) and (insecure == "Allow" or _matches(_IN_CLUSTER, url))


def _matches(pattern: str, text: str) -> bool:
    """RE2's `$` is the end of the text; Python's also stands before a last newline."""
    return re.match(pattern.replace("$", r"\Z"), text) is not None


# --- bounded values ----------------------------------------------------------------------------------------------

DnsLabel = Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""The name of an object of ours."""

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of a Secret, ConfigMap or Service."""

DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$")]
"""A key in the data of a Secret or ConfigMap."""

Url = Annotated[str, Field(min_length=8, max_length=2048, pattern="^https?://[!-~]+$")]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern="^[!-~]+$")]
Insecure = Literal["Deny", "Allow"]

INSECURE = "Allow permits plain http to hosts outside the cluster; what is sent can then be read on the way."

NAME_IS_A_LABEL = Rule(
    cel="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
    message="metadata.name must be a DNS label: 1-63 of a-z, 0-9 and '-', no '-' at either end",
    holds=None,  # manifests and compiler check names beside the spec
)
"""Every object of ours: an Agent's name stands in URLs, and every other name follows it."""


# --- references --------------------------------------------------------------------------------------------------


class ObjectRef(Part):
    """Another object of ours in the same namespace."""

    name: DnsLabel = Field(description="Name of the object, in the same namespace.")


class ConfigMapKeyRef(Part):
    """A key of a ConfigMap in the same namespace."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the same namespace.")
    key: DataKey = Field(description="Key in the ConfigMap's data.")


class SecretKeyRef(Part):
    """A key of a Secret in the same namespace; read by workers at each claim, never by the operator."""

    name: ObjectName = Field(description="Name of the Secret, in the same namespace.")
    key: DataKey = Field(description="Key in the Secret's data.")
