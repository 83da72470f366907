"""The command line: one file a verb."""

import sys

import typer

from kubeharness.cli import dev, doctor, gateway, migrate, plan, publish, settings, token, verbs, verify, worker
from kubeharness.core.errors import KubeharnessError, Unavailable

app = typer.Typer(
    cls=verbs.Verbs,
    callback=verbs.command,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("dev")(dev.dev)
app.command("gateway")(gateway.gateway)
app.command("worker")(worker.worker)
app.command("migrate")(migrate.migrate)
app.command("publish")(publish.publish)
app.command("verify")(verify.verify)
app.command("plan", cls=plan.PlanCommand)(plan.plan)
app.command("doctor")(doctor.doctor)
app.command("settings")(settings.settings)
app.add_typer(token.app, name="token")


def main() -> None:
    """Run the command line; a wrong setting or a known refusal is a sentence, not a traceback."""
    try:
        app()
    except Exception as error:
        cause = _cause(error)
        if not isinstance(cause, ValueError | KubeharnessError):
            raise
        why = cause.why if isinstance(cause, Unavailable) else cause
        typer.echo(f"kubeharness: {why}", err=True)
        sys.exit(2 if isinstance(cause, ValueError) else 1)


def _cause(error: BaseException) -> BaseException:
    """The first exception in groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
