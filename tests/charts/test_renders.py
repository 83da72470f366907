"""The renders themselves: pinned, pure, and the promises that hold in each of them."""

import difflib
import re
from itertools import chain
from typing import Any

import pytest
import yaml

from charts.rendering import CHART, CRDS, GOLDEN, NAMES, PROFILES, ROOT, Rendered, helm, render, template
from kubeharness.store.migrate import BUILD

DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


@pytest.fixture(scope="module")
def profiles() -> dict[str, Rendered]:
    return {name: render(profile=name) for name in NAMES}


def containers(rendered: Rendered) -> list[dict[str, Any]]:
    return [
        container
        for pod in rendered.pods().values()
        for container in chain(pod["spec"].get("initContainers", ()), pod["spec"]["containers"])
    ]


def test_a_profile_is_a_golden_and_a_golden_a_profile() -> None:
    assert {path.stem for path in PROFILES.glob("*.yaml")} == set(NAMES)
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_renders_as_it_did(name: str, profiles: dict[str, Rendered]) -> None:
    golden = (GOLDEN / f"{name}.yaml").read_text()
    diff = difflib.unified_diff(golden.splitlines(), profiles[name].text.splitlines(), "golden", "now", lineterm="")

    assert profiles[name].text == golden, "\n".join(["if this is meant: `make chart`", *diff])


@pytest.mark.parametrize("name", NAMES)
def test_two_renders_give_equal_bytes(name: str, profiles: dict[str, Rendered]) -> None:
    assert template(profile=name) == profiles[name].text


def test_no_template_looks_at_the_cluster_rolls_a_die_or_tells_the_time() -> None:
    """Two renders a moment apart could still be equal by luck or by an empty cluster."""
    impure = re.compile(r"\b(lookup|rand\w+|now|ago|date\w*|uuidv4|gen\w*(?:Cert|CA|Key\w*)|shuffle|htpasswd|env)\s")
    found = [
        f"{path.name}: {action}"
        for path in sorted((CHART / "templates").rglob("*.*"))
        for action in re.findall(r"\{\{-?(?!\s*/\*)(.*?)\}\}", path.read_text(), re.DOTALL)
        if impure.search(re.sub(r'"[^"]*"', '""', action))
    ]

    assert found == []


@pytest.mark.parametrize("name", NAMES)
def test_the_linter_has_nothing_to_say(name: str) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(PROFILES / f"{name}.yaml"))


def test_the_linter_has_nothing_to_say_to_the_crds() -> None:
    helm("lint", "--strict", str(CRDS))


@pytest.mark.parametrize("name", NAMES)
def test_only_the_test_pod_is_a_hook(name: str, profiles: dict[str, Rendered]) -> None:
    hooks = {
        document["metadata"]["name"]: document["metadata"]["annotations"]["helm.sh/hook"]
        for document in profiles[name].objects
        if any(key.startswith("helm.sh/hook") for key in document["metadata"].get("annotations", {}))
    }

    assert hooks == {"kubeharness-test": "test"}


@pytest.mark.parametrize("name", NAMES)
def test_no_pod_is_told_of_services_by_variables(name: str, profiles: dict[str, Rendered]) -> None:
    """A Service of ours would set KUBEHARNESS_…, and settings would read it."""
    assert {pod["spec"]["enableServiceLinks"] for pod in profiles[name].pods().values()} == {False}


def test_a_digest_pins_each_container_of_ours() -> None:
    digest = "sha256:" + "0123456789abcdef" * 4
    rendered = render({"image": {"repository": "example.test/kubeharness", "digest": digest, "tag": "ignored"}})
    images = [container["image"] for container in containers(rendered)]

    assert len(images) == 6
    assert all(DIGEST.fullmatch(image) for image in images), images


def test_without_a_digest_the_image_is_the_release_s(profiles: dict[str, Rendered]) -> None:
    release = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]

    assert {container["image"] for container in containers(profiles["default"])} == {f"kubeharness:{release}"}


def test_namespaced_mode_has_no_cluster_role_and_one_binding(profiles: dict[str, Rendered]) -> None:
    rendered = profiles["namespaced"]

    assert rendered.of("ClusterRole") == []
    assert [binding["roleRef"]["name"] for binding in rendered.of("ClusterRoleBinding")] == ["system:auth-delegator"]
    assert render({"namespaces": ["team-a"]}).of("ClusterRoleBinding") == []


def test_without_rbac_nothing_of_it_is_rendered() -> None:
    rendered = render({"rbac": {"create": False}, "auth": {"modes": ["token", "kubernetes"]}})
    kinds = {document["kind"] for document in rendered.objects}

    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert "ServiceAccount" in kinds


@pytest.mark.parametrize("name", NAMES)
def test_only_who_asks_the_api_server_has_a_token(name: str, profiles: dict[str, Rendered]) -> None:
    holders = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in profiles[name].pods().values()
        if pod["spec"]["automountServiceAccountToken"]
    }
    expected = {
        "namespaced": {"gateway", "worker", "operator", "migrate"},
        "httproute": {"gateway", "worker", "operator"},
    }

    assert holders == expected.get(name, {"worker", "operator", "migrate"})
    assert {account["automountServiceAccountToken"] for account in profiles[name].of("ServiceAccount")} == {False}


def test_the_token_secret_has_no_data_and_is_kept(profiles: dict[str, Rendered]) -> None:
    secret = profiles["default"].one("Secret", "kubeharness-tokens")

    assert not secret.keys() & {"data", "stringData"}
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert render({"auth": {"existingTokensSecret": "mine"}}).of("Secret") == []


