"""The `Plan`: a compiled graph as data, from kernels' sources to the launch list.

Produced by a code generator, executed by the native executor (or, as the oracle, by
`reference.py` in plain Python). A plan holds no Python objects beyond strings, numbers and
constants' tensors, so it can be written to a file and read back.

Names: every tensor value in a plan has a unique name. An input, a constant, an allocation, a view
and the result of an ATen call are all just named tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# --- sizes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizeExpr:
    """An integer expression over the plan's symbols.

    `op` is one of sym, add, sub, mul, floordiv, ceildiv, mod, min, max, neg; of the comparisons eq
    and le and the connectives and, or, not, which give 0 or 1; or, on floats, one of
    `sizes.FLOAT_OPERATIONS`. For `sym`, `args` holds the symbol's name. All arithmetic is on 64-bit
    integers with Python's floor semantics. A float is held as the integer with its bits (`sizes.
    float_bits`); operations on floats give what Python gives, and raise where Python does.
    """

    op: str
    args: tuple[int | str | SizeExpr, ...]


Size = int | SizeExpr


@dataclass(frozen=True)
class SymbolBinding:
    """`name` is bound on entry to size `dim` of tensor input `input`, or to an int input, or to
    the bits of a float input."""

    name: str
    input: int
    dim: int | None  # None: input number `input` is a Python int, or float
    is_float: bool = False


@dataclass(frozen=True)
class FloatOf:
    """The float whose bits `bits` computes, or is: an argument of an ATen call, or an output."""

    bits: Size


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorSpec:
    """Shape, strides (in elements), storage offset (in elements), dtype and device."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Size = 0


@dataclass(frozen=True)
class PlanInput:
    """An argument of the compiled callable: a tensor (`spec`) or a number (`spec` is None)."""

    name: str
    spec: TensorSpec | None


@dataclass(frozen=True)
class Constant:
    """A tensor that belongs to the plan (a lifted scalar tensor, a buffer folded at compile)."""

    name: str
    value: torch.Tensor


# --- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CppKernel:
    """A CPU kernel: C++ source that defines

        extern "C" void <symbol>(void* const* pointers, const int64_t* sizes,
                                 int64_t begin, int64_t end);

    It computes work items [begin, end) of the outermost parallel domain; the executor splits the
    domain over torch's own thread pool. Pointers are already offset to each tensor's first
    element. `pointers` and `sizes` follow the order of the launch's arguments.

    `preamble` (SIMD types, helpers) is what several kernels share word for word: it stands once
    in a translation unit, at global scope, before the kernels that use it. `#include` lines may
    stand in either; <cstdint> is always there, others cost compile time. Each `source` is compiled
    in a namespace of its own, so that helpers of two kernels may have the same name; `symbol` must
    be unique within a plan. A kernel may throw a `std::exception` (an `std::out_of_range` becomes
    an IndexError).
    """

    symbol: str
    source: str
    preamble: str = ""


@dataclass(frozen=True)
class TritonKernel:
    """A GPU kernel: Triton source text that defines a `@triton.jit` function called `symbol`.

    `signature` gives each parameter's Triton type in order ("*fp32", "i32", "i64", "constexpr"),
    `constexprs` the values of the constexpr parameters by name, `aligned` the names of pointer and
    int parameters known divisible by 16. With `asserts` its `tl.device_assert`s hold. Without
    `fp_fusion` no product and sum become one operation, which would drop the rounding between. With
    `scatters` several programs may write to one place.
    """

    symbol: str
    source: str
    signature: tuple[tuple[str, str], ...]
    constexprs: tuple[tuple[str, int | float | bool | str], ...]
    num_warps: int
    num_stages: int
    aligned: tuple[str, ...] = ()
    asserts: bool = False
    fp_fusion: bool = True
    scatters: bool = False


Kernel = CppKernel | TritonKernel

# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocate:
    """`name` becomes a new tensor. In a slab (a byte offset into an allocation that tensors of a
    call share, 64-byte aligned; `slab` counts those of the tensor's device) or, with `slab_offset`
    None, an allocation of its own: what leaves the call must not live in a slab. Either way the
    tensor's *storage* begins at the allocation (the slab is invisible), and holds `spec.offset`
    elements before the first one.

    With `over`, an input of the same dtype that only the next step reads from here on, each element
    where it writes the tensor's: a call that owns it may let the tensor have that memory."""

    name: str
    spec: TensorSpec
    slab_offset: Size | None
    slab: int = 0
    over: str | None = None


@dataclass(frozen=True)
class View:
    """`name` is `base`'s storage seen through `spec`; `spec.offset` counts from the start of the
    *storage* (of a call's result: from where the result begins, in elements of `spec.dtype`), and
    `spec.dtype` may differ from the base's."""

    name: str
    base: str
    spec: TensorSpec


@dataclass(frozen=True)
class LaunchCpp:
    """Run a `CppKernel` over `work` items, in chunks of at least `grain`. `line` is the program's
    line that an error of the kernel tells, if it may have any. `label` is what people call the
    launch, in profiles."""

    kernel: str
    tensors: tuple[str, ...]
    sizes: tuple[Size, ...]
    work: Size
    grain: int
    line: str = ""
    label: str = ""


@dataclass(frozen=True)
class LaunchTriton:
    """Launch a `TritonKernel`. `args` follow its non-constexpr parameters: a tensor's name or a
    size. For an i64 parameter the name is that of a CPU tensor of one element, whose value at the
    time of the launch is passed, a float as the bits of its float64. `label`: see `LaunchCpp`.

    A `dependent` launch's kernel waits for the launches before it (`griddepcontrol.wait` in PTX)
    ahead of all but reads of what no launch of the plan writes. Yet `evenly` it comes when they
    have ended: a few programs that begin early crowd on multiprocessors that have room."""

    kernel: str
    args: tuple[str | Size, ...]
    grid: tuple[Size, Size, Size]
    label: str = ""
    dependent: bool = False
    evenly: bool = False


# An argument of an ATen call: a tensor by name, a literal, or a (nested) list.
@dataclass(frozen=True)
class Ref:
    """A tensor argument, by name."""

    name: str


AtenArg = (
    Ref
    | Size
    | FloatOf
    | float
    | bool
    | str
    | None
    | complex
    | torch.dtype
    | torch.device
    | torch.layout
    | torch.memory_format
    | tuple["AtenArg", ...]
)


@dataclass(frozen=True)
class CallAten:
    """A boxed call of an operator, e.g. `aten::mm.out` (overload name after the dot, none for the
    default overload). `args` are positional in schema order, `kwargs` by name. `outputs` name the
    returned values in order (None: not wanted, as a value that is no tensor must be; for an out
    variant they are the out arguments and need no name). Trailing ones may be left out. A
    tensor-list result takes consecutive names. A number may stand for a tensor argument, and then
    decides the result's dtype no more than a Python number does. `expected`, if not empty, goes
    beside `outputs`: what the rest of the plan takes the results for; a call that returns another
    dtype, shape or strides (of dimensions longer than 1) is a RuntimeError that names the op.
    `line` is the program's line that an error of the call tells."""

    op: str
    args: tuple[AtenArg, ...]
    kwargs: tuple[tuple[str, AtenArg], ...] = ()
    outputs: tuple[str | None, ...] = ()
    expected: tuple[TensorSpec | None, ...] = ()
    line: str = ""


@dataclass(frozen=True)
class CopyInto:
    """`target.copy_(source)`: writes a mutated input back."""

    target: str
    source: str


@dataclass(frozen=True)
class Free:
    """The named tensors are dead: drop the executor's references."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class FreeSlab:
    """The tensors in this one of a device's slabs are dead: its memory goes back before the call
    ends."""

    device: str
    slab: int


@dataclass(frozen=True)
class Bind:
    """From here on the symbol `name` is size `dim` of a tensor or, with `dim` None, the value of
    its one element (for a float its bits, for a bool 0 or 1). Sizes that use it come later."""

    name: str
    tensor: str
    dim: int | None


@dataclass(frozen=True)
class Assert:
    """Where `condition` is 0, the call is an `error` that says `message`, in which each `{}` is
    one of `numbers`, if there are any."""

    condition: Size
    message: str
    error: Literal["RuntimeError", "IndexError"] = "RuntimeError"
    numbers: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Choose:
    """Run one of two plans: the first where the one element of the tensor `predicate` is not zero,
    else the second. Both take `args` (tensors by name, numbers), write to none of them, and give
    tensors, which `outputs` name in order (None: not wanted). The kernels that they launch stand in
    the plan that the step belongs to; they have none of their own, and no constants."""

    predicate: str
    branches: tuple[Plan, Plan]
    args: tuple[str | Size | FloatOf, ...]
    outputs: tuple[str | None, ...]


@dataclass(frozen=True)
class While:
    """Run the plan `body` for as long as the plan `condition` gives a tensor whose one element is
    not zero. Both take `args` (tensors by name, numbers), of which the first, one for each of the
    `outputs`, are carried: the body gives tensors that take their place. `outputs` name those that
    are left at the end (None: not wanted). As in `Choose`, neither plan writes to what it takes,
    nor has kernels or constants of its own."""

    condition: Plan
    body: Plan
    args: tuple[str | Size | FloatOf, ...]
    outputs: tuple[str | None, ...]


Step = (
    Allocate | View | LaunchCpp | LaunchTriton | CallAten | CopyInto | Free | FreeSlab | Bind
    | Assert | Choose | While
)  # fmt: skip


def slabs_of(plan: Plan) -> dict[tuple[str, int], int]:
    """The position in `slab_bytes` of each slab, which is known by its device and number there."""
    found: dict[tuple[str, int], int] = {}
    for position, (device, _) in enumerate(plan.slab_bytes):
        found[device, sum(known == device for known, _ in found)] = position
    return found


def plans_within(step: Step) -> tuple[Plan, ...]:
    """The plans that a step may run."""
    if isinstance(step, Choose):
        return step.branches
    return (step.condition, step.body) if isinstance(step, While) else ()


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A whole compiled graph. `slab_bytes` are the slabs, each with its device (as text) and its
    size in bytes; memory for one is taken when the first tensor in it is due.

    `outputs` names a tensor for each output, or is a size for an int output, a `FloatOf` for a
    float, or None.

    `definitions` name sizes: each may be used as a symbol is, once its own symbols are known.

    `mutated` names the inputs (and constants) that a kernel or an ATen call writes to in place:
    their version counters are bumped when a call returns. Targets of `CopyInto` need no mention.
    """

    name: str
    target: Literal["cpu", "cuda"]
    inputs: tuple[PlanInput, ...]
    symbols: tuple[SymbolBinding, ...]
    constants: tuple[Constant, ...]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    slab_bytes: tuple[tuple[str, Size], ...]
    outputs: tuple[str | Size | FloatOf | None, ...]
    mutated: tuple[str, ...] = ()
    definitions: tuple[tuple[str, Size], ...] = ()
