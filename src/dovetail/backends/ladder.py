"""The debugging backends that run a captured graph as it is: what fails with them is capture's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail_capture import takes_symbolic_graphs
from dovetail_capture.errors import BackendError
from dovetail_prims.conditionals import run_plainly
from torch.fx import GraphModule


@takes_symbolic_graphs
def eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the captured graph as it is: capture without a compiler."""
    return run_plainly(gm)


@takes_symbolic_graphs
def eager_noexcept(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as it is; whatever it raises is told to come from the graph (BackendError)."""
    plain = run_plainly(gm)

    def run(*inputs: Any) -> Any:
        try:
            return plain(*inputs)
        except Exception as error:
            raise BackendError(f"the captured graph raised {error!r}:\n{gm.code}") from error

    return run


@takes_symbolic_graphs
def pre_dispatch_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Print the graph that was captured, which is what stands before dispatch, and run it."""
    gm.print_readable()
    return run_plainly(gm)
