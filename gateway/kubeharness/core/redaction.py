"""Secrets taken out of text that others quote to us (C53)."""

from collections.abc import Iterable
from urllib.parse import parse_qsl, unquote, urlsplit

MARK = "[redacted]"
_SHORTEST = 6
"""A shorter value is no secret, and would tear holes into ordinary words."""


class Redactor:
    """Replaces every occurrence of the secrets it was given, in a header's parts or on their own."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        parts = {part for secret in secrets if secret for part in (secret, *secret.split())}
        self._secrets = sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without them."""
        for secret in self._secrets:
            text = text.replace(secret, MARK)
        return text


def secrets_in_url(url: str) -> list[str]:
    """User, password and query values of a URL, as written and decoded."""
    parts = urlsplit(url)
    found = [part for part in (parts.username, parts.password) if part]
    found += [value for _, value in parse_qsl(parts.query)]
    found += [pair.partition("=")[2] for pair in parts.query.split("&")]
    return [*found, *map(unquote, found)]
