"""Dovetail's back half as a backend of torch.compile: `torch.compile(model, backend="dovetail")`.

PyTorch's front end captures; autograd_aot, inductor and runtime are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail_capture import takes_symbolic_graphs
from torch.fx import GraphModule

from dovetail.options import Options
from dovetail.pipeline import CompilerBackend


@takes_symbolic_graphs
def dovetail_backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile the graph that torch.compile captured (entry point `torch_dynamo_backends`)."""
    backend = CompilerBackend(Options())
    try:
        return backend(gm, example_inputs)
    except Exception as error:
        return backend.uncompiled(gm, error)
