"""Secrets from Secret documents that lie beside the manifests: `kubeharness dev` reads them first."""

from collections.abc import Mapping

from kubeharness.core.errors import SecretMissing
from kubeharness.engine.ports import SecretSource


class DocumentSecrets:
    """A SecretSource over documents, with another behind it for what they lack."""

    def __init__(self, behind: SecretSource) -> None:
        self._behind = behind
        self._values: Mapping[tuple[str, str], Mapping[str, str]] = {}

    def replace(self, values: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        """Take the Secrets of the documents as they are now: (namespace, name) → key → value."""
        self._values = values

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str:
        """The value. Raises SecretMissing as the source behind does, or if the document lacks the key."""
        document = self._values.get((namespace, name))
        if document is None:
            return await self._behind.read(namespace, name, key, fresh=fresh)
        if key not in document:
            raise SecretMissing(namespace, name, key, "is not a key of the document")
        return document[key].rstrip("\r\n")
