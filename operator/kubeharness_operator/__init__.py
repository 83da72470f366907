"""The Kubernetes operator that compiles, publishes and reports Kubeharness' custom resources."""

__all__: list[str] = []
