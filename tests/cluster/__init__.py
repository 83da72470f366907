"""A real Kubernetes for tests, in two tiers, and the product's image.

Tier one (`control_plane`): etcd, kube-apiserver and kube-controller-manager on loopback. Claims about server-side
apply, CEL, RBAC and the audit log are shown here, never on an emulator alone. Tier two (`own_node`): a whole node with
a router and a Postgres in a network namespace of its own; rollouts, ingress and the chart are shown here.
Tests take the fixtures of `cluster.plugin`, which `cluster.selection` serves; people take `make cluster-up`.
"""
