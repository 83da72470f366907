"""This machine's way to the package registries: mounted while an image is built, kept nowhere."""

import configparser
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_CA_IN_BUILD = "/run/secrets/ca.crt"
_PIP_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""What says where packages come from. `find-links` names folders of this machine, which the build does not see."""


@contextmanager
def registry_secrets(folder: Path) -> Iterator[Mapping[str, Path]]:
    """The Dockerfile's two secrets as files of a folder that only we read: id → path. Gone afterwards."""
    found = {}
    pip = configparser.RawConfigParser()
    pip["global"] = _pip_options()
    bundle = _ca_bundle()
    if bundle is not None:
        found["ca.crt"] = bundle
        pip["global"]["cert"] = _CA_IN_BUILD
    written = folder / "pip.conf"
    written.touch(mode=0o600)
    with written.open("w") as file:
        pip.write(file)
    try:
        yield found | {"pip.conf": written}
    finally:
        written.unlink()


def _pip_options() -> dict[str, str]:
    """As pip reads them: the machine's file, the user's, then the environment."""
    found: dict[str, str] = {}
    files = [Path("/etc/pip.conf"), Path.home() / ".pip/pip.conf", Path.home() / ".config/pip/pip.conf"]
    if named := os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(named))
    for file in files:
        parser = configparser.RawConfigParser()
        parser.read(file)
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name: value for name, value in parser[section].items() if name in _PIP_OPTIONS}
    for option in _PIP_OPTIONS:
        if value := os.environ.get("PIP_" + option.upper().replace("-", "_")):
            found[option] = value
    return found


def _ca_bundle() -> Path | None:
    """The host's bundle of certificates, as Python finds it; None where there is none, then pip uses its own."""
    candidates = (os.environ.get("PIP_CERT"), os.environ.get("SSL_CERT_FILE"), ssl.get_default_verify_paths().cafile)
    return next((Path(path) for path in candidates if path and Path(path).is_file()), None)
