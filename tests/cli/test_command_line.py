"""The verbs, as processes: what they print, and how they refuse."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from support.fleet import Fleet, fleet

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "basic"


def kubeharness(*words: str, cwd: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a verb to its end with only these settings."""
    return subprocess.run(
        [sys.executable, "-m", "kubeharness", *words],
        env={"PATH": "/usr/bin:/bin", **{f"KUBEHARNESS_{key}": value for key, value in settings.items()}},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_settings_prints_every_setting_and_hides_secrets(tmp_path: Path) -> None:
    done = kubeharness("settings", cwd=tmp_path, DATABASE_URL="postgresql://u:CANARY@h/d", AUTH="token,none")

    assert done.returncode == 0
    assert "CANARY" not in done.stdout
    assert "KUBEHARNESS_DATABASE_URL=**********" in done.stdout
    assert "KUBEHARNESS_AUTH=token,none" in done.stdout
    assert "KUBEHARNESS_LEASE_SECONDS=30" in done.stdout


@pytest.mark.parametrize(
    ("words", "settings", "said"),
    [
        (["worker"], {}, "set KUBEHARNESS_DATABASE_URL"),
        (["verify"], {"DATABASE_URL": "mysql://x"}, "use postgresql://"),
        (["migrate"], {"DATABASE_URL": "mysql://x"}, "only Postgres needs migrating"),
        (
            ["gateway"],
            {"DATABASE_URL": "memory:", "AUTH": "none", "HEALTH_HOST": "192.0.2.1"},
            "KUBEHARNESS_HEALTH_HOST",
        ),
        (["gateway"], {"DATABASE_URL": "memory:"}, "KUBEHARNESS_TOKENS_FILE"),
        (["gateway"], {"DATABASE_URL": "memory:", "AUTH": "none", "HOST": "0.0.0.0"}, "would be open on 0.0.0.0"),
        (["gateway"], {"DATABASE_URL": "memory:", "AUTH": "none,token"}, "or none alone"),
        (["gateway"], {"DATABASE_URL": "memory:", "AUTH": ""}, "auth"),
        (
            ["gateway"],
            {"DATABASE_URL": "memory:", "AUTH": "kubernetes"},
            "AUTH=kubernetes: no way to the Kubernetes API",
        ),
        (["gateway"], {"DATABASE_URL": "memory:", "AUTH": "none", "ROOT_PATH": "harness"}, "beginning with /"),
        (["worker"], {"DATABASE_URL": "memory:", "SECRETS": "vault"}, "use kubernetes, env or dir:PATH"),
        (["dev", "-f", "nowhere"], {}, "no such file or folder: nowhere"),
    ],
)
def test_a_wrong_setting_is_a_sentence_with_its_remedy(
    tmp_path: Path, words: list[str], settings: dict[str, str], said: str
) -> None:
    done = kubeharness(*words, cwd=tmp_path, **settings)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_publish_refuses_a_database_of_another_installation(tmp_path: Path, postgres_url: str) -> None:
    first = kubeharness("publish", "-f", str(EXAMPLE), cwd=tmp_path, DATABASE_URL=postgres_url, INSTALLATION_ID="a")
    second = kubeharness("publish", "-f", str(EXAMPLE), cwd=tmp_path, DATABASE_URL=postgres_url)

    assert first.returncode == 0, first.stderr
    assert "Agent default/assistant: compiled" in first.stdout
    assert second.returncode == 1
    assert "a" in second.stderr


def test_a_second_dev_on_one_folder_says_who_holds_it(tmp_path: Path) -> None:
    with fleet(tmp_path) as processes:
        first = _dev(processes)

        second = kubeharness("dev", "-f", str(EXAMPLE), cwd=tmp_path)

    assert second.returncode == 2
    assert f"held by process {first}" in second.stderr


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        done = kubeharness("dev", "-f", str(EXAMPLE), cwd=tmp_path, PORT=port)

    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_dev_takes_an_edit_within_a_second_and_a_broken_document_stops_nothing(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    for path in EXAMPLE.glob("*.yaml"):
        (manifests / path.name).write_text(path.read_text())
    with fleet(tmp_path) as processes:
        process = processes.start(f"dev -f {manifests}").wait_ready()
        url = f"{process.url}/agents/assistant/i"
        agent = (manifests / "agent.yaml").read_text()

        (manifests / "agent.yaml").write_text(agent.replace("contextWindow: 128000", "contextWindow: big"))
        _until(lambda: "contextWindow" in process.said())
        after_break = httpx2.post(f"{url}?wait=true", json={"kind": "user", "body": "hello there"}, timeout=20)
        (manifests / "agent.yaml").write_text(agent)
        provider = (manifests / "modelprovider.yaml").read_text()
        (manifests / "modelprovider.yaml").write_text(provider.replace("Hello! Ask me", "Edited! Ask me"))
        _until(lambda: process.said().count("compiled to") >= 2)
        _until(
            lambda: (
                "Edited!"
                in httpx2.post(f"{url}?wait=true", json={"kind": "user", "body": "hello there"}, timeout=20).text
            )
        )

    assert after_break.json()["output"].startswith("Hello!")


def _dev(processes: Fleet) -> int:
    return processes.start(f"dev -f {EXAMPLE}").wait_ready().pid


def _until(look: Callable[[], bool], within: float = 10.0) -> None:
    end = time.monotonic() + within
    while not look():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
