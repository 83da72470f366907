"""Each process of the image with a read-only root, from nothing to ready, against a real Postgres and API server.

The limit of five seconds is the issue's. A start that a busy machine held up is tried again; what is measured is
printed, and the best is judged.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.access import Cluster
from cluster.accounts import OPERATOR, SYSTEM_NAMESPACE, install_accounts
from cluster.processes import free_ports
from image.container import Container, Image, Runner

ROOT = Path(__file__).parents[2]
TRIES = 3
LONGEST_SECONDS = 5.0
PATIENCE_SECONDS = 20.0


@pytest.fixture
def migrated(runner: Runner, empty_postgres_url: str) -> str:
    """A database whose schema this image made."""
    done = runner.run("kubeharness", "migrate", env={"KUBEHARNESS_DATABASE_URL": empty_postgres_url})
    assert done.returncode == 0, done.stderr
    return empty_postgres_url


@pytest.fixture
def operator_kubeconfig(control_plane: Cluster, tmp_path: Path) -> Path:
    """The operator's own account on a server that has our CRDs; readable for the image's user."""
    install_accounts(control_plane)
    control_plane.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(ROOT / "crds"), "--timeout=30s")
    written = control_plane.service_account_kubeconfig(SYSTEM_NAMESPACE, OPERATOR)
    readable = tmp_path / "kubeconfig"
    shutil.copyfile(written, readable)
    readable.chmod(0o644)
    return readable


def test_migrate_makes_the_schema_and_runs_again(runner: Runner, empty_postgres_url: str) -> None:
    env = {"KUBEHARNESS_DATABASE_URL": empty_postgres_url}
    first = runner.run("kubeharness", "migrate", env=env)
    second = runner.run("kubeharness", "migrate", env=env)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "schema" in first.stdout
    assert first.stdout == second.stdout


def test_the_gateway_is_ready_in_time(runner: Runner, migrated: str, tmp_path: Path) -> None:
    tokens, secret = tmp_path / "tokens.json", "a-token-of-the-test"
    entry = {"name": "test", "sha256": hashlib.sha256(secret.encode()).hexdigest(), "namespaces": ["*"]}
    tokens.write_text(json.dumps([entry | {"rights": ["dispatch", "read", "steer", "cancel"]}]))
    tokens.chmod(0o644)

    def start(run: Runner, port: int) -> float:
        [api] = free_ports(1)
        env = _env(migrated, port) | {
            "KUBEHARNESS_PORT": str(api),
            "KUBEHARNESS_AUTH": "token",
            "KUBEHARNESS_TOKENS_FILE": "/etc/kubeharness/tokens/tokens.json",
        }
        files = {"/etc/kubeharness/tokens/tokens.json": tokens}
        with run.running("kubeharness", "gateway", env=env, files=files) as gateway:
            return _ready_and_left(gateway, port)

    _best(start, runner, "gateway")


def test_the_worker_is_ready_in_time(runner: Runner, migrated: str) -> None:
    def start(run: Runner, port: int) -> float:
        env = _env(migrated, port) | {"KUBEHARNESS_SECRETS": "env"}
        with run.running("kubeharness", "worker", env=env) as worker:
            return _ready_and_left(worker, port)

    _best(start, runner, "worker")


def test_the_operator_is_ready_in_time(runner: Runner, migrated: str, operator_kubeconfig: Path) -> None:
    def start(run: Runner, port: int) -> float:
        env = _env(migrated, port) | {"KUBECONFIG": "/etc/kubeharness/kubeconfig"}
        files = {"/etc/kubeharness/kubeconfig": operator_kubeconfig}
        with run.running("kubeharness-operator", "run", env=env, files=files) as operator:
            return _ready_and_left(operator, port)

    _best(start, runner, "operator")


def test_no_process_needs_a_shell_or_any_other_program(
    image: Image, tmp_path: Path, migrated: str, operator_kubeconfig: Path
) -> None:
    bare = tmp_path / "bare"
    subprocess.run(["cp", "--archive", "--link", image.root, bare], check=True)
    for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin"):
        programs = (bare / folder).iterdir() if (bare / folder).is_dir() else ()
        for path in [*programs]:
            if not path.name.startswith("python") and not path.is_dir():
                path.unlink()
    runner = Runner(Image(root=bare, config=image.config, layers=image.layers), tmp_path / "runs")
    [api] = free_ports(1)
    kubeconfig = {"/etc/kubeharness/kubeconfig": operator_kubeconfig}

    assert runner.run("sh", "-c", "true").returncode != 0
    assert runner.run("kubeharness", "migrate", env=_env(migrated, 0)).returncode == 0
    for command, more, files in (
        (("kubeharness", "gateway"), {"KUBEHARNESS_AUTH": "none", "KUBEHARNESS_PORT": str(api)}, {}),
        (("kubeharness", "worker"), {"KUBEHARNESS_SECRETS": "env"}, {}),
        (("kubeharness-operator", "run"), {"KUBECONFIG": "/etc/kubeharness/kubeconfig"}, kubeconfig),
    ):
        [port] = free_ports(1)
        with runner.running(*command, env=_env(migrated, port) | more, files=files) as process:
            process.seconds_to_ready(port, PATIENCE_SECONDS)


def test_the_root_is_read_only_and_tmp_is_not(runner: Runner) -> None:
    script = (
        "import errno\ntry: open('/opt/kubeharness/x', 'w')\nexcept OSError as e: print(errno.errorcode[e.errno])\n"
    )
    done = runner.run("python", "-c", script + "open('/tmp/x', 'w').close(); print('written')")

    assert done.stdout.split() == ["EROFS", "written"], done.stderr


def test_without_a_command_it_says_what_there_is(runner: Runner) -> None:
    done = runner.run(*runner.image.config["Cmd"])

    assert done.returncode == 0
    for verb in ("gateway", "worker", "migrate"):
        assert verb in done.stdout


def test_a_wrong_command_says_what_there_is(runner: Runner) -> None:
    done = runner.run("kubeharness", "gatway")

    assert done.returncode == 2
    assert "gatway" in done.stderr
    for verb in ("gateway", "worker", "migrate"):
        assert verb in done.stderr


def test_it_tells_the_release_that_it_is(runner: Runner) -> None:
    done = runner.run("kubeharness", "--version")

    assert done.stdout == f"kubeharness {runner.image.config['Labels']['org.opencontainers.image.version']}\n"


def _env(database: str, port: int) -> dict[str, str]:
    return {
        "KUBEHARNESS_DATABASE_URL": database,
        "KUBEHARNESS_INSTALLATION_ID": "test",
        "KUBEHARNESS_HEALTH_PORT": str(port),
    }


def _ready_and_left(process: Container, port: int) -> float:
    seconds = process.seconds_to_ready(port, PATIENCE_SECONDS)
    assert process.end() in (0, -15, 143), process.said()
    return seconds


def _best(start: Callable[[Runner, int], float], runner: Runner, name: str) -> None:
    taken: list[float] = []
    while len(taken) < TRIES and (not taken or min(taken) >= LONGEST_SECONDS):
        [port] = free_ports(1)
        taken.append(start(runner, port))
    print(f"\nimage: {name} ready after {' '.join(f'{seconds:.2f}' for seconds in taken)} s")
    assert min(taken) < LONGEST_SECONDS
