"""YAML text → JSON documents and their lines, as strictly as an API server reads it. A bad one stops no other."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from kubeharness.core.json import Json

_MARK = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_DEPTH = 64
_NODES = 200_000


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, or why it is none."""

    line: int
    """Of its first line with content, or where it broke."""
    value: Json = None
    error: str | None = None


class _Loader(yaml.SafeLoader):
    """YAML as JSON: a date stays the text that it was written as."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _NotJsonError(Exception):
    """A node that JSON cannot say."""

    def __init__(self, node: yaml.Node, why: str) -> None:
        super().__init__(why)
        self.line: int = node.start_mark.line


def parse(text: str) -> Iterator[Document]:
    """The documents of a file in order; empty ones are left out."""
    starts = [0, *(match.start() for match in _MARK.finditer(text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        above = text.count("\n", 0, start)
        found = _parse_one(text[start:end], above)
        if found is not None:
            yield found


def _parse_one(text: str, above: int) -> Document | None:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        value = _Json(loader).value(node, _DEPTH)
        return None if value is None else Document(above + node.start_mark.line + 1, value)
    except _NotJsonError as error:
        return Document(above + error.line + 1, error=str(error))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return Document(above + (mark.line if mark else 0) + 1, error=f"is not YAML: {error.problem}")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        first = str(error).split("\n", 1)[0]
        return Document(above + 1, error=f"is not YAML: {first}")


class _Json:
    """Nodes to JSON, with the limits that keep a document of aliases from filling the memory."""

    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._left = _NODES
        self._flat: set[int] = set()

    def value(self, node: yaml.Node, depth: int) -> Json:
        """The node as JSON. Raises _NotJsonError."""
        self._left -= 1
        if depth == 0 or self._left < 0:
            raise _NotJsonError(node, "is nested too deeply, or too large")
        match node:
            case yaml.MappingNode():
                return self._object(node, depth - 1)
            case yaml.SequenceNode():
                return [self.value(item, depth - 1) for item in node.value]
            case _:
                return self._scalar(node)

    def _object(self, node: yaml.MappingNode, depth: int) -> Json:
        if id(node) not in self._flat:  # an alias brings the same node again
            self._flat.add(id(node))
            _unique(node)
            self._loader.flatten_mapping(node)  # merge keys; what is written here wins
        return {str(key.value): self.value(value, depth) for key, value in node.value}

    def _scalar(self, node: yaml.Node) -> Json:
        try:
            value: Any = self._loader.construct_object(node)
        except ValueError as error:
            raise _NotJsonError(node, f"is not YAML: {error}") from error
        match value:
            case None | bool() | str() | int():
                return value
            case float() if math.isfinite(value):
                return value
            case bytes():
                return str(node.value)  # !!binary: the text as it was written
            case _:
                raise _NotJsonError(node, "is no value that JSON knows")


def _unique(node: yaml.MappingNode) -> None:
    """Every key is a scalar and stands once. Raises _NotJsonError."""
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _NotJsonError(key, "a key must be a string")
        if key.value in seen:
            raise _NotJsonError(key, f"key {key.value!r} is given twice; keep one of the two")
        seen.add(key.value)
