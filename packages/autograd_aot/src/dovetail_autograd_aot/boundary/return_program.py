"""What a call returns: the step that makes each output, and what autograd knows of it.

Each output is one step, a frozen dataclass: a result of the forward, an input itself, a view of
either. A `GradientPoint` is an output as a node of autograd's graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from torch._ops import OpOverload


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
        steps = chain_text(self.view)
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
        return f"view of {self.base}{chain_text(self.view)}{through}{after}{detached}"


def chain_text(steps: tuple[ViewStep, ...]) -> str:
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


class PointSource(Enum):
    """Among what the tensor of a point is found after a call."""

    RESULT = 0
    INPUT = 1
    OUTPUT = 2


@dataclass(frozen=True)
class GradientPoint:
    """A tensor that a call hands out or writes to, as a node of autograd's graph.

    It is forward output number `forward`, or, if that is None, a view that is user output number
    `output`, or the input `written`, which changes its shape in place. A forward output is a user
    output, a new value of the input `written`, or, with None for both, a hidden base. `source`
    tells where the tensor is found after the call. `direct` are the points that autograd has a path
    to from it with no other in between, `below` all that it has a path to. `stage` tells when it
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
