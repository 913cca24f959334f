"""Random sequences of views and in-place writes, compiled and eager.

A program is data: what its inputs are, and steps that each apply one function of a table to values
made before. It is found by trial on eager tensors (a step that eager refuses is left out), so that
it can be run again on any tensors, and cut down to the steps that a difference needs.

`python view_programs.py FIRST LAST` runs seeds and prints what differs. (Through capture and
kernels, `integration_tests/view_programs_compiled.py` does.)
"""

from __future__ import annotations

import math
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from aot_testing import TABLES, as_graph
from dovetail_autograd_aot import TraceError, aot_compile
from torch import Tensor
from torch.fx import Interpreter
from view_functions import (
    ALL_META,
    ALL_NEW_TWO,
    ALL_WRITES,
    ALL_WRITES_TWO,
    FUNCTIONS,
    META_TWO,
    NEW_TWO,
    ONES,
    WIDE_ONES,
    WRITES_TWO,
    Rng,
)


@dataclass(frozen=True)
class Input:
    """One input. `of` makes it a view of, or the very, earlier input (see `_aliased`)."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    layout: str = "dense"  # dense, transposed, strided, offset, expanded
    grad: str = "none"  # none, leaf, nonleaf, or one of VIEWS
    of: int | None = None
    relation: str = ""


@dataclass(frozen=True)
class Step:
    """`name` of the table, applied to values number `operands`, with `args` after them."""

    name: str
    operands: tuple[int, ...]
    args: tuple[Any, ...] = ()
    no_grad: bool = False


@dataclass(frozen=True)
class Program:
    """`outputs` are numbers of values; `after` are outputs that are written to before the
    backward; `used` those that the loss takes."""

    seed: int
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    after: tuple[int, ...] = ()
    grad_mode: bool = True


def apply(step: Step, values: list[Any]) -> None:
    """Run one step; a new tensor becomes the next value, else None does."""
    arguments = [values[i] for i in step.operands]
    if step.no_grad:
        with torch.no_grad():
            result = FUNCTIONS[step.name](*arguments, *step.args)
    else:
        result = FUNCTIONS[step.name](*arguments, *step.args)
    values.append(result if isinstance(result, Tensor) else None)


def as_function(program: Program) -> Callable[..., tuple[Any, ...]]:
    """The program as a function of its inputs."""

    def run(*inputs: Any) -> tuple[Any, ...]:
        values = list(inputs)
        for step in program.steps:
            apply(step, values)
        return tuple(values[i] for i in program.outputs)

    return run


# --- inputs ---------------------------------------------------------------------------------------


def make_inputs(program: Program) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, and the leaves that gradients arrive at."""
    generator = torch.Generator().manual_seed(program.seed)
    inputs: list[Tensor] = []
    leaves: list[Tensor] = []
    for spec in program.inputs:
        if spec.of is not None:
            inputs.append(_aliased(inputs[spec.of], spec.relation))
            continue
        t = _made(spec, generator)
        if spec.grad in VIEWS:
            t = _as_view(spec.grad, t, leaves)
        elif spec.grad != "none":
            leaf = t.detach().requires_grad_()
            leaves.append(leaf)
            t = leaf.clone(memory_format=torch.preserve_format) if spec.grad == "nonleaf" else leaf
        inputs.append(t)
    return inputs, leaves


VIEWS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "row of leaf": ("leaf", lambda base: base[0]),
    "row of nonleaf": ("nonleaf", lambda base: base[0]),
    "row of plain": ("none", lambda base: base[0]),
    "view of nonleaf": ("nonleaf", lambda base: base.view(-1)[: base[0].numel()].view_as(base[0])),
    "view of plain": ("none", lambda base: base.view(-1)[: base[0].numel()].view_as(base[0])),
    "one of several": ("nonleaf", lambda base: base.unbind()[0]),
    "under no_grad": ("nonleaf", torch.no_grad()(lambda base: base[0])),
}
"""What makes an input that is a view: of a leaf, of what has a history, of what has no gradient."""


