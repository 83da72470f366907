"""A real Kubernetes for tests: etcd, kube-apiserver and kube-controller-manager on loopback (tier one).

Claims about server-side apply, CEL, RBAC and the audit log are shown here, never on an emulator alone.
Tests take the fixtures of `cluster.plugin`; people take `python -m cluster up`. What runs pods (node,
images, ingress, and `kind` where a Docker engine answers) is tier two and does not live here yet.
"""
