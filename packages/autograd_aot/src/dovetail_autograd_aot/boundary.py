"""The stage boundaries of autograd_aot: what a joint trace and its partition hold.

Order of a joint graph's placeholders: `primals` (the flat inputs of the captured graph, mutated or
not), then `tangents` (one for each differentiable forward output). Order of its outputs: forward
outputs, gradients (one for each primal, None where there is none).

Forward outputs are, in this order: fresh user outputs, new values of mutated inputs, hidden bases
(intermediates that no user output is, but of which several are views), sizes (integers that views
are regenerated from).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule


class OutputKind(Enum):
    """How a user output relates to the inputs."""

    FRESH = "fresh"  # a new tensor (or a size)
    INPUT = "input"  # the very input object
    VIEW_OF_INPUT = "view_of_input"  # a view, regenerated from the input at run time
    VIEW_OF_OUTPUT = "view_of_output"  # shares storage with another output
    DUPLICATE = "duplicate"  # the very object of an earlier user output
    CONSTANT = "constant"  # a Python value or None


@dataclass(frozen=True)
class SizeOutput:
    """Stands in the arguments of a view step for the forward's size output number `index`."""

    index: int

    def __str__(self) -> str:
        return f"size {self.index}"


@dataclass(frozen=True)
class ViewsAtOnce:
    """The call, by its number in the trace, of an operator that takes `count` views of a tensor at
    once (`split`, `unbind`); `args` are those after the tensor."""

    op: OpOverload
    args: tuple[object, ...]
    count: int
    call: int


@dataclass(frozen=True)
class ViewStep:
    """One view operator: applied to a base with `args` and `kwargs` after the tensor, in this
    `grad_mode`. (A view that is taken under no_grad has no gradient to give on.) `of` is the call
    that the view is number `index` of, if it was taken together with others."""

    op: OpOverload
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...] = ()
    grad_mode: bool = field(default=True, compare=False)
    of: ViewsAtOnce | None = field(default=None, compare=False)
    index: int = field(default=0, compare=False)

    def __str__(self) -> str:
        if self.of is not None:
            return f"{self.of.op}({', '.join(map(str, self.of.args))})[{self.index}]"
        named = (f"{name}={value}" for name, value in self.kwargs)
        return f"{self.op}({', '.join([*map(str, self.args), *named])})"


@dataclass(frozen=True)
class TensorRef:
    """What an output lies in: input number `index` of a call, or that forward output."""

    is_input: bool
    index: int

    def __str__(self) -> str:
        return f"{'input' if self.is_input else 'forward output'} {self.index}"


@dataclass(frozen=True)
class NewTensor:
    """Forward output number `forward`: a tensor, or a size."""

    forward: int

    def __str__(self) -> str:
        return f"forward output {self.forward}"


@dataclass(frozen=True)
class Comparison:
    """A bool: what `compare` says of forward output number `forward` and `number`."""

    forward: int
    compare: Callable[[Any, int], bool]
    number: int

    def __str__(self) -> str:
        return f"{self.compare.__name__}(forward output {self.forward}, {self.number})"


@dataclass(frozen=True)
class InMemoryOf:
    """Forward output number `forward`, with its own gradient, in the memory of `base`, where the
    steps `view` lead to it. `from_base`: as for `ViewOf`."""

    forward: int
    base: TensorRef
    view: tuple[ViewStep, ...]
    from_base: bool = False

    def __str__(self) -> str:
        steps = _chain_text(self.view)
        return f"forward output {self.forward}, in the memory of {self.base}{steps}"


@dataclass(frozen=True)
class InputItself:
    """The very object of input number `primal`."""

    primal: int

    def __str__(self) -> str:
        return f"input {self.primal} itself"


@dataclass(frozen=True)
class Duplicate:
    """The very object of the earlier user output number `output`."""

    output: int

    def __str__(self) -> str:
        return f"the same object as output {self.output}"


@dataclass(frozen=True)
class Constant:
    """A Python value or None."""

    value: object

    def __str__(self) -> str:
        return f"the constant {self.value!r}"


