"""What a tool server offers, as a check keeps it and an attempt reads it. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from kubeharness.core.json import Json, JsonObject
from kubeharness.core.text import as_object


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One tool as its server describes it. `idempotent_hint` is the server's word, which decides nothing."""

    name: str
    description: str
    input_schema: JsonObject
    idempotent_hint: bool = False


def catalogue_json(entries: Iterable[CatalogueEntry]) -> JsonObject:
    """The result of a check of kind tools."""
    return {
        "tools": [
            {
                "name": entry.name,
                "description": entry.description,
                "inputSchema": entry.input_schema,
                "idempotentHint": entry.idempotent_hint,
            }
            for entry in entries
        ]
    }


def read_catalogue(value: Json) -> list[CatalogueEntry] | None:
    """The entries of such a result, or None if it is none; an entry that cannot be read is left out."""
    tools = (as_object(value) or {}).get("tools")
    if not isinstance(tools, list):
        return None
    found = []
    for tool in tools:
        entry = as_object(tool) or {}
        name, schema = entry.get("name"), as_object(entry.get("inputSchema"))
        if isinstance(name, str) and name and schema is not None:
            description, hint = entry.get("description"), entry.get("idempotentHint")
            found.append(
                CatalogueEntry(name, description if isinstance(description, str) else "", schema, hint is True)
            )
    return found
