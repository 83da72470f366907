"""What belongs to the command itself: `--version`, and the list of verbs for whoever asks for one that is not there."""

from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Verbs(TyperGroup):
    """Says which verbs there are where another was asked for: an image's command is typed far from its help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb. Fails with the list of them."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"no verb {args[0]!r}; there are {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


def _show(asked: bool) -> None:
    if asked:
        typer.echo(f"kubeharness {metadata.version('kubeharness')}")
        raise typer.Exit


def command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show, is_eager=True, help="Print the release and leave.")
    ] = False,
) -> None:
    """A Kubernetes-native durable harness for LLM agents."""
