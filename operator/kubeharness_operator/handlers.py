"""kopf's events go into `objects` and their keys into the queue: nothing else happens here, nothing returns to kopf.

Only `on.event`: every other kind of handler adds finalizers, copies specs into annotations, or sleeps with a standby.
"""

from collections.abc import Callable
from typing import Any

import kopf

from kubeharness.kinds.common import GROUP, VERSION
from kubeharness_operator.objects import AGENTS, CONFIG_MAPS, PROVIDERS, TOOL_SERVERS, WATCH_LABEL, Key, Objects
from kubeharness_operator.queue import WorkQueue


def register(
    registry: kopf.OperatorRegistry, objects: Objects, queue: WorkQueue[Key], *, noticed: Callable[[bool], None]
) -> None:
    """Have every event of our kinds, and of labelled ConfigMaps, taken in.

    `noticed` is told of each event whether it comes from a list: after a new list something may be gone unseen.
    """

    def watch(group: str, version: str, plural: str) -> None:
        async def seen(event: Any, **_: object) -> None:
            listed = event["type"] is None
            if event["type"] == "DELETED":
                key = objects.remove(plural, event["object"])
            else:
                key = objects.put(plural, dict(event["object"]), listed=listed)
            noticed(listed)
            queue.add(key)

        kopf.on.event(group, version, plural, id=f"seen-{plural}", registry=registry)(seen)

    for plural in (AGENTS, PROVIDERS, TOOL_SERVERS):
        watch(GROUP, VERSION, plural)
    watch("", "v1", CONFIG_MAPS)


def select(settings: kopf.OperatorSettings) -> None:
    """Watch only those ConfigMaps that say so, by a selector that the server applies."""
    settings.watching.label_selectors["", "v1", CONFIG_MAPS] = WATCH_LABEL
