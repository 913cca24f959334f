"""Compiled autograd: whole backward passes as one graph each.

`context.py` stands before autograd's engine; `description.py` reads off autograd's graph what a
pass depends on; `recorder.py` writes a pass down while the engine runs it; `sizes.py` makes one
graph for several sizes; `passes.py` keeps compiled passes and runs them; `opaque.py` calls Python
functions (hooks, backwards of functions) from inside of a graph.
"""

from dovetail_autograd_aot.aot_log import BackwardReport
from dovetail_autograd_aot.compiled_backward.context import compiled_autograd

__all__ = ["BackwardReport", "compiled_autograd"]