@dataclass(frozen=True)
class ViewOf:
    """A view of `base`, taken by the steps `view`.

    `from_base`: as_strided in `view` counts from where the base begins, not from the beginning of
    its storage. `detached`: for autograd it is no view of the base, but of what so many steps lead
    to (of nothing, if these are all), which is user output number `view_of`, if that is one.
    Without `detached`, `view_of` is the view of the same base that it was taken of, through which
    its gradient goes. `of_reshaped`: it is taken of an input after that has changed its shape in
    place, `of_set`: after a `set_`.
    """

    base: TensorRef
    view: tuple[ViewStep, ...]
    view_of: int | None = None
    detached: int | None = None
    from_base: bool = False
    of_reshaped: bool = False
    of_set: bool = False

    def __str__(self) -> str:
        through = "" if self.view_of is None else f", by way of output {self.view_of}"
        after = ", after it changed its shape" if self.of_reshaped else ""
        after += ", after set_" if self.of_set else ""
        detached = "" if self.detached is None else f", detached after {self.detached} steps"
        return f"view of {self.base}{_chain_text(self.view)}{through}{after}{detached}"


def _chain_text(steps: tuple[ViewStep, ...]) -> str:
    return "".join(f".{step}" for step in steps)


ReturnStep = NewTensor | Comparison | InMemoryOf | InputItself | Duplicate | Constant | ViewOf


@dataclass(frozen=True)
class OutputInfo:
    """One user output: the `step` that makes it, and what autograd knows of it.

    `is_leaf` is for outputs that require grad: a leaf has no grad_fn. `several`: one operator made
    it together with other views, and autograd lets nobody write to those. `counter`: outputs of one
    number share a version counter that is not their base's (views of `.data`). `lost`: why autograd
    has lost track of it (empty if it has not). `untracked`: a view, made under no_grad, of a tensor
    that requires grad. `by_user`: for autograd, it is a view that a Function of the user's made, or
    a view of one, which nobody may write to: one that is `InMemoryOf` another, of that.
    """

    step: ReturnStep
    requires_grad: bool = False
    is_leaf: bool = False
    several: bool = False
    by_user: bool = False
    counter: int | None = None
    lost: str = ""
    untracked: bool = False

    @property
    def kind(self) -> OutputKind:
        """How it relates to the inputs."""
        if isinstance(self.step, ViewOf):
            of_input = self.step.base.is_input
            return OutputKind.VIEW_OF_INPUT if of_input else OutputKind.VIEW_OF_OUTPUT
        return _KINDS.get(type(self.step), OutputKind.FRESH)

    @property
    def base(self) -> int | None:
        """The number of the input, forward output or user output that it is made of."""
        match self.step:
            case NewTensor(forward) | Comparison(forward) | InMemoryOf(forward):
                return forward
            case InputItself(number) | Duplicate(number):
                return number
            case ViewOf(base):
                return base.index
        return None

    @property
    def view(self) -> tuple[ViewStep, ...]:
        """The steps from what it lies in; none, if it is that."""
        return self.step.view if isinstance(self.step, ViewOf | InMemoryOf) else ()

    @property
    def of_reshaped(self) -> bool:
        """Whether it is a view of an input after that has changed its shape in place."""
        return isinstance(self.step, ViewOf) and self.step.of_reshaped

    @property
    def protected(self) -> bool:
        """Whether autograd lets nobody write to it."""
        return self.requires_grad and not self.is_leaf and (self.by_user or self.several)

    def lies_in(self, forward: int) -> bool:
        """Whether it is another tensor in the memory of forward output number `forward`."""
        step = self.step
        return isinstance(step, ViewOf | InMemoryOf) and step.base == TensorRef(False, forward)

    def __str__(self) -> str:
        notes = [
            ("a leaf that requires grad" if self.is_leaf else "requires grad", self.requires_grad),
            ("nobody may write to it", self.protected),
            (f"version counter {self.counter}", self.counter is not None),
            (f"autograd lost it: {self.lost}", bool(self.lost)),
            ("made under no_grad", self.untracked),
        ]
        return ", ".join([str(self.step), *(note for note, holds in notes if holds)])


