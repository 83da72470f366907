"""Secrets from the environment: `KUBEHARNESS_SECRET_<NAME>_<KEY>`, upper case, other characters as underscores."""

import os
import re
from collections.abc import Mapping

from kubeharness.core.errors import SecretMissing


def variable(name: str, key: str) -> str:
    """The environment variable of a Secret's key."""
    return "KUBEHARNESS_SECRET_" + re.sub(r"[^A-Z0-9]", "_", f"{name}_{key}".upper())


class EnvSecrets:
    """A SecretSource over a mapping, the process environment by default; namespaces are not told apart."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    async def read(self, namespace: str, name: str, key: str, *, fresh: bool = False) -> str:
        """The value, a trailing newline trimmed (C53). Raises SecretMissing naming the variable."""
        value = self._environ.get(variable(name, key))
        if value is None:
            raise SecretMissing(namespace, name, key, f"is not set (environment variable {variable(name, key)})")
        return value.rstrip("\r\n")
