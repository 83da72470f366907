"""What a user writes: the models behind the CRDs, and the pure way from them to what a run needs.

May import core, pydantic and PyYAML. No I/O but `manifests` and `crdgen`, which read and write files.
"""
