"""Secrets from files: `PATH/namespace/name/key`."""

from pathlib import Path

from kubeharness.core.errors import SecretMissing


class DirectorySecrets:
    """A SecretSource over a folder, read anew each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str:
        """The value, a trailing newline trimmed. Raises SecretMissing naming the file."""
        parts = (namespace, name, key)
        if any(part in ("", ".", "..") or "/" in part for part in parts):
            raise SecretMissing(namespace, name, key, "has no legal name")
        path = self._folder.joinpath(*parts)
        try:
            return path.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SecretMissing(namespace, name, key, f"cannot be read from {path}: {type(error).__name__}") from error
