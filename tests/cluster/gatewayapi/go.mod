module kubeharness.dev/tests/cluster/gatewayapi

go 1.26.0

require sigs.k8s.io/gateway-api v1.5.1

