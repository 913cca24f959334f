"""The stage boundaries of autograd_aot: what a joint trace and its partition hold.

Order of a joint graph's placeholders: `primals` (the flat inputs of the captured graph, mutated or
not), then `tangents` (one for each differentiable output). Order of its outputs: user outputs, new
values of mutated inputs, gradients (one for each primal, None where there is none).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch.fx import GraphModule


class OutputKind(Enum):
    """How a user output relates to the inputs."""

    FRESH = "fresh"  # a new tensor
    INPUT = "input"  # the very input object
    VIEW_OF_INPUT = "view_of_input"  # a view, regenerated from the input at run time
    VIEW_OF_OUTPUT = "view_of_output"  # shares storage with another output
    CONSTANT = "constant"  # a Python value or None


@dataclass(frozen=True)
class OutputInfo:
    """One user output. `base` is the index of the input or output it aliases; `view` its
    (sizes, strides, storage offset) there; `value` a constant's value."""

    kind: OutputKind
    requires_grad: bool = False
    base: int | None = None
    view: tuple[tuple[int | torch.SymInt, ...], tuple[int | torch.SymInt, ...], int | torch.SymInt] | None = None  # noqa: E501
    value: object = None


@dataclass(frozen=True)
class MutatedInput:
    """Input `index` gets a new value; `data_only` when the write happens under no_grad or the
    input does not require grad (a plain `copy_` outside autograd)."""

    index: int
    data_only: bool


@dataclass(frozen=True)
class Signature:
    """The calling convention of a joint graph and of the pieces cut from it."""

    num_primals: int
    outputs: tuple[OutputInfo, ...]
    mutated: tuple[MutatedInput, ...]
    primals_require_grad: tuple[bool, ...]

    @property
    def needs_backward(self) -> bool:
        """True if some output carries a gradient to some primal."""
        return any(o.requires_grad for o in self.outputs) and any(self.primals_require_grad)


@dataclass(frozen=True)
class JointGraph:
    """A functional ATEN/CORE_ATEN graph of forward and backward together."""

    gm: GraphModule
    signature: Signature

    def as_text(self) -> str:
        """The signature, then the graph as Python text."""
        return f"# {self.signature}\n{self.gm.code}"


@dataclass(frozen=True)
class PartitionedGraph:
    """Forward and backward, cut apart.

    forward: primals -> fresh user outputs, new values of mutated inputs, saved values.
    backward: saved values, tangents -> gradients. None in inference.
    `saved` names the saved nodes; tensors and sizes alike.
    """

    forward: GraphModule
    backward: GraphModule | None
    saved: tuple[str, ...]
    signature: Signature

    def as_text(self) -> str:
        """Both graphs as Python text, and what passes between them."""
        backward = self.backward.code if self.backward is not None else "# no backward\n"
        return (
            f"# {self.signature}\n# forward\n{self.forward.code}\n"
            f"# saved: {', '.join(self.saved)}\n# backward\n{backward}"
        )
