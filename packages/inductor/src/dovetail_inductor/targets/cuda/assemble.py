"""A Triton kernel out of its parts: named by its content, with the parameters of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dovetail_runtime.plan import TritonKernel

from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import hint_of, is_multiple, names_in
from dovetail_inductor.targets.cuda.called_functions import called_source
from dovetail_inductor.targets.cuda.tiling import Tiling
from dovetail_inductor.targets.cuda.triton_ops import POINTER_TYPES

_IMPORTS = "import triton\nimport triton.language as tl\n"
_LIBDEVICE = "from triton.language.extra import libdevice\n"
_DEPENDENT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
# Behind it a kernel reads what the launches before it may have written. Those that do not say where
# that is do so from the beginning.
WAIT = "    gdc_wait()"
# Programs of a kernel that is worth beginning early: as many as an H100 has at once, and their
# successors. Each spends time on it: windows of 27 by 230,640 programs took 158 us without and
# 294 us with it, where a launch begins 0.45 us earlier.
MOST_DEPENDENT = 2 * 32 * 132


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel's source, the buffers that its pointer parameters take in order, the symbols whose
    values the parameters after them take, its grid, and whether it waits for launches before it, or
    begins only then."""

    kernel: TritonKernel
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]
    grid: tuple[int, int, int]
    dependent: bool
    evenly: bool = False


@dataclass(frozen=True)
class KernelBody:
    """The statements of one fused kernel, for the program numbered `pid` of `tiling.programs`.

    `parameters` are pairs of a pointer's name in the text and the buffer that it takes.
    """

    text: str
    parameters: tuple[tuple[str, str], ...]
    tiling: Tiling
    kind: str
    scatters: bool = False


def passed_by_value(name: str, others: Iterable[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether a kernel over these buffers is given the element of `name`, which is on the CPU, and
    not a pointer to it."""
    device = buffers[name].device
    return device.type == "cpu" and any(buffers[other].device != device for other in others)


def parameter_types(
    parameters: Sequence[tuple[str, str]], buffers: Mapping[str, Buffer]
) -> tuple[str, ...]:
    """The Triton types of a kernel's parameters, given as names in the text and buffers."""
    names = [buffer for _, buffer in parameters]
    return tuple(
        "i64" if passed_by_value(name, names, buffers) else POINTER_TYPES[buffers[name].dtype]
        for name in names
    )


# A value that is rounded and then computed with. LLVM makes one operation of 2 bytes of it and of
# the sum that follows, if it may, and the rounding is gone: `x * x - (x * x)` would not be 0.
_ROUNDINGS = tuple(f".to({half}).to(tl.float32)" for half in ("tl.float16", "tl.bfloat16"))


def assemble(
    name: str,
    body: KernelBody,
    programs: int,
    buffers: Mapping[str, Buffer],
    functions: str = "",
    *,
    dependent: bool,
) -> EmittedKernel:
    """A kernel named by its content, after `name`: `functions` are those that its body calls.

    A `dependent` one may be launched while the launches before it run: it waits for these itself,
    and lets the next one come as soon as all of its own programs have. One of very many programs is
    none, as that costs each of them some time.

    An index out of bounds stops the device.
    """
    text, parameters, tiling = body.text, body.parameters, body.tiling
    dependent = dependent and hint_of(programs) <= MOST_DEPENDENT
    if dependent:
        wait = "" if WAIT in functions + text else f"{WAIT}\n"
        text = f"    gdc_launch_dependents()\n{wait}{text}"
    else:
        text, functions = (part.replace(f"{WAIT}\n", "") for part in (text, functions))
    symbols = names_in(text)
    types = parameter_types(parameters, buffers)
    signature = (
        *((name, kind) for (name, _), kind in zip(parameters, types, strict=True)),
        *((f"size_{symbol}", "i64") for symbol in symbols),
    )
    # A tensor's memory starts at a multiple of 16 bytes, but an input may begin further on.
    aligned = tuple(
        name
        for (name, b), kind in zip(parameters, types, strict=True)
        if kind != "i64" and is_multiple(buffers[b].offset * buffers[b].dtype.itemsize, 16)
    )
    head = f"({', '.join(name for name, _ in signature)}):\n{text}\n"
    before = called_source(functions + text) + functions
    asserts = "tl.device_assert(" in functions + text
    content = repr((before, head, signature, aligned, asserts, tiling.num_warps, tiling.num_stages))
    symbol = f"{name}_{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    libdevice = _LIBDEVICE if "libdevice." in before + text else ""
    imports = f"{_IMPORTS}{libdevice}{_DEPENDENT if dependent else ''}"
    source = f"{imports}\n\n{before}@triton.jit\ndef {symbol}{head}"
    kernel = TritonKernel(
        symbol=symbol,
        source=source,
        signature=signature,
        constexprs=(),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        aligned=aligned,
        asserts=asserts,
        fp_fusion=not any(rounding in before + text for rounding in _ROUNDINGS),
        scatters=body.scatters,
    )
    tensors = tuple(b for _, b in parameters)
    return EmittedKernel(kernel, tensors, symbols, (programs, 1, 1), dependent)