def _as_view(kind: str, t: Tensor, leaves: list[Tensor]) -> Tensor:
    of, view = VIEWS[kind]
    base = torch.stack([t, t.flip(tuple(range(t.dim())))])
    if of != "none":
        leaves.append(base.detach().requires_grad_())
        base = leaves[-1] if of == "leaf" else leaves[-1].clone()
    return view(base)


def _made(spec: Input, generator: torch.Generator) -> Tensor:
    def values(*shape: int) -> Tensor:
        if not (spec.dtype.is_floating_point or spec.dtype.is_complex):
            most = 2 if spec.dtype is torch.bool else 9
            return torch.randint(0, most, shape, generator=generator).to(spec.dtype)
        return torch.randn(shape, generator=generator, dtype=spec.dtype)

    if spec.layout == "transposed" and len(spec.shape) >= 2:
        return values(*reversed(spec.shape)).permute(*reversed(range(len(spec.shape))))
    if spec.layout == "strided" and spec.shape:
        return values(*spec.shape[:-1], spec.shape[-1] * 2)[..., ::2]
    if spec.layout == "offset" and spec.shape:
        return values(spec.shape[0] + 1, *spec.shape[1:])[1:]
    if spec.layout == "expanded" and spec.shape:
        return values(1, *spec.shape[1:]).expand(spec.shape)
    return values(*spec.shape)


