"""One request on its way through: what its path, query, headers and sender say, read on demand."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from kubeharness.api.asgi import Receive, Scope
from kubeharness.api.auth import Principal
from kubeharness.api.body import check_type, parse_object, read_bytes
from kubeharness.api.paths import Path
from kubeharness.api.problems import Forbidden
from kubeharness.api.settings import ApiSettings
from kubeharness.api.wire import Body, parse
from kubeharness.core.errors import InvalidRequest, NotFound
from kubeharness.core.ids import DEFAULT_SESSION, DISPATCH_ID, SubmissionId
from kubeharness.core.principal import Right
from kubeharness.engine.runtime import Address, Runtime, SubmissionView

B = TypeVar("B", bound=Body)

NO_AGENT = ""
"""Stands for the agent of a submission that is not there; no agent is called so."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name; of a repeated one the values are joined, as HTTP has it."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        found[name] = found[name] + b", " + value if name in found else value
    return found


@dataclass(slots=True)
class Call:
    """What a route needs to know of a request."""

    runtime: Runtime
    settings: ApiSettings
    path: Path
    principal: Principal
    headers: Mapping[bytes, bytes]
    scope: Scope
    receive: Receive
    _query: dict[str, str] | None = field(default=None)
    _granted: set[Right] = field(default_factory=set)

    @property
    def namespace(self) -> str:
        """The namespace that the path names, or the default one."""
        return self.path.namespace or self.settings.default_namespace

    async def require(self, right: Right) -> None:
        """Let the caller do this with the agent of the path.

        Raises Forbidden if it may do other things with it; NotFound, as for a missing agent, if it may do nothing
        (C52); Unavailable if nobody can say.
        """
        agent = self.path.agent or NO_AGENT
        await self.principal.require(right, self.namespace, agent, missing=NotFound(f"agent {agent!r}"))
        self._granted.add(right)

    async def submission(self, right: Right) -> SubmissionView:
        """The submission of the path, with whose agent the caller may do this. Raises what `require` does."""
        wanted = SubmissionId(self.path.submission or "")
        missing = NotFound(f"submission {wanted!r}")
        try:
            view = await self.runtime.lookup(wanted, namespace=self.namespace)
        except NotFound:
            # A foreign one costs a question about its agent: what is missing shall take as long.
            await self.principal.access.knows(self.namespace, NO_AGENT)
            raise missing from None
        await self.principal.require(right, self.namespace, view.key.agent, missing=missing)
        return view

    def query(self, name: str) -> str | None:
        """A parameter of the query. Raises InvalidRequest if it stands there twice, or is no text."""
        if self._query is None:
            self._query = _parsed_query(self.scope["query_string"])
        return self._query.get(name)

    def flag(self, name: str) -> bool:
        """A yes or no in the query; a bare name is yes."""
        match self.query(name):
            case None | "false" | "0":
                return False
            case "" | "true" | "1":
                return True
            case _:
                raise InvalidRequest(name, "say true or false")

    def seconds(self, name: str, *, at_most: float) -> float:
        """A time to wait in the query, cut to what this gateway grants."""
        text = self.query(name)
        if text is None:
            return at_most
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not value >= 0:  # nan too
            raise InvalidRequest(name, "give seconds, 0 or more")
        return min(value, at_most)

    def address(self, session: str | None = None) -> Address:
        """The session that the path and, if none is given, `?session=` mean. Only after `require`."""
        if not self._granted:
            raise RuntimeError(f"the route of {self.path.route!r} asked for no right")
        if session is None:
            session = self.query("session")
        elif self.query("session") not in (None, session):
            raise InvalidRequest("session", "the query names another session than the body")
        address = Address(
            namespace=self.namespace,
            agent=self.path.agent or "",
            instance=self.path.instance or "",
            session=DEFAULT_SESSION if session is None else session,
        )
        address.validate()
        return address

    def key(self, stated: str | None = None) -> str | None:
        """The idempotency key: the header, or what the body says. Both, and different: InvalidRequest."""
        raw = self.headers.get(b"idempotency-key")
        if raw is None:
            return stated
        try:
            key = raw.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("Idempotency-Key", "it is not UTF-8") from None
        if not DISPATCH_ID.match(key):
            raise InvalidRequest("Idempotency-Key", "use 1 to 256 characters without control characters")
        if stated is not None and stated != key:
            raise InvalidRequest("dispatchId", "it differs from the Idempotency-Key header; send one of them")
        return key

    async def body(self, of: type[B], *, optional: bool = False) -> B:
        """The request's body. `optional`: an empty one stands for `{}`."""
        check_type(self.headers)
        raw = await read_bytes(
            self.receive,
            self.headers,
            limit=self.settings.max_body_bytes,
            seconds=self.settings.body_seconds,
        )
        if not raw.strip():
            if optional:
                return parse(of, {})
            raise InvalidRequest("body", "it is empty; send a JSON object")
        return parse(of, parse_object(raw))

    def link(self, path: str) -> str:
        """A path of this API as its caller reaches it: with the prefix, and the namespace if the caller named it."""
        namespace = f"/namespaces/{self.path.namespace}" if self.path.namespace else ""
        return f"{self.settings.root_path}{namespace}{path}"

    def check_origin(self) -> None:
        """Raise Forbidden for a write from a page of another origin.

        The API's own origin counts as such only with a token or on loopback: a name that an attacker points at us
        has our address, but neither of these.
        """
        raw = self.headers.get(b"origin")
        if raw is None:
            return
        origin = raw.decode("latin-1")
        if origin in self.settings.allowed_origins:
            return
        own = urlsplit(origin).netloc.lower() if origin.count("://") == 1 else ""
        host = self.headers.get(b"host", b"").decode("latin-1").lower()
        if own and own == host and (self.principal.by_token or _hostname(host) in LOOPBACK):
            return
        raise Forbidden("pages of this origin may not write here; have it added to the allowed origins")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _parsed_query(raw: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except ValueError:
        raise InvalidRequest("query", "it is not a list of name=value in UTF-8, percent-encoded") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name in found if [n for n, _ in pairs].count(name) > 1)
        raise InvalidRequest(twice[:100], "it stands twice in the query")
    return found
