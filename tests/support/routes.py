"""The routes that an application really has, its own and those served by hand, each with what fills its path."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubeharness.api.app import WITHOUT_TOKEN, Gateway

PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """A method and the template of a path."""

    method: str
    path: str

    @property
    def parameters(self) -> frozenset[str]:
        """What has to be filled in."""
        return frozenset(PARAMETER.findall(self.path))

    @property
    def is_health(self) -> bool:
        """One of the two that nobody needs a token for."""
        return self.path in WITHOUT_TOKEN

    def filled(self, values: Mapping[str, str]) -> str:
        """The path; a parameter that a test knows nothing of fails it, so that no new route is passed over."""
        unknown = self.parameters - values.keys()
        assert not unknown, f"{self.method} {self.path} is new: say here what {', '.join(sorted(unknown))} is"
        return PARAMETER.sub(lambda found: values[found[1]], self.path)


def routes_of(app: Gateway) -> list[Route]:
    """Every route, with and without a namespace; what the gateway serves by hand is known by its documentation."""
    found = {Route(method, path) for path, methods in _table(app.routes) for method in methods}
    by_hand = {
        Route(method.upper(), path)
        for path, item in app.openapi()["paths"].items()
        for method in item
        if method != PATH
    } - found
    assert {route.path for route in by_hand} == {"/agents/{agent}/{id}"}
    found |= by_hand | {Route(route.method, "/namespaces/{namespace}" + route.path) for route in by_hand}
    found |= {Route("HEAD", route.path) for route in found if route.method == "GET"}
    return sorted(found)


PATH = "parameters"


def _table(routes: list[Any]) -> Iterator[tuple[str, set[str]]]:
    for route in routes:
        inner = getattr(route, "effective_candidates", None)
        if inner is not None:
            yield from _table(inner())
        else:
            yield route.path, set(route.methods)
