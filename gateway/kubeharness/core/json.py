"""The type of a JSON value, for the places where JSON enters or is passed on unread."""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Json: TypeAlias = "None | bool | int | float | str | list[Json] | dict[str, Json]"
    JsonObject: TypeAlias = "dict[str, Json]"
else:  # a recursive alias has no run-time form in 3.11 that pydantic reads
    Json = Any
    JsonObject = dict[str, Any]
