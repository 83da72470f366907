"""Callers in a namespace of the test's own, and the review that a gateway's account gets there."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster.access import Cluster
from kube.callers import Callers
from kubeharness.kube.review import KubernetesReview
from support.fleet import free_port


@pytest.fixture
def callers(control_plane: Cluster, namespace: str) -> Iterator[Callers]:
    callers = Callers(control_plane, namespace)
    yield callers
    callers.forget()


@pytest.fixture
def reviewer(callers: Callers) -> Path:
    return callers.reviewer()


@dataclass
class Moment:
    """A clock that stands until it is moved."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def moment() -> Moment:
    return Moment()


@pytest.fixture
async def review(reviewer: Path, moment: Moment) -> AsyncIterator[KubernetesReview]:
    async with KubernetesReview(kubeconfig=reviewer, monotonic=moment) as review:
        yield review


@pytest.fixture
def unused_port() -> int:
    return free_port()