_KINDS: dict[type, OutputKind] = {
    InputItself: OutputKind.INPUT,
    Duplicate: OutputKind.DUPLICATE,
    Constant: OutputKind.CONSTANT,
}


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
    steps: tuple[ViewStep, ...]
    grad_mode: tuple[bool, ...]


@dataclass(frozen=True)
class SharedStorage:
    """A storage of `size` elements, in which the inputs `members` lie, that is an input itself: of
    their dtype, or, if they have several, of integers, `dtype`."""

    members: tuple[int, ...]
    size: int
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class LostGradients:
    """What eager's backward from tangent number `tangent` to one of the primals in the bit set
    `primals` would raise."""

    tangent: int
    primals: int
    error: str


@dataclass(frozen=True)
class Signature:
    """The calling convention of a joint graph and of the pieces cut from it.

    `differentiable` are the indices of the forward outputs that carry gradients, in the order of
    the tangents. `hidden` and `sizes` count the forward outputs of those kinds. `backward_error`
    is what eager's backward would raise: then there is none; `lost` what it would raise on some of
    the ways from tangents to primals: there are gradients on the others. `bumped` are
    inputs that are not mutated, but whose version counters tell of a write. `writes` are (input,
    how many writes its version counter tells of besides that of its new value). `set_inputs` are
    inputs that become aliases (`set_`) of the last outputs, which are there for that.
    """

    num_primals: int
    outputs: tuple[OutputInfo, ...]
    mutated: tuple[MutatedInput, ...]
    primals_require_grad: tuple[bool, ...]
    differentiable: tuple[int, ...] = ()
    hidden: int = 0
    sizes: int = 0
    reshaped: tuple[ReshapedInput, ...] = ()
    backward_error: str | None = None
    lost: tuple[LostGradients, ...] = ()
    bumped: tuple[int, ...] = ()
    writes: tuple[tuple[int, int], ...] = ()
    set_inputs: tuple[int, ...] = ()

    @property
    def user_outputs(self) -> tuple[OutputInfo, ...]:
        """The outputs that the caller gets."""
        return self.outputs[: len(self.outputs) - len(self.set_inputs)]

    @property
    def needs_backward(self) -> bool:
        """True if some output carries a gradient to some primal."""
        return bool(self.differentiable) and any(self.primals_require_grad)

    @property
    def num_fresh(self) -> int:
        """The number of fresh user outputs."""
        return sum(o.kind is OutputKind.FRESH for o in self.outputs)

    @property
    def num_forward_outputs(self) -> int:
        """The number of outputs of a forward graph, saved values not counted."""
        return self.num_fresh + len(self.mutated) + self.hidden + self.sizes

    def as_text(self) -> str:
        """The calling convention: what comes in, what is written back, what is returned."""
        graded = [str(i) for i, needed in enumerate(self.primals_require_grad) if needed]
        lines = [f"inputs: {self.num_primals}; requiring grad: {', '.join(graded) or 'none'}"]
        tangents = [str(number) for number in self.differentiable]
        lines.append(f"forward outputs with tangents: {', '.join(tangents) or 'none'}")
        kinds = (("bases of views", self.hidden), ("sizes", self.sizes))
        lines += [f"forward outputs besides: {count} {kind}" for kind, count in kinds if count]
        for number, written in enumerate(self.mutated, self.num_fresh):
            how = ", unseen by autograd" if written.data_only else ""
            how += ", not counted" if written.silent else ""
            lines.append(f"copy forward output {number} into input {written.index}{how}")
        lines += [f"bump the version counter of input {i}" for i in self.bumped]
        lines += [f"count {count} more writes to input {i}" for i, count in self.writes]
        for number, info in enumerate(self.user_outputs):
            lines.append(f"output {number}: {info}")
        for reshaped in self.reshaped:
            lines.append(f"change input {reshaped.index} in place: {_chain_text(reshaped.steps)}")
        aliases = self.outputs[len(self.user_outputs) :]
        for index, info in zip(self.set_inputs, aliases, strict=True):
            lines.append(f"set_ input {index} to: {info}")
        lines += [f"backward of tangent {each.tangent} raises: {each.error}" for each in self.lost]
        if self.backward_error is not None:
            lines.append(f"backward raises: {self.backward_error}")
        return "".join(f"# {' '.join(line.split())}\n" for line in lines)