def test_the_migrate_job_is_named_by_schema_and_spec_and_never_expires(profiles: dict[str, Rendered]) -> None:
    [job] = profiles["default"].of("Job")
    [same] = render({"gateway": {"replicas": 5}, "worker": {"slots": 1}, "logging": {"level": "info"}}).of("Job")
    [other] = render({"image": {"tag": "next"}}).of("Job")

    assert re.fullmatch(rf"kubeharness-migrate-{BUILD}-[0-9a-f]{{8}}", job["metadata"]["name"])
    assert "ttlSecondsAfterFinished" not in job["spec"]
    assert same["metadata"]["name"] == job["metadata"]["name"]
    assert other["metadata"]["name"] != job["metadata"]["name"]


def test_the_chart_names_the_schema_of_this_build() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]

    assert annotations["kubeharness.dev/schema"] == str(BUILD), "write BUILD of store/migrate.py into Chart.yaml"


def test_only_the_job_holds_the_dsn_with_ddl_rights(profiles: dict[str, Rendered]) -> None:
    keys = {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: {
            item["valueFrom"]["secretKeyRef"]["key"]
            for container in pod["spec"]["containers"]
            for item in container.get("env", ())
            if "secretKeyRef" in item.get("valueFrom", {})
        }
        for pod in profiles["external-dsn"].pods().values()
    }

    assert keys == {
        "gateway": {"pooled", "direct"},
        "worker": {"pooled", "direct"},
        "operator": {"pooled", "direct"},
        "migrate": {"pooled", "direct", "owner"},
        "test": set(),
    }


def test_the_gateway_sees_digests_of_tokens_and_never_a_token(profiles: dict[str, Rendered]) -> None:
    pod = profiles["default"].pods()["Deployment/kubeharness-gateway"]
    [volume] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "tokens"]

    assert volume["secret"]["items"] == [{"key": "tokens.json", "path": "tokens.json"}]


def test_one_value_is_the_prefix_of_gateway_route_and_ingress_c51() -> None:
    routes = {"ingress": {"enabled": True}, "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}
    rendered = render({"pathPrefix": "/harness", **routes})
    bare = render(routes)

    for found, prefix in ((rendered, "/harness"), (bare, "/")):
        [rule] = found.one("HTTPRoute", "kubeharness-gateway")["spec"]["rules"]
        [host] = found.one("Ingress", "kubeharness-gateway")["spec"]["rules"]
        [container] = found.pods()["Deployment/kubeharness-gateway"]["spec"]["containers"]
        env = {item["name"]: item.get("value") for item in container["env"]}

        assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": prefix}}]
        assert [path["path"] for path in host["http"]["paths"]] == [prefix]
        assert env["KUBEHARNESS_ROOT_PATH"] == prefix.rstrip("/")
        assert "filters" not in rule


def test_the_doors_let_a_stream_through(profiles: dict[str, Rendered]) -> None:
    [rule] = profiles["httproute"].one("HTTPRoute", "kubeharness-gateway")["spec"]["rules"]
    annotations = profiles["ingress"].one("Ingress", "kubeharness-gateway")["metadata"]["annotations"]

    assert rule["timeouts"] == {"request": "0s"}
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert int(annotations["nginx.ingress.kubernetes.io/proxy-read-timeout"]) >= 3600
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == "8388608"


def test_an_annotation_of_the_user_wins() -> None:
    annotation = {"nginx.ingress.kubernetes.io/proxy-buffering": "on"}
    rendered = render({"ingress": {"enabled": True, "annotations": annotation}})
    annotations = rendered.one("Ingress", "kubeharness-gateway")["metadata"]["annotations"]

    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "on"


@pytest.mark.parametrize("component", ["gateway", "worker"])
def test_a_drain_takes_one_pod_at_a_time(profiles: dict[str, Rendered], component: str) -> None:
    budget = profiles["default"].one("PodDisruptionBudget", f"kubeharness-{component}")["spec"]
    deployment = profiles["default"].one("Deployment", f"kubeharness-{component}")["spec"]

    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"] == deployment["selector"]
    assert deployment["selector"]["matchLabels"].items() <= deployment["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_short_enough_for_any_release(name: str) -> None:
    long = "a" * 53
    rendered = render(profile=name, release=long)

    named = {document["metadata"]["name"]: document["kind"] for document in rendered.objects}
    assert [name for name, kind in named.items() if len(name) > 63 and kind != "ClusterRoleBinding"] == []


def test_the_crds_chart_holds_the_crds_annotated_to_stay() -> None:
    found = Rendered(helm("template", "crds", str(CRDS))).objects
    committed = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    for crd in committed:
        crd["metadata"]["annotations"] = {
            "helm.sh/resource-policy": "keep",
            "argocd.argoproj.io/sync-options": "Prune=false,Delete=false",
        }

    assert sorted(found, key=lambda crd: str(crd["metadata"]["name"])) == committed


@pytest.mark.parametrize(("name", "kind"), [("default", "ClusterRole"), ("namespaced", "Role")])
def test_the_remedy_for_a_forbidden_secret_names_what_is_there(
    name: str, kind: str, profiles: dict[str, Rendered]
) -> None:
    [container] = profiles[name].pods()["Deployment/kubeharness-worker"]["spec"]["containers"]
    [grant] = [item["value"] for item in container["env"] if item["name"] == "KUBEHARNESS_SECRETS_GRANT"]
    account = profiles[name].one("ServiceAccount", "kubeharness-worker")["metadata"]

    assert grant == (
        f"--{kind.lower()}=kubeharness-worker-secrets --serviceaccount={account['namespace']}:{account['name']}"
    )
    assert "kubeharness-worker-secrets" in {found["metadata"]["name"] for found in profiles[name].of(kind)}
