module kubeharness.dev/tests/cluster/pod

go 1.26.0
