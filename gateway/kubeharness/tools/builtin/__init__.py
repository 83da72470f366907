"""The built-in tools, one file each."""

from collections.abc import Callable, Mapping

from kubeharness.tools.builtin.clock import clock
from kubeharness.tools.toolbox import Tool

BUILTINS: Mapping[str, Callable[[], Tool]] = {"clock": clock}
"""Name in an Agent's `tools` → the tool."""
