"""`python -m kubeharness_operator`."""

from kubeharness_operator.cli import main

main()
