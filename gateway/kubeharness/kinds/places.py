"""Where in a file a field of a document stands (pure): problems name fields, people look for lines."""

import re

import yaml

_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def line_of(text: str, line: int, field: str) -> int:
    """The line of a field in the document that begins at `line`; of the nearest part around it that is there.

    A field that is missing has the line of what lacks it. Text that is no YAML gives `line` back.
    """
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError):
        return line
    found = next((node for node in nodes if node.start_mark.line + 1 == line), None)
    if found is None:
        return line
    at = line
    rest = field
    while rest:
        step = _child(found, rest)
        if step is None:
            break
        found, at, rest = step
    return at


def _child(node: yaml.Node, field: str) -> tuple[yaml.Node, int, str] | None:
    """The part that the beginning of `field` names, its line, and what is left of `field`."""
    match node:
        case yaml.MappingNode():
            fits = [
                (str(key.value), key, value)
                for key, value in node.value
                if field == key.value or field.startswith((f"{key.value}.", f"{key.value}["))
            ]
            if not fits:
                return None
            name, key, value = max(fits, key=lambda item: len(item[0]))  # a key may hold dots itself
            return value, key.start_mark.line + 1, field[len(name) :].removeprefix(".")
        case yaml.SequenceNode():
            step = _STEP.match(field)
            if step is None or step[1] is None or int(step[1]) >= len(node.value):
                return None
            item = node.value[int(step[1])]
            return item, item.start_mark.line + 1, field[step.end() :].removeprefix(".")
        case _:
            return None
