"""What the product's ServiceAccounts may do, asked of a real server with their own tokens."""

import pytest

from cluster.access import Cluster, Rule
from cluster.accounts import GATEWAY, OPERATOR, SYSTEM_NAMESPACE, WORKER, install_accounts, serve_namespace
from cluster.errors import KubectlFailed

SECRET_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def verbs_on(rules: list[Rule], resource: str) -> set[str]:
    return {verb for rule in rules if resource in rule.resources for verb in rule.verbs}


@pytest.fixture(scope="module")
def accounts(control_plane: Cluster) -> Cluster:
    install_accounts(control_plane)
    return control_plane


def test_the_operator_has_no_verb_on_secrets(accounts: Cluster, namespace: str) -> None:
    operator = accounts.service_account_kubeconfig(SYSTEM_NAMESPACE, OPERATOR)
    rules = accounts.can_i_list(namespace=namespace, kubeconfig=operator)

    for verb in SECRET_VERBS:
        assert not any(rule.covers(verb, "secrets") for rule in rules), verb
        assert not accounts.can_i(verb, "secrets", namespace=namespace, kubeconfig=operator), verb
    with pytest.raises(KubectlFailed, match="cannot list resource"):
        accounts.kubectl("get", "secrets", "--namespace", namespace, kubeconfig=operator)
    with pytest.raises(KubectlFailed, match="cannot get resource"):
        accounts.kubectl("get", "secret", "any", "--namespace", namespace, kubeconfig=operator)


@pytest.mark.parametrize("kind", ["agents", "modelproviders", "toolservers"])
def test_the_operator_reads_our_kinds_and_writes_only_their_status(
    accounts: Cluster, namespace: str, kind: str
) -> None:
    operator = accounts.service_account_kubeconfig(SYSTEM_NAMESPACE, OPERATOR)
    rules = accounts.can_i_list(namespace=namespace, kubeconfig=operator)
    ours = [rule for rule in rules if rule.groups == ("kubeharness.dev",)]

    assert verbs_on(ours, kind) == {"get", "list", "watch"}
    assert verbs_on(ours, f"{kind}/status") == {"patch"}


def test_the_worker_gets_a_secret_by_name_and_lists_none(accounts: Cluster, namespace: str) -> None:
    serve_namespace(accounts, namespace)
    accounts.kubectl("create", "secret", "generic", "key", "--from-literal=a=b", "--namespace", namespace)
    worker = accounts.service_account_kubeconfig(SYSTEM_NAMESPACE, WORKER)
    found = accounts.kubectl("get", "secret", "key", "-o", "name", "-n", namespace, kubeconfig=worker)

    assert found.strip() == "secret/key"
    with pytest.raises(KubectlFailed, match="cannot list resource"):
        accounts.kubectl("get", "secrets", "-n", namespace, kubeconfig=worker)
    for verb in SECRET_VERBS:
        allowed = accounts.can_i(verb, "secrets", namespace=namespace, kubeconfig=worker)
        assert allowed == (verb == "get"), verb


def test_the_worker_reads_no_secret_where_it_serves_nobody(accounts: Cluster, namespace: str) -> None:
    worker = accounts.service_account_kubeconfig(SYSTEM_NAMESPACE, WORKER)

    assert not accounts.can_i("get", "secrets", namespace=namespace, kubeconfig=worker)


def test_the_gateway_may_do_what_every_account_may_and_no_more(accounts: Cluster, namespace: str) -> None:
    accounts.kubectl("create", "serviceaccount", "anybody", "--namespace", namespace)
    anybody = accounts.service_account_kubeconfig(namespace, "anybody")
    gateway = accounts.service_account_kubeconfig(SYSTEM_NAMESPACE, GATEWAY)

    assert accounts.can_i_list(namespace=namespace, kubeconfig=gateway) == accounts.can_i_list(
        namespace=namespace, kubeconfig=anybody
    )
