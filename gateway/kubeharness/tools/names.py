"""The names that a model sees: legal, unique, and the same whatever the order of connecting (C38). Pure."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping

Origin = tuple[str, str]
"""Where a tool comes from: its server ("" for a built-in) and its name there."""

RESERVED = frozenset({"task"})
"""Built-ins of ours, whether this agent has them or not: nobody else may take the name."""

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")
_LONGEST = 64


def shown_names(origins: Iterable[Origin]) -> tuple[dict[Origin, str], list[Origin]]:
    """A name for each tool, and the tools that must be left out because theirs is taken.

    A server's tool keeps its own name if it is legal and nobody else's; tools of two servers with one name, or a
    built-in's, are told apart by the server's. Built-ins always keep theirs.
    """
    tools = sorted(set(origins))
    names = {origin: origin[1] for origin in tools if not origin[0]}
    taken = RESERVED | set(names.values())
    ours = [origin for origin in tools if origin[0]]
    wishes = Counter(legal_name(tool) for _, tool in ours)
    dropped: list[Origin] = []
    clashing: list[Origin] = []
    for origin in ours:
        name = legal_name(origin[1])
        if wishes[name] > 1 or name in taken:
            clashing.append(origin)
        else:
            names[origin] = name
    taken |= set(names.values())
    for origin in clashing:
        name = qualified_name(origin)
        if name in taken:
            dropped.append(origin)
        else:
            names[origin] = name
            taken |= {name}
    return names, dropped


def qualified_name(origin: Origin) -> str:
    """The name with its server's before it."""
    server, tool = origin
    return legal_name(f"{server}_{tool}" if server else tool)


def aliases(names: Mapping[Origin, str]) -> dict[str, Origin]:
    """Shown name → tool; the qualified name works too, so a call outlives a clash that came or went."""
    found = {name: origin for origin, name in names.items()}
    for origin in names:
        found.setdefault(qualified_name(origin), origin)
    return found


def legal_name(name: str) -> str:
    """`[a-zA-Z0-9_-]{1,64}`: the name itself, or a readable rest of it with a hash of the whole."""
    legal = _ILLEGAL.sub("_", name)
    if legal == name and 0 < len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{legal.strip('_')[: _LONGEST - 9] or 'tool'}_{digest}"
