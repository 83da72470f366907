"""Who calls: asked before any route, answered with a principal that can be asked what it may do with an agent.

Modes fit `Auth` by shape: `none` and `kubernetes` stand here, `token` in `tokens.py`; `AnyOf` combines them. What a
caller may do nothing with looks exactly like what is not there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kubeharness.api.problems import Forbidden, Unauthorized
from kubeharness.core.errors import NotFound, Unavailable
from kubeharness.core.principal import Identity, Right

SERVED: tuple[Right, ...] = ("read", "dispatch", "steer", "cancel")
"""The rights that a route of this release asks for."""
MAX_TOKEN_BYTES = 16 * 1024
"""A longer one is nobody's, and not worth a question to anybody."""


class Access(Protocol):
    """What one caller may do."""

    async def allows(self, right: Right, namespace: str, agent: str) -> bool:
        """Whether it may do this with that agent, which need not exist. Raises Unavailable if nobody can say."""
        ...

    async def knows(self, namespace: str, agent: str) -> bool:
        """Whether it may do anything with it, so that the agent need not be hidden. Raises Unavailable."""
        ...

    @property
    def remedy(self) -> str:
        """Where to ask for a right that is missing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls."""

    name: str
    access: Access
    by_token: bool = True
    """It showed a credential that no page of a browser has by itself."""

    async def require(self, right: Right, namespace: str, agent: str, *, missing: NotFound) -> None:
        """Raise Forbidden without the right, and `missing` where the caller has no right at all (C52)."""
        if await self.access.allows(right, namespace, agent):
            return
        if not await self.access.knows(namespace, agent):
            raise missing
        raise Forbidden(f"{self.name!r} lacks the right {right!r} on agent {agent!r}; {self.access.remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """Rights that are known beforehand, the same for every agent of some namespaces; None means all."""

    namespaces: frozenset[str] | None
    rights: frozenset[str] | None
    remedy: str = "ask whoever gives out the tokens for it"

    async def allows(self, right: Right, namespace: str, agent: str) -> bool:
        """Whether both the namespace and the right are granted."""
        return self._enters(namespace) and (self.rights is None or right in self.rights)

    async def knows(self, namespace: str, agent: str) -> bool:
        """Whether any right is granted in the namespace."""
        return self._enters(namespace) and self.rights != frozenset()

    def _enters(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


class Auth(Protocol):
    """Finds out who sent a request."""

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Raise Unauthorized if it is nobody that we know, Unavailable if that cannot be found out now."""
        ...

    def unready(self) -> str | None:
        """Why nobody can be let in yet; None as soon as somebody can."""
        ...


def bearer(headers: Mapping[bytes, bytes]) -> bytes:
    """The token of a request. Raises Unauthorized if there is none, or one that no mode could know."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN_BYTES:
        raise Unauthorized
    return token


class Open:
    """Mode `none`: everyone is the same principal. For loopback, or behind something that asks."""

    def __init__(self) -> None:
        self._everyone = Principal(name="anonymous", access=Grants(namespaces=None, rights=None), by_token=False)

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Everyone may do everything."""
        return self._everyone

    def unready(self) -> str | None:
        """Nothing is waited for."""
        return None


class AccessReview(Protocol):
    """The Kubernetes API server's two answers; `kube/review.py` fits it by shape. Both raise Unavailable."""

    async def identify(self, token: str) -> Identity | None:
        """Whose token it is; None if it is nobody's."""
        ...

    async def allows(self, who: Identity, verb: str, namespace: str, agent: str) -> bool:
        """Whether its authorizers allow this verb on that agent."""
        ...


class Reviewed:
    """Mode `kubernetes`: the API server says whose token it is, and RBAC what its bearer may do."""

    def __init__(self, review: AccessReview) -> None:
        self._review = review

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The bearer as the API server names it: a ServiceAccount, a user."""
        token = bearer(headers)
        if not token.isascii():
            raise Unauthorized
        who = await self._review.identify(token.decode("ascii"))
        if who is None:
            raise Unauthorized
        return Principal(name=who.name, access=_ReviewedAccess(self._review, who))

    def unready(self) -> str | None:
        """An API server that is down stops nobody who is known by other means."""
        return None


@dataclass(frozen=True, slots=True)
class _ReviewedAccess:
    review: AccessReview
    who: Identity
    remedy: str = "ask for a role with this verb on agents.kubeharness.dev"

    async def allows(self, right: Right, namespace: str, agent: str) -> bool:
        return await self.review.allows(self.who, right, namespace, agent)

    async def knows(self, namespace: str, agent: str) -> bool:
        # The answers do not depend on whether the agent exists, nor does the time that they take.
        for right in SERVED:
            if await self.allows(right, namespace, agent):
                return True
        return False


class AnyOf:
    """Modes combined: the first that knows the caller says who it is. Ask the cheap one first."""

    def __init__(self, modes: Sequence[Auth]) -> None:
        self._modes = modes

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Unauthorized needs the word of all: while one cannot say, an unknown caller may still be somebody."""
        refusal: Unauthorized | Unavailable = Unauthorized()
        for mode in self._modes:
            try:
                return await mode.identify(headers)
            except Unauthorized:
                continue
            except Unavailable as error:
                refusal = error
        raise refusal

    def unready(self) -> str | None:
        """Ready only when all are: a mode that was asked for and does not work is no working installation."""
        return next((why for mode in self._modes if (why := mode.unready()) is not None), None)
