"""What an operator process may be told."""

import pytest

from kubeharness_operator.settings import OperatorSettings

URL = "postgresql://user:hidden@host/db"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEHARNESS_DATABASE_URL", URL)
    monkeypatch.setenv("KUBEHARNESS_NAMESPACES", " team-a, team-b ,team-a,")
    settings = OperatorSettings(_env_file=None)

    assert settings.namespaces == ("team-a", "team-b")
    assert settings.health_port == 8481
    assert "hidden" not in repr(settings)


def test_no_namespaces_means_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEHARNESS_DATABASE_URL", URL)
    monkeypatch.setenv("KUBEHARNESS_NAMESPACES", "")

    assert OperatorSettings(_env_file=None).namespaces == ()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NAMESPACES", "Team_A", "no name of a namespace"),
        ("HEALTH_PORT", "99999", "less than or equal to 65535"),
        ("LOG_LEVEL", "loud", "Input should be"),
    ],
)
def test_a_wrong_value_is_named_without_being_shown(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEHARNESS_DATABASE_URL", URL)
    monkeypatch.setenv(f"KUBEHARNESS_{name}", value)
    with pytest.raises(ValueError, match=says) as refused:
        OperatorSettings(_env_file=None)

    assert name.lower() in str(refused.value)


@pytest.mark.parametrize("url", [f"{URL}\n", "sqlite:///secret.db", ""])
def test_a_dsn_that_cannot_be_used_is_no_wrong_setting_but_a_database_that_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its pod would crash in a loop; and the newline of a Secret made from a file is no part of it."""
    monkeypatch.setenv("KUBEHARNESS_DATABASE_URL", url)

    assert OperatorSettings(_env_file=None).database() == OperatorSettings(_env_file=None).direct() == url.strip()


def test_a_database_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEHARNESS_DATABASE_URL", raising=False)

    with pytest.raises(ValueError, match="database_url"):
        OperatorSettings(_env_file=None)