@dataclass(frozen=True)
class MovedInput:
    """Input `index`, whose version counter tells of a write. `with_views`: a view of it is returned
    that autograd may be asked for the gradient of; `graded`: autograd saw the write; `reshaped`: it
    changes its shape, too."""

    index: int
    graded: bool
    with_views: bool
    reshaped: bool = False


class PointSource(Enum):
    """Among what the tensor of a point is found after a call."""

    RESULT = 0
    INPUT = 1
    OUTPUT = 2


@dataclass(frozen=True)
class GradientPoint:
    """A tensor that a call hands out or writes to, as a place in autograd's graph.

    It is forward output number `forward`, or, if that is None, a view that is user output number
    `output`, or the input `written`, which changes its shape in place. A forward output is a user
    output, a new value of the input `written`, or, with None for both, a hidden base. `source`
    tells where the tensor is found after the call. `direct` are the points that autograd has a way
    to from it with no other in between, `below` all that it has a way to. `stage` tells when it
    gets its node, or is made: the nodes of stage 0 come first, then the inputs of stage 0 are
    written to and its views made, then come the nodes of stage 1, and so on.
    """

    forward: int | None
    output: int | None
    written: int | None
    source: PointSource
    stage: int = 0
    direct: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


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

    `constants_lifted` are tensors the captured graph held as attributes, appended to its inputs;
    after them come the `storages`. `reached` tells for each primal, as a bit set, which tangents
    give it a gradient (which may be zeros, and then depends on none in the graph). The last
    `carriers` primals are read by nothing: they stand for tensor subclasses, whose gradients they
    have. It is not `additive` if the user's own backwards make of a sum of gradients something else
    than the sum of what they make of each. `user_code`: it holds such backwards, or hooks. The
    `counted` primals are not written to, but have the version counter of one that is. `points` are
    the places of outputs in autograd's graph, where there are several. `paths` tell for each primal
    whether autograd has a way to it from an output, be there a gradient or none. The graph holds
    for inputs `moved` only if a write gives them no other places in autograd's graph than those it
    knows (see `joint/mutated_view_inputs.py`). `freed` tells what a backward frees in eager: of
    autograd's nodes that save something, the tangents that lead to one, and the primals that it
    leads to, as bit sets. `counters` tell what writes before a backward it is told of.
    """

    gm: GraphModule
    signature: Signature
    constants_lifted: tuple[torch.Tensor, ...] = ()
    storages: tuple[SharedStorage, ...] = ()
    reached: tuple[int, ...] = ()
    carriers: int = 0
    freed: tuple[tuple[int, int], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    additive: bool = True
    user_code: bool = False
    counted: tuple[int, ...] = ()
    points: tuple[GradientPoint, ...] = ()
    paths: tuple[bool, ...] = ()
    moved: tuple[MovedInput, ...] = ()
    counters: OtherCounters = OtherCounters()

    def as_text(self) -> str:
        """The signature, then the graph as Python text."""
        return f"{self.signature.as_text()}{self.gm.code}"


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
        """Both graphs as Python text, and what passes between them."""
        backward = self.backward.code if self.backward is not None else "# no backward\n"
        return (
            f"{self.signature.as_text()}# forward\n{self.forward.code}\n"
            f"# saved: {', '.join(self.saved)}\n# backward\n{backward}"
        )


def hold(root: torch.nn.Module, name: str, value: Any) -> None:
    """Let a graph's module hold what the graph reads: a tensor, or a graph."""
    if isinstance(value, torch.nn.Module):
        root.add_module(name, value)
    else:
        root.register_buffer(name, value)
