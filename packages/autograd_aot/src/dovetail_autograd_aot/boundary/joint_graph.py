"""The stage boundaries of autograd_aot: what a joint trace and its partition hold.

Order of a joint graph's placeholders: `primals` (the flat inputs of the captured graph, mutated or
not; then the `AddedInputs`), then `tangents` (one for each differentiable forward output). Order of
its outputs: forward outputs, gradients (one for each primal, None where there is none).

Forward outputs are, in this order: fresh user outputs, new values of mutated inputs, hidden bases
(intermediates that no user output is, but of which several are views), sizes (integers that views
are regenerated from).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from torch import Tensor
from torch.fx import GraphModule, Node

from dovetail_autograd_aot.boundary import return_program

# --- inputs ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MutatedInput:
    """Input `index` gets a new value; `data_only` when the write happens under no_grad or the
    input does not require grad (a plain `copy_` outside autograd); `silent` when its version
    counter does not tell (a write through `.data`, batch norm's statistics). `grown`: a storage
    that is an input has so many elements then, more than before. `reshaped`: the new value has the
    shape that the input changes to in place."""

    index: int
    data_only: bool
    silent: bool = False
    grown: int | None = None
    reshaped: bool = False


@dataclass(frozen=True)
class ReshapedInput:
    """Input `index` becomes, in place, another view of itself (`t_`, `squeeze_`, `detach_` ...):
    these operators are to be run on it after everything else, each with or without grad mode."""

    index: int
    steps: tuple[return_program.ViewStep, ...]
    grad_mode: tuple[bool, ...]


@dataclass(frozen=True)
class InputChanges:
    """What a call does to its inputs.

    `set_inputs` become aliases (`set_`) of the last outputs, which are there for that. Of version
    counters: `bumped` inputs are not mutated, but their counters tell of a write; `extra_writes`
    are (input, how many writes its counter tells of besides that of its new value); `counted`
    inputs are not written to, but share the counter of one that is mutated.
    """

    mutated: tuple[MutatedInput, ...] = ()
    reshaped: tuple[ReshapedInput, ...] = ()
    set_inputs: tuple[int, ...] = ()
    bumped: tuple[int, ...] = ()
    extra_writes: tuple[tuple[int, int], ...] = ()
    counted: tuple[int, ...] = ()

    def indices(self) -> set[int]:
        """The inputs that are no longer what they were: in value, shape, memory or version."""
        written = {change.index for change in self.mutated}
        return written.union((r.index for r in self.reshaped), self.set_inputs, self.bumped)

    def texts(self, num_fresh: int) -> dict[int, list[str]]:
        """For each input what happens to it, in words; new values are forward outputs from number
        `num_fresh` on."""
        found: dict[int, list[str]] = {}

        def tell(index: int, text: str) -> None:
            found.setdefault(index, []).append(text)

        for number, written in enumerate(self.mutated, num_fresh):
            how = ", unseen by autograd" if written.data_only else ""
            how += ", not counted" if written.silent else ""
            tell(written.index, f"gets forward output {number}{how}")
        for reshaped in self.reshaped:
            tell(reshaped.index, f"changes in place: {return_program.chain_text(reshaped.steps)}")
        for number, index in enumerate(self.set_inputs):
            tell(index, f"is set_ to alias {number}")
        for index in self.bumped:
            tell(index, "version counter tells of a write")
        for index, count in self.extra_writes:
            tell(index, f"{count} more writes counted")
        for index in self.counted:
            tell(index, "shares the version counter of a mutated input")
        return found


@dataclass(frozen=True)
class SharedStorage:
    """A storage of `size` elements, in which the inputs `members` lie, that is an input itself: of
    their dtype, or, if they have several, of integers, `dtype`."""

    members: tuple[int, ...]
    size: int
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class AddedInputs:
    """The primals behind the inputs of the captured graph: `constants`, tensors that it held as
    attributes; then the `storages`; then `carriers`, which are read by nothing: they stand for
    tensor subclasses, whose gradients they have."""

    constants: tuple[Tensor, ...] = ()
    storages: tuple[SharedStorage, ...] = ()
    carriers: int = 0


@dataclass(frozen=True)
class MovedInput:
    """Input `index`, whose version counter tells of a write. `with_views`: a view of it is returned
    that autograd may be asked for the gradient of; `graded`: autograd saw the write; `reshaped`: it
    changes its shape, too."""

    index: int
    graded: bool
    with_views: bool
    reshaped: bool = False


@dataclass(frozen=True)
class InputAssumptions:
    """What a joint graph takes for granted of inputs, and no guard checks: that the pairs of inputs
    `apart` share no element, and that a write gives none of the inputs `moved` another node of
    autograd's graph (see `joint/input_mutations.py`)."""

    apart: tuple[tuple[int, int], ...] = ()
    moved: tuple[MovedInput, ...] = ()


# --- the calling convention -----------------------------------------------------------------------


@dataclass(frozen=True)
class LostGradients:
    """What eager's backward from tangent number `tangent` to one of the primals in the bit set
    `primals` would raise."""

    tangent: int
    primals: int
    error: str


@dataclass(frozen=True)
class Signature:
    """The calling convention of a joint graph and of the forward and backward cut from it.

    `differentiable` are the indices of the forward outputs that carry gradients, in the order of
    the tangents. `hidden` and `sizes` count the forward outputs of those kinds. `backward_error`
    is what eager's backward would raise: then there is none; `lost` what it would raise from some
    of the tangents to some of the primals: there are gradients for the other pairs.
    """

    primals_require_grad: tuple[bool, ...]
    outputs: tuple[return_program.OutputInfo, ...]
    changes: InputChanges
    differentiable: tuple[int, ...] = ()
    hidden: int = 0
    sizes: int = 0
    backward_error: str | None = None
    lost: tuple[LostGradients, ...] = ()

    @property
    def num_primals(self) -> int:
        """The number of primals."""
        return len(self.primals_require_grad)

    @property
    def user_outputs(self) -> tuple[return_program.OutputInfo, ...]:
        """The outputs that the caller gets."""
        return self.outputs[: len(self.outputs) - len(self.changes.set_inputs)]

    @property
    def needs_backward(self) -> bool:
        """True if some output carries a gradient to some primal."""
        return bool(self.differentiable) and any(self.primals_require_grad)

    @property
    def num_fresh(self) -> int:
        """The number of fresh user outputs."""
        return sum(o.kind is return_program.OutputKind.FRESH for o in self.outputs)

    @property
    def num_forward_outputs(self) -> int:
        """The number of outputs of a forward graph, saved values not counted."""
        return self.num_fresh + len(self.changes.mutated) + self.hidden + self.sizes

    def as_text(self, primals: Sequence[str] = (), results: Sequence[str] = ()) -> str:
        """A line for each input, with what happens to it; for each forward output; and for each
        user output. `primals` and `results` describe the inputs and forward outputs."""
        changes = self.changes.texts(self.num_fresh)
        lines = []
        for i, requires_grad in enumerate(self.primals_require_grad):
            notes = [*primals[i : i + 1], *(["requires grad"] if requires_grad else [])]
            lines.append((f"input {i}", [*notes, *changes.get(i, [])]))
        for i in range(self.num_forward_outputs):
            notes = [*results[i : i + 1]]
            if self.needs_backward and i in self.differentiable:
                notes.append(f"tangent {self.differentiable.index(i)}")
            lines.append((f"forward output {i}", notes))
        own = len(self.user_outputs)
        for i, info in enumerate(self.outputs):
            lines.append((f"output {i}" if i < own else f"alias {i - own}", [str(info)]))
        lines += [(f"backward of tangent {e.tangent} raises", [e.error]) for e in self.lost]
        if self.backward_error is not None:
            lines.append(("backward raises", [self.backward_error]))
        texts = (f"{what}: {', '.join(notes)}" if notes else what for what, notes in lines)
        return "".join(f"# {' '.join(text.split())}\n" for text in texts)


# --- the graphs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardFacts:
    """What is known of the backward of a joint graph, besides its nodes.

    `reached` tells for each primal, as a bit set, which tangents give it a gradient (which may be
    zeros, and then depends on none in the graph); `paths` whether autograd has a path to it from an
    output, be there a gradient or none. `freed` tells what a backward frees in eager: of autograd's
    nodes that save something, the tangents that lead to one, and the primals that it leads to, as
    bit sets. `user_code`: it holds backwards of the user's own, or hooks. It is not `additive` if
    these make of a sum of gradients something else than the sum of what they make of each.
    """

    reached: tuple[int, ...] = ()
    paths: tuple[bool, ...] = ()
    freed: tuple[tuple[int, int], ...] = ()
    user_code: bool = False
    additive: bool = True


@dataclass(frozen=True)
class OtherCounters:
    """Where the aliases of one memory have several counters of writes, and eager's backward looks
    at others than those of what is kept: that is not told of writes to the forward outputs
    `results` and to the `primals`; user outputs `watched` may not be written to."""

    results: tuple[int, ...] = ()
    primals: tuple[int, ...] = ()
    watched: tuple[int, ...] = ()


@dataclass(frozen=True)
class JointGraph:
    """A functional ATEN/CORE_ATEN graph of forward and backward together.

    `points` are the outputs as nodes of autograd's graph, where there are several. `counters` tell
    which writes before a backward it is told of. `eager_cost` is what the calls cost eager, if they
    have next to nothing to compute: about as many calls of simple operators.
    """

    gm: GraphModule
    signature: Signature
    added: AddedInputs = AddedInputs()
    assumed: InputAssumptions = InputAssumptions()
    backward: BackwardFacts = BackwardFacts()
    points: tuple[return_program.GradientPoint, ...] = ()
    counters: OtherCounters = OtherCounters()
    eager_cost: int = 0

    def as_text(self) -> str:
        """The signature, then the graph as Python text."""
        return f"{_signature_text(self.signature, self.gm)}{self.gm.code}"


@dataclass(frozen=True)
class SavedAlias:
    """Forward output `output` is a view of saved forward value `saved`: it must share the saved
    tensor's version counter, so that writing to it is noticed in the backward."""

    output: int
    saved: int


@dataclass(frozen=True)
class PartitionedGraph:
    """Forward and backward, cut apart.

    forward: primals -> forward outputs, saved values (those that are not primals).
    backward: saved primals, saved values, tangents -> gradients (one for each primal, None where
    there is none). None in inference.
    `saved` names the saved nodes; tensors and sizes alike: first the primals (`saved_primals` are
    their indices), then values from the forward. `gradient_tangents` tells for each primal, as a
    bit set, which tangents its gradient depends on. `saved_bytes` are the bytes kept beyond the
    primals (at hint sizes).
    """

    forward: GraphModule
    backward: GraphModule | None
    saved: tuple[str, ...]
    signature: Signature
    saved_primals: tuple[int, ...] = ()
    saved_aliases: tuple[SavedAlias, ...] = ()
    gradient_tangents: tuple[int, ...] = ()
    saved_bytes: int = 0

    def as_text(self) -> str:
        """What comes in and goes out, both graphs as Python text, and what passes between them."""
        signature = _signature_text(self.signature, self.forward)
        if self.backward is None:
            return f"{signature}# forward\n{self.forward.code}\n# no backward\n"
        saved = _described(self.backward.graph.find_nodes(op="placeholder")[: len(self.saved)])
        own = len(self.saved_primals)
        pairs = zip(self.saved_primals, saved[:own], strict=True)
        lines = [f"# saved input {number}: {text}\n" for number, text in pairs]
        lines += [f"# saved value: {text}\n" for text in saved[own:]]
        return (
            f"{signature}{''.join(lines)}# saved beyond inputs: {self.saved_bytes:,} bytes\n"
            f"# forward\n{self.forward.code}\n# backward\n{self.backward.code}"
        )


def _signature_text(signature: Signature, gm: GraphModule) -> str:
    """The signature's text, with the names and kinds of a graph's inputs and results."""
    outputs: Any = gm.graph.output_node().args[0]
    inputs = _described(gm.graph.find_nodes(op="placeholder"))
    return signature.as_text(inputs, _described(outputs[: signature.num_forward_outputs]))


def _described(values: Iterable[Any]) -> list[str]:
    """Nodes by their names and, of tensors, dtypes and sizes."""
    found = []
    for node in values:
        value = node.meta.get("val") if isinstance(node, Node) else None
        kind = ""
        if isinstance(value, FakeTensor):
            sizes = ", ".join(map(str, value._sizes))
            kind = f" {str(value._dtype).removeprefix('torch.')}[{sizes}]"
        found.append(f"{node}{kind}")
    return found
