"""From a revision to the provider of one turn, over HTTP connections that outlive it.

The wire's module, and with it the model SDK, is imported when a revision first asks for it.
"""

from typing import TYPE_CHECKING, assert_never

from kubeharness.core.errors import ProviderAuth, ProviderFatal
from kubeharness.core.ports import Provider
from kubeharness.core.revision import AgentRevision
from kubeharness.providers.scripted import ScriptedProvider

if TYPE_CHECKING:
    import httpx2

IDLE_SECONDS = 60.0
CONNECT_SECONDS = 10.0


class ModelProviders:
    """Gives providers; owns a pool of connections for each base URL. Close it with the process."""

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS, connect_seconds: float = CONNECT_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._clients: dict[str, httpx2.AsyncClient] = {}

    def provider(self, revision: AgentRevision, *, api_key: str | None, failed_tries: int) -> Provider:
        """The provider that a revision names.

        Raises ProviderFatal for a revision that names none, ProviderAuth for a key that no header can carry.
        """
        spec = revision.provider
        match spec.type:
            case "Scripted":
                return ScriptedProvider(spec.scripted or {}, revision.model.name, failed_tries)
            case "OpenAICompatible":
                from kubeharness.providers.openai_compatible import OpenAICompatibleProvider

                if not spec.base_url:
                    raise ProviderFatal(f"model provider {spec.name!r} has no base URL")
                key = (api_key or "").strip()  # Secrets made with `echo` end in a newline (C53)
                if not (key.isascii() and (key.isprintable() or not key)):
                    raise ProviderAuth(f"the API key of model provider {spec.name!r} is no header value")
                return OpenAICompatibleProvider(
                    base_url=spec.base_url,
                    api_key=key or None,
                    model=revision.model,
                    http=self._client(spec.base_url),
                    idle_seconds=self._idle_seconds,
                )
            case _:
                assert_never(spec.type)

    async def aclose(self) -> None:
        """Close every pool."""
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    def _client(self, base_url: str) -> "httpx2.AsyncClient":
        client = self._clients.get(base_url)
        if client is None:
            import httpx2

            client = self._clients[base_url] = httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=self._connect_seconds),  # the idle deadline bounds the rest
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
                follow_redirects=False,
            )
        return client
