from importlib.metadata import version

from typer.testing import CliRunner

from kubeharness.cli import app

VERBS = ("gateway", "worker", "migrate", "publish", "settings")


def test_a_wrong_verb_is_told_which_there_are() -> None:
    done = CliRunner().invoke(app, ["gatway"])

    assert done.exit_code == 2
    assert "no verb 'gatway'" in done.stderr
    assert [verb for verb in VERBS if verb not in done.stderr] == []


def test_version_is_the_release() -> None:
    done = CliRunner().invoke(app, ["--version"])

    assert (done.exit_code, done.stdout) == (0, f"kubeharness {version('kubeharness')}\n")


def test_without_a_verb_it_prints_the_verbs() -> None:
    done = CliRunner().invoke(app, [])

    assert [verb for verb in VERBS if verb not in done.stdout + done.stderr] == []
