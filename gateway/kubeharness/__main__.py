"""`python -m kubeharness`."""

from kubeharness.cli import main

if __name__ == "__main__":
    main()
