"""The command line: one file a verb."""

import sys

import typer

from kubeharness.cli import dev, gateway, migrate, publish, settings, verify, worker
from kubeharness.core.errors import KubeharnessError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="A Kubernetes-native durable harness for LLM agents."
)
app.command("dev")(dev.dev)
app.command("gateway")(gateway.gateway)
app.command("worker")(worker.worker)
app.command("migrate")(migrate.migrate)
app.command("publish")(publish.publish)
app.command("verify")(verify.verify)
app.command("settings")(settings.settings)


def main() -> None:
    """Run the command line; a wrong setting is a sentence, not a traceback."""
    try:
        app()
    except ValueError as error:
        typer.echo(f"kubeharness: {error}", err=True)
        sys.exit(2)
    except KubeharnessError as error:
        typer.echo(f"kubeharness: {error}", err=True)
        sys.exit(1)
