"""`kubeharness settings`: what this process would be told, secrets hidden."""

import typer

from kubeharness.settings import Settings


def settings() -> None:
    """Print the settings in force, one a line, with secrets hidden."""
    loaded = Settings()
    for name, field in Settings.model_fields.items():
        value = getattr(loaded, name)
        shown = ",".join(value) if isinstance(value, tuple) else value
        typer.echo(f"KUBEHARNESS_{name.upper()}={'' if shown is None else shown}  # {field.description}")
