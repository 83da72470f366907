"""`kubeharness token ensure`: the first key of an installation, made where nobody has to see it."""

import asyncio
import random
import re
from typing import Annotated

import typer

from kubeharness.core.errors import Unavailable
from kubeharness.settings import Settings
from kubeharness.telemetry.logs import configure

TRIES = 5
PAUSE_SECONDS = 2.0
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")

app = typer.Typer(no_args_is_help=True, help="Keys that callers bear.")


@app.callback()
def _callback() -> None:
    """Keys that callers bear."""


@app.command()
def ensure(
    namespace: Annotated[str, typer.Option("--namespace", help="Where the Secret is")],
    secret: Annotated[str, typer.Option("--secret", help="Its name; it exists, and is filled only if it is empty")],
) -> None:
    """Put a token and the gateway's tokens.json into the Secret, unless it holds anything; never prints a token."""
    for option, value in (("--namespace", namespace), ("--secret", secret)):
        if not NAME.match(value):
            raise ValueError(f"{option}: {value!r} is no name of an object of Kubernetes")
    settings = Settings()
    configure(settings.log_format, settings.log_level)
    typer.echo(asyncio.run(_ensure(namespace, secret)))


async def _ensure(namespace: str, secret: str) -> str:
    """Ask again while the API server does not answer, a few times: the Job comes back later."""
    from kubeharness.kube.tokensecret import ensure_token

    for tried in range(1, TRIES + 1):
        try:
            return await ensure_token(namespace, secret)
        except Unavailable as error:
            if tried == TRIES:
                raise
            typer.echo(f"kubeharness: {error.why}; try {tried + 1} of {TRIES} follows", err=True)
            await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.5))
    raise AssertionError("the last try returns or raises")