def _aliased(base: Tensor, relation: str) -> Tensor:
    if relation == "same":
        return base
    if relation == "detached":
        return base.detach()
    if relation == "first half":
        return base.detach()[: max(1, base.shape[0] // 2)] if base.dim() else base.detach()
    if relation == "second half":
        return base.detach()[base.shape[0] // 2 :] if base.dim() else base.detach()
    if relation == "transposed":
        return base.detach().t() if base.dim() <= 2 else base.detach().transpose(0, 2)
    if relation == "view":
        return base.view_as(base)
    if relation == "leaf":
        return base.detach().requires_grad_()
    plain = base.detach()
    if relation == "elements":
        return plain.view(_OTHER_DTYPE[plain.dtype])
    if relation == "even":
        return plain[::2] if plain.dim() else plain
    if relation == "column":
        return plain[..., -1] if plain.dim() else plain
    if relation == "whole":
        return plain.as_strided(
            (plain.untyped_storage().nbytes() // plain.element_size(),), (1,), 0
        )
    raise ValueError(relation)


_OTHER_DTYPE = {
    torch.float32: torch.int32, torch.float64: torch.int64, torch.complex64: torch.float32,
    torch.int64: torch.float64, torch.bool: torch.uint8, torch.int32: torch.float32,
}  # fmt: skip
_DTYPES = {
    "float": [torch.float32] * 8 + [torch.float64, torch.complex64, torch.int64, torch.bool],
    "complex": [torch.complex64] * 4 + [torch.complex128, torch.float32],
    "integer": [torch.int64] * 3 + [torch.int32, torch.uint8, torch.bool, torch.float32],
}


def random_input(rng: Rng, number: int, kind: str) -> Input:
    if number and rng.random() < 0.15:
        relations = ["same", "detached", "first half", "second half", "transposed", "view", "leaf",
                     "elements", "even", "column", "whole"]  # fmt: skip
        return Input((), of=rng.randrange(number), relation=rng.choice(relations))
    shape = rng.choice(
        [(3, 4), (3, 4), (2, 3), (2, 3, 2), (6,), (2, 1, 3), (1,), (), (4, 4), (0, 2)]
    )
    dtype = rng.choice(_DTYPES[kind])
    layout = rng.choice(["dense"] * 5 + ["transposed", "strided", "offset", "expanded"])
    grad = rng.choice(["none", "none", "leaf", "nonleaf"])
    if not (dtype.is_floating_point or dtype.is_complex):
        grad = "none"
    return Input(shape, dtype, layout, grad)


# --- making programs ------------------------------------------------------------------------------


def random_program(seed: int, wide: bool = False) -> Program | None:
    """A program that eager accepts, of all functions if `wide`; None if none was found."""
    rng = Rng(seed)
    kind = rng.choice(["float", "float", "float", "complex", "integer"])
    specs: list[Input] = []
    for number in range(rng.randint(1, 3)):
        specs.append(random_input(rng, number, kind))
    program = Program(seed, tuple(specs), (), (), grad_mode=rng.random() < 0.85)
    try:
        inputs, _ = make_inputs(program)
    except (RuntimeError, KeyError, IndexError):
        return None
    values: list[Any] = list(inputs)
    steps: list[Step] = []
    with torch.set_grad_enabled(program.grad_mode):
        for _ in range(rng.randint(3, 14)):
            step = _random_step(rng, values, wide)
            if step is None or _undefined(step, values, len(specs), steps):
                continue
            try:
                apply(step, values)
            except _REFUSALS:
                continue
            steps.append(step)
    live = [i for i, v in enumerate(values) if isinstance(v, Tensor) and v.numel() < 500]
    if not steps or not live:
        return None
    outputs = rng.sample(live, min(len(live), rng.randint(1, 4)))
    after = tuple(i for i in range(len(outputs)) if rng.random() < 0.2)
    if any(
        step.name in ALL_META or step.name in ("data", "part_of_data", *_BEHIND_AUTOGRAD)
        for step in steps
    ):
        after = ()  # what shares memory then may have no history, no version, in common
    return replace(program, steps=tuple(steps), outputs=tuple(outputs), after=after)


_REFUSALS = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)
_TRIES = 200


def add_refused_step(program: Program) -> Program | None:
    """The program and a step that eager refuses after it; None if none was found."""
    rng = Rng(program.seed + 7)
    values: list[Any] = list(make_inputs(program)[0])
    with torch.set_grad_enabled(program.grad_mode):
        for step in program.steps:
            apply(step, values)
        for _ in range(_TRIES):
            try:
                step_after = _random_step(rng, values, wide=True)
                if step_after is None or _undefined(
                    step_after, values, len(program.inputs), list(program.steps)
                ):
                    continue
            except _REFUSALS:
                continue  # (what is asked of a view that autograd lost track of)
            try:
                apply(step_after, values)
            except _REFUSALS:
                return replace(program, steps=(*program.steps, step_after))
            return None  # the values are no longer what the program left
    return None


def resized(program: Program, seed: int) -> Program | None:
    """The program of inputs of other sizes, for which it is as well defined; None if it is not, or
    eager refuses."""
    rng = Rng(seed)
    others = {n: rng.choice([n, n + 1, n + 2, 2 * n, max(0, n - 1)]) for n in range(8)}

    def other(size: int) -> int:
        return others[size] if rng.random() < 0.8 else rng.choice([size, size + 1, 2 * size])

    return _of_inputs(
        program, [replace(i, shape=tuple(map(other, i.shape))) for i in program.inputs]
    )


def varied(program: Program, seed: int) -> Program | None:
    """As `resized`, of inputs that differ in anything: dtype, layout, what requires grad, what is
    part of what."""
    rng = Rng(seed)
    inputs: list[Input] = []
    for number, spec in enumerate(program.inputs):
        other = random_input(rng, number, "float")
        if (other.of is None) != (spec.of is None):
            # It keeps its shape, so that the steps can be run.
            shape = make_inputs(program)[0][number].shape
            other = replace(other, shape=tuple(shape))
        elif other.of is None:
            kept = {
                field: getattr(spec, field)
                for field in ("shape", "dtype", "layout", "grad")
                if rng.random() < 0.7
            }
            other = replace(other, **kept)
            if other.grad != "none" and not (
                other.dtype.is_floating_point or other.dtype.is_complex
            ):
                other = replace(other, grad="none")
        inputs.append(other if rng.random() < 0.7 else spec)
    return _of_inputs(program, inputs)


def from_zeros(program: Program) -> Program | None:
    """The program of copies of its inputs that are written into tensors without a gradient; None if
    it is not as well defined."""
    rng, count = Rng(program.seed), len(program.inputs)
    before: list[Step] = []
    copies: list[int] = []
    for number in range(count):
        made = rng.choice([("empty_like",), ("clone", "detach"), ()])
        last = number
        for name in made:
            before.append(Step(name, (last,)))
            last = count + len(before) - 1
        if made:
            before.append(Step("copy_", (last, number)))
        copies.append(last)

    def moved(value: int) -> int:
        return copies[value] if value < count else value + len(before)

    steps = [replace(s, operands=tuple(moved(o) for o in s.operands)) for s in program.steps]
    outputs = tuple(moved(o) for o in program.outputs)
    changed = replace(program, steps=(*before, *steps), outputs=outputs)
    return changed if before and _is_defined(changed) else None


def _of_inputs(program: Program, inputs: Sequence[Input]) -> Program | None:
    if tuple(inputs) == program.inputs:
        return None
    changed = replace(program, inputs=tuple(inputs))
    return changed if _is_defined(changed) else None


def _is_defined(program: Program) -> bool:
    """Whether eager runs it, and gives the same in whatever order."""
    try:
        values: list[Any] = list(make_inputs(program)[0])
        with torch.set_grad_enabled(program.grad_mode):
            for number, step in enumerate(program.steps):
                if _undefined(step, values, len(program.inputs), list(program.steps[:number])):
                    return False
                apply(step, values)
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError, NotImplementedError):
        return False
    return not eager_refuses(program)


_LAST_BITS = {
    "addcmul_",
    "index_add_",
    "lerp_",
    "cumsum_",
    "clamp_",
    "sum",
    "lerp",
    "mean_kept",
    "index_put_sum",
    "scatter_add_",
}
_DATA = {"data", "part_of_data"}
_BEHIND_AUTOGRAD = {"data_mul_", "data_row", "copy_data"}
_OUT = {"add_out", "sub_out", "stack_out", "maximum_out"}


def _undefined(step: Step, values: list[Any], inputs: int, before: list[Step]) -> bool:
    """What eager itself does in some order only, or what is refused whenever it comes."""
    first = values[step.operands[0]]
    if step.name in _DATA and first.requires_grad:
        return True  # what is written there is written behind autograd's back
    if step.name == "neg_view" and first.dtype in (torch.bool, torch.uint8):
        return True  # reading it is refused, if it is read; two of them cancel out in a copy
    names = {step.name, *(s.name for s in before)}
    given = [v for v in values if isinstance(v, Tensor)]
    if any(_one_storage(a, first) and a.dtype != first.dtype for a in given):
        names.add("view_dtype")
    if "view_dtype" in names and not names.isdisjoint(_LAST_BITS):
        return True  # the last bits of a sum, the bits of a NaN
    if step.name in ALL_META and any(
        _is_expanded_leaf(v) and _one_storage(v, first) for v in values
    ):
        return True  # autograd takes views of it again, and shares gradients out among its elements
    if step.name in _BEHIND_AUTOGRAD and first.requires_grad:
        # What autograd kept of it would change unseen.
        used = [values[i] for s in before for i in s.operands]
        if any(isinstance(v, Tensor) and _one_storage(v, first) for v in used):
            return True
    if step.name in ALL_WRITES_TWO and not first.dtype.is_floating_point and not first.is_complex():
        if values[step.operands[1]].requires_grad:
            return True  # integers and truths that require grad
    if step.name in ("as_strided", "as_strided_") and first.requires_grad:
        # Gradients of what is not the tensor's own depend on whether it was written to meanwhile.
        if not _places_in(first, *step.args) <= _places_in(first, first.shape, first.stride()):
            return True
    if "view_dtype" in names and first.dtype is torch.float16:
        if not names.isdisjoint((*ALL_WRITES, *ALL_WRITES_TWO)):
            return True  # roundings that a kernel may leave out, in the bits of other numbers
    if "view_dtype" in names and step.name == "to" and not step.args[0].is_floating_point:
        return True  # of any bits: numbers that no integer is
    if "view_dtype" in names and first.is_complex() and not names.isdisjoint(ALL_WRITES_TWO):
        return True  # the same, between the two products of a complex one
    if step.name == "view_dtype" and torch.bool in (first.dtype, step.args[0]):
        return True  # truths that are neither 0 nor 1
    if (step.name in ALL_WRITES or step.name in ALL_WRITES_TWO) and first.dtype is not torch.bool:
        if any(a.dtype is torch.bool and _one_storage(a, first) for a in given):
            return True  # the same: kernels keep such bytes or make them 1, as they happen to read
    writes = step.name in ALL_WRITES or step.name in ALL_WRITES_TWO
    if writes and first.is_floating_point() and bool(first.isnan().any()):
        if any(a.dtype is not first.dtype and _one_storage(a, first) for a in given):
            return True  # the sign of what is no number, which IEEE 754 leaves open, in their bits
    alone = not any(
        isinstance(v, Tensor) and v is not first and _one_storage(v, first) for v in values
    )
    if step.name in ("set_", "set_place"):
        if first.dtype != values[step.operands[1]].dtype:
            return True  # as many elements of a larger type: memory that is not its own
        if step.name == "set_place" and _set_beyond(values[step.operands[1]]):
            return True  # uninitialised memory
        return not alone or first.requires_grad or any(v is first for v in values[:inputs])
    if step.name == "requires_grad_" and not alone:
        return True  # views of it get a history when they are asked for one
    if step.name == "detach_":
        # Views of it keep a history that depends on what is asked when.
        return not alone or any(v is first for v in values[:inputs])
    if step.name == "resize_" and not 0 <= math.prod(step.args[0]) <= _stored(first):
        return True  # uninitialised memory
    if step.name == "resize_as_" and values[step.operands[1]].numel() > _stored(first):
        return True
    if step.name in ALL_WRITES or step.name in ALL_WRITES_TWO:
        graded = [v for v in given if v.requires_grad and _one_storage(v, first)]
        if any(_overlaps(v, in_steps=True) for v in (first, *graded)):
            return True  # eager does not see it, and writes values or gradients in some order
    if (
        step.name in (*ALL_META, "resize_as_")
        and first.requires_grad
        and (step.no_grad or not alone)
    ):
        return True  # autograd goes on with the old shape, here or in the views of it
    if step.name in _OUT and first.requires_grad:
        if values[step.operands[1]].shape != first.shape:
            return True  # the same, of what `out=` gives another shape
    if step.name == "foreach_copy_" and first.dtype != values[step.operands[1]].dtype:
        return True  # makes integers require grad
    if step.name in ALL_WRITES_TWO:
        second = values[step.operands[1]]
        if first.is_neg() and first.dtype != second.dtype and step.name in COPIES:
            return True  # eager's copy from another dtype loses the sign
        return second is not first and _one_storage(first, second)  # a copy onto itself
    return False


COPIES = ("copy_", "copy_data", "copy_chunk", "set_row")


def _places_in(
    t: Tensor, shape: Sequence[int], strides: Sequence[int], start: int | None = None
) -> set[int]:
    """Where in a tensor's storage the elements of a view lie."""
    count = t.untyped_storage().nbytes() // t.element_size()
    places = torch.arange(2 * count)
    start = t.storage_offset() if start is None else start
    if math.prod(shape) == 0:
        return set()
    if start + sum((n - 1) * d for n, d in zip(shape, strides, strict=True)) >= 2 * count:
        return {-1}  # beyond all memory: eager refuses
    return set(places.as_strided(shape, strides, start).flatten().tolist())


def _stored(t: Tensor) -> int:
    """How many elements a tensor's memory has from where it begins, but no more than its own."""
    there = t.untyped_storage().nbytes() // t.element_size() - int(t.storage_offset())
    return min(there, t.numel())


def _set_beyond(source: Tensor) -> bool:
    """Whether `set_` at a tensor's own offset, which is counted from where the tensor begins, ends
    beyond its memory: that grows."""
    if source.numel() == 0:
        return False
    last = sum((n - 1) * d for n, d in zip(source.shape, source.stride(), strict=True))
    count = source.untyped_storage().nbytes() // source.element_size()
    return 2 * source.storage_offset() + last >= count


def _is_expanded_leaf(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad and t.numel() > 0 and 0 in t.stride()


def _one_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _random_step(rng: Rng, values: list[Any], wide: bool) -> Step | None:
    live = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    # newer values more often: chains of views, and writes through them
    first = live[int(len(live) * rng.random() ** 0.7)]
    no_grad = rng.random() < 0.2
    if rng.random() < 0.25:
        writes, new = (ALL_WRITES_TWO, ALL_NEW_TWO) if wide else (WRITES_TWO, NEW_TWO)
        table = rng.choice([writes, writes, new, META_TWO if rng.random() < 0.3 else new])
        name = rng.choice(list(table))
        same = [i for i in live if values[i].shape == values[first].shape]
        second = rng.choice(same if rng.random() < 0.7 else live)
        return Step(name, (first, second), (), no_grad)
    tables, weights = zip(*(WIDE_ONES if wide else ONES), strict=True)
    chosen = rng.choices(tables, weights)[0]
    name = rng.choice(list(chosen))
    try:
        args = chosen[name][1](rng, values[first])
    except (IndexError, ValueError):
        return None
    return None if args is None else Step(name, (first,), args, no_grad)


# --- comparing ------------------------------------------------------------------------------------


class Difference(AssertionError):
    """Compiled and eager differ."""


@dataclass
class Ran:
    """What one run left: everything that is compared."""

    outputs: list[Any]
    inputs: list[Tensor]
    leaves: list[Tensor]
    versions: list[int]  # how many writes the inputs' counters tell of
    # How far results may be apart: a kernel may leave out a rounding to half, of what then cancels.
    near: float


def _run(fn: Callable[..., Any], program: Program) -> Ran:
    inputs, leaves = make_inputs(program)
    before = [t._version for t in inputs]
    with torch.set_grad_enabled(program.grad_mode):
        outputs = list(fn(*inputs))
    bumped = [t._version - v for t, v in zip(inputs, before, strict=True) if t.numel()]
    halves = any(torch.float16 in step.args for step in program.steps)
    return Ran(outputs, inputs, leaves, bumped, 2e-3 if halves else 1e-5)


def _equal(a: Tensor, b: Tensor, near: float) -> bool:
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if a.dtype is torch.complex32:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if torch.equal(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return False
    near = max(near, 2e-3 if a.dtype is torch.float16 else 1e-5)
    # What cancelled was as large as the other elements are.
    large = torch.nan_to_num(b.abs(), 0.0, 0.0).max().item() if near > 1e-5 else 1.0
    return torch.allclose(a, b, rtol=near, atol=near * max(1.0, large), equal_nan=True)


def _expect(condition: bool, text: str) -> None:
    if not condition:
        raise Difference(text)


def _expect_equal(ours: Tensor, theirs: Tensor, what: str, near: float) -> None:
    if not _equal(ours, theirs, near):
        raise Difference(f"{what} {ours}, not {theirs}")


def _compare(ours: Tensor, theirs: Tensor, what: str, near: float) -> None:
    _expect(ours.dtype == theirs.dtype, f"{what}: dtype {ours.dtype}, not {theirs.dtype}")
    _expect(ours.shape == theirs.shape, f"{what}: shape {ours.shape}, not {theirs.shape}")
    if theirs.numel():
        strides = zip(theirs.shape, ours.stride(), theirs.stride(), strict=True)
        _expect(
            all(n == 1 or a == b for n, a, b in strides),
            f"{what}: strides {ours.stride()}, not {theirs.stride()}",
        )
    _expect_equal(ours, theirs, f"{what}: values", near)
    _expect(ours.requires_grad == theirs.requires_grad, f"{what}: requires_grad")
    try:
        leaf, _ = theirs.is_leaf, ours.is_leaf
    except RuntimeError:
        return  # a view that autograd lost track of: it refuses to say
    _expect(ours.is_leaf == leaf, f"{what}: is_leaf {ours.is_leaf}, not {leaf}")


def _places(values: list[Any]) -> list[Any]:
    """For each pair of tensors: the same object, so many bytes apart in one storage, or apart."""
    found: list[Any] = []
    for i, a in enumerate(values):
        for b in values[:i]:
            if a is b:
                found.append("same")
            elif not (a.numel() and b.numel()):
                found.append(None)
            elif a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                found.append(a.data_ptr() - b.data_ptr())
            else:
                found.append(None)
    return found


def _overlaps(t: Tensor, in_steps: bool = False) -> bool:
    """Whether elements of a tensor lie on one another; `in_steps`: otherwise than by expansion."""
    # (By numbers alone: a view that autograd lost track of refuses to be indexed.)
    strides = t.stride()
    shape = [min(n, 1) if in_steps and d == 0 else n for n, d in zip(t.shape, strides, strict=True)]
    count = t.untyped_storage().nbytes() // t.element_size()
    places = torch.arange(count).as_strided(shape, strides, t.storage_offset())
    return bool(places.unique().numel() != places.numel())


def _write(t: Tensor, value: float) -> str:
    if _overlaps(t):
        return "in some order only"
    try:
        t.mul_(value)
    except RuntimeError:
        return "refused"
    return "written"


def eager_refuses(program: Program) -> str:
    """The error that eager raises, if it does."""
    try:
        ran = _run(as_function(program), program)
        for t in (*ran.outputs, *ran.inputs):
            t.is_leaf  # noqa: B018 - raises if it is a view that autograd lost track of
    except (RuntimeError, IndexError, ValueError) as error:
        return type(error).__name__
    return ""


def check_program(program: Program, table: str, calls: int = 1) -> str:
    """Compare; "ok", "eager refuses" or "refused: why". Raises `Difference`."""
    fn = as_function(program)
    refusal = eager_refuses(program)
    if refusal:
        return f"eager refuses: {refusal}"
    for_tracing, _ = make_inputs(program)
    graph = as_graph(fn, len(program.inputs))
    with torch.set_grad_enabled(program.grad_mode):
        try:
            compiled = aot_compile(
                graph,
                for_tracing,
                forward_compiler=lambda gm, examples: (
                    Interpreter(gm, garbage_collect_values=False).run
                ),
                decompositions=TABLES[table],
            )
        except TraceError as error:
            return f"refused: {str(error)[:90]}"
    for _ in range(calls):
        compare_call(program, fn, compiled)
    return "ok"


def compare_call(program: Program, fn: Callable[..., Any], compiled: Callable[..., Any]) -> None:
    """Run both and compare all that can be seen. Raises `Difference`."""
    theirs, ours = _run(fn, program), _run(compiled, program)
    _expect(len(ours.outputs) == len(theirs.outputs), "number of outputs")
    _expect(ours.versions == theirs.versions, f"versions {ours.versions}, not {theirs.versions}")
    _compare_all(ours, theirs, "")
    places, expected = (
        _places([*ours.inputs, *ours.outputs]),
        _places([*theirs.inputs, *theirs.outputs]),
    )
    _expect(places == expected, f"places {places}, not {expected}")
    for i in program.after:
        done = _write(theirs.outputs[i], 2.0)
        if done == "written":
            _expect(_write(ours.outputs[i], 2.0) == done, f"a write to output {i} was refused")
    _compare_all(ours, theirs, " after a write")
    _gradients(program, ours, theirs)
    for i, (a, b) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        with torch.no_grad():
            done = _write(b, 0.5)
            if done == "written":
                _expect(_write(a, 0.5) == done, f"a plain write to output {i} was refused")
    _compare_all(ours, theirs, " after plain writes")


def _compare_all(ours: Ran, theirs: Ran, when: str) -> None:
    for i, (a, b) in enumerate(zip(ours.outputs, theirs.outputs, strict=True)):
        _compare(a, b, f"output {i}{when}", theirs.near)
    for i, (a, b) in enumerate(zip(ours.inputs, theirs.inputs, strict=True)):
        _compare(a, b, f"input {i}{when}", theirs.near)


def _loss(program: Program, ran: Ran) -> Tensor | None:
    rng = Rng(program.seed + 1)
    terms = []
    for t in (*ran.outputs, *ran.inputs):
        used = rng.random() < 0.8
        if not used or not t.requires_grad or t.numel() == 0:
            continue
        real = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
        weight = torch.arange(1, real.numel() + 1, dtype=real.dtype).view(real.shape)
        terms.append((real * weight).sum().double())
    return torch.stack(terms).sum() if terms else None


_NOT_DIFFERENTIABLE = (
    "modified by an inplace", "invalid gradient", "derivative for", "another view of its base has",
)  # fmt: skip


def _gradients(program: Program, ours: Ran, theirs: Ran) -> None:
    try:
        expected = _loss(program, theirs)
    except RuntimeError:
        return  # a view that autograd lost track of
    got = _loss(program, ours)
    _expect((got is None) == (expected is None), "whether there is a loss")
    if expected is None or got is None or not expected.requires_grad:
        return
    try:
        expected.backward()
    except RuntimeError:
        return  # a value that eager had saved was written to
    try:
        got.backward()
    except RuntimeError as error:
        # Of a graph one part of which cannot be differentiated none can; and writes through
        # `.data` are not hidden from a compiled graph that saved the tensor.
        if not any(text in str(error) for text in _NOT_DIFFERENTIABLE):
            raise
        return
    theirs.leaves += [t for t in theirs.inputs if t.requires_grad and t.is_leaf]
    ours.leaves += [t for t in ours.inputs if t.requires_grad and t.is_leaf]
    for i, (a, b) in enumerate(zip(ours.leaves, theirs.leaves, strict=True)):
        _expect((a.grad is None) == (b.grad is None), f"gradient {i}: only one is None")
        if b.grad is not None and a.grad is not None:
            _expect_equal(a.grad, b.grad, f"gradient {i}:", theirs.near)


# --- cutting down ---------------------------------------------------------------------------------


Check = Callable[[Program], str]


def outcome(program: Program, check: Check) -> str:
    """What `check` says, with anything that goes wrong as text."""
    try:
        return check(program)
    except Difference as error:
        return f"DIFFERENT: {error}"
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        return f"ERROR: {type(error).__name__}: {error} [{line.name} {line.lineno}]"


def smaller(program: Program, check: Check, kind: str) -> Program:
    """The program without steps that its outcome, of this kind, does not need."""
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(program.steps))):
            shorter = _without_step(program, i)
            if shorter is not None and outcome(shorter, check).split(":")[0] == kind:
                program, changed = shorter, True
        for i in reversed(range(len(program.outputs))):
            rest = program.outputs[:i] + program.outputs[i + 1 :]
            after = tuple(a - (a > i) for a in program.after if a != i)
            fewer = replace(program, outputs=rest, after=after)
            if outcome(fewer, check).split(":")[0] == kind:
                program, changed = fewer, True
    return program


def _without_step(program: Program, index: int) -> Program | None:
    gone = len(program.inputs) + index
    rest = program.steps[:index] + program.steps[index + 1 :]
    if any(gone in s.operands for s in rest) or gone in program.outputs:
        return None
    moved = tuple(replace(s, operands=tuple(o - (o > gone) for o in s.operands)) for s in rest)
    outputs = tuple(o - (o > gone) for o in program.outputs)
    return replace(program, steps=moved, outputs=outputs)


def run_seeds(
    first: int,
    last: int,
    check: Check,
    make: Callable[[int], Program | None] = random_program,
) -> None:
    """Run the programs that `make` makes of seeds; print the differences cut down, and counts, also
    if the process is stopped."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    try:
        for seed in range(first, last):
            _run_seed(seed, make(seed), check, counts)
    finally:
        seconds, done = time.perf_counter() - start, counts.total()
        for text, count in counts.most_common():
            print(f"{count:7d}  {text}")
        print(f"{seconds:.0f} s, {1e3 * seconds / max(done, 1):.1f} ms a seed", flush=True)


def _run_seed(seed: int, program: Program | None, check: Check, counts: Counter[str]) -> None:
    if program is None:
        counts["no program"] += 1
        return
    result = outcome(program, check)
    kind = result.split(":")[0]
    counts[result if result.startswith("refused") else kind] += 1
    if kind in ("DIFFERENT", "ERROR") and counts["DIFFERENT"] + counts["ERROR"] <= 12:
        cut = smaller(program, check, kind)
        again = outcome(cut, check)
        if not again.startswith(kind):
            again = f"{result}\n    but when run again: {again}"
        print(f"seed {seed}: {again}\n    {cut}", flush=True)


if __name__ == "__main__":
    table = sys.argv[3] if len(sys.argv) > 3 else "aten"
    run_seeds(int(sys.argv[1]), int(sys.argv[2]), lambda program: check_program(program, table))
