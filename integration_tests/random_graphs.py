"""Random programs of tensor arithmetic, compiled and eager.

`python integration_tests/random_graphs.py FIRST LAST [--dynamic] [--backend aot_eager]` runs seeds
and prints what differs, cut down, as a function that can be run. With `--triton` the programs have
more of what a GPU has kernels of its own for, and run by those in Triton's interpreter
(`triton_backend.py` says what it cannot see); with `--compile`, each must also compile for an H100.
`--models` has lines of all kinds (`random_model_lines.py`), and inputs of more layouts and values;
`--edges` sizes around a vector's, and pieces of one element (`random_edge_lines.py`).

A program is lines of Python that eager accepts, on inputs of odd layouts and mixed dtypes; each is
called with several sizes. Every line is also run with float64 in place of the smaller float types:
results may be as far from that as eager's are. A line that would make much of a rounding error (a
comparison, an integer made of a float) is given values without one only.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from random_edge_lines import EDGE_FAMILIES, EdgeMaker
from random_graph_lines import DTYPES, FAMILIES, FLOATS, REFUSALS, Families, Maker
from random_kernel_lines import KERNEL_FAMILIES, KernelMaker
from random_model_lines import MODEL_FAMILIES, ModelMaker
from torch import Tensor
from triton_backend import TritonBackend, builder_for_hopper

import dovetail

Sizes = dict[str, int]
Backend = str | Callable[..., Any]


@dataclass(frozen=True)
class Input:
    """One input: its sizes are letters (or "1"), given numbers at each call."""

    name: str
    letters: tuple[str, ...]
    dtype: str
    layout: str
    grad: bool
    values: str = "halves"


@dataclass(frozen=True)
class Line:
    """`name = text`, or `text` where `name` is empty; `exact`: no rounding error was made."""

    name: str
    text: str
    exact: bool


@dataclass(frozen=True)
class Program:
    """`outputs` are names of values; gradients are of those that have one, if `grad`."""

    seed: int
    inputs: tuple[Input, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    calls: tuple[Sizes, ...]

    def source(self) -> str:
        """The program as the source of a function `fn`."""
        body = [f"{line.name} = {line.text}" if line.name else line.text for line in self.lines]
        arguments = ", ".join(spec.name for spec in self.inputs)
        body.append(f"return ({', '.join(self.outputs)},)")
        return "\n    ".join([f"def fn({arguments}):", *body])

    def function(self, source: str = "", wide: bool = False) -> Callable[..., Any]:
        """The compiled source; `wide` has float64 for all float types."""
        names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
        for name, dtype in DTYPES.items():
            names[name] = torch.float64 if wide and dtype.is_floating_point else dtype
        exec(compile(source or self.source(), f"<seed {self.seed}>", "exec"), names)
        return names["fn"]  # type: ignore[no-any-return]


# --- inputs ---------------------------------------------------------------------------------------


def make_inputs(program: Program, sizes: Sizes, wide: bool = False) -> list[Tensor]:
    """Small multiples of a half, so that much can be computed without rounding."""
    generator = torch.Generator().manual_seed(program.seed)
    return [_made(spec, sizes, generator, wide) for spec in program.inputs]


def _made(spec: Input, sizes: Sizes, generator: torch.Generator, wide: bool) -> Tensor:
    shape = [sizes.get(letter, 1) for letter in spec.letters]
    dtype = DTYPES[spec.dtype]

    def values(*shape: int) -> Tensor:
        if dtype.is_floating_point:
            t = _floats(spec.values, shape, generator).to(dtype)
            return t.to(torch.float64 if wide else dtype)
        low, high = {"BOOL": (0, 2), "U8": (0, 256), "I8": (-128, 128)}.get(spec.dtype, (-9, 10))
        return torch.randint(low, high, shape, generator=generator).to(dtype)

    match spec.layout:
        case "reversed" if shape:
            t = values(*reversed(shape)).permute(*reversed(range(len(shape))))
        case "strided" if shape:
            t = values(*shape[:-1], shape[-1] * 2)[..., ::2]
        case "offset" if shape:
            t = values(shape[0] + 1, *shape[1:])[1:]
        case "expanded" if shape:
            t = values(1, *shape[1:]).expand(shape)
        case "swapped" if len(shape) > 2:
            t = values(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
        case "padded" if shape:
            t = values(*shape[:-1], shape[-1] + 3)[..., 1:-2]
        case "misaligned":
            t = values(math.prod(shape) + 1)[1:].view(shape)
        case "broadcast" if shape:
            t = values(*shape[:-1], 1).expand(shape)
        case "windows" if shape:
            t = values(shape[0] + sum(shape[1:])).as_strided(shape, [1] * len(shape))
        case _:
            t = values(*shape)
    return t.requires_grad_() if spec.grad else t


def _floats(kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Of float64: halves, or others."""
    match kind:
        case "normal":
            return torch.randn(shape, generator=generator, dtype=torch.float64)
        case "few":
            return torch.randint(-1, 2, shape, generator=generator).to(torch.float64)
        case "odd":
            odd = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0, 0.5])
            return odd[torch.randint(0, 8, shape, generator=generator)].to(torch.float64)
        case "large":
            return torch.randint(-400, 401, shape, generator=generator).to(torch.float64) * 64
    return torch.randint(-8, 9, shape, generator=generator).to(torch.float64) / 2


# --- making programs ------------------------------------------------------------------------------

_NAME = re.compile(r"\b[xv]\d+\b")
_SHARED = ("expanded", "broadcast", "windows")  # of whose elements some share memory
_LAYOUTS = (*["dense"] * 5, "reversed", "strided", "offset", "expanded", "swapped")


@dataclass(frozen=True)
class Kind:
    """What programs are made of: the families of lines, the sizes that each letter is given, the
    inputs' sizes, how many calls and lines there are, how many elements a value has at most, the
    layouts of inputs, what floats they hold (if not halves alone), and how often they are plain
    ones for one of each other type."""

    maker: type[Maker]
    families: Families
    pools: dict[str, tuple[int, ...]]
    letters: tuple[tuple[str, ...], ...]
    calls: int
    lines: tuple[int, int]
    elements: int
    layouts: tuple[str, ...] = _LAYOUTS
    values: tuple[str, ...] = ()
    plain: int = 5

    def sizes(self, rng: random.Random, first: bool) -> Sizes:
        """The sizes of a call; lines are made for those of the first, none of which is 1."""
        while True:
            pools = {name: pool[1:] if first else pool for name, pool in self.pools.items()}
            sizes = {name: rng.choice(pool) for name, pool in pools.items()}
            if sizes["a"] * sizes["b"] * sizes["c"] <= 9 * self.elements:
                return sizes


_LETTERS = (
    ("a", "b", "c"), ("b", "c"), ("a", "1", "c"), ("c",), ("a", "b", "c"), (), ("b", "1"),
    ("1", "b", "c"), ("a", "c", "b"), ("b", "b"), ("a",),
)  # fmt: skip
_SMALL = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 19, 33)
GRAPHS = Kind(Maker, FAMILIES, dict.fromkeys("abc", _SMALL), _LETTERS, 3, (8, 26), 4000)
KERNELS = Kind(
    KernelMaker,
    KERNEL_FAMILIES,
    {
        "a": (1, 2, 3, 4, 16),
        "b": (1, 2, 3, 5, 8, 17, 31),
        "c": (1, 2, 3, 8, 31, 33, 64, 127, 128, 1025, 4097),
        "r": (1, 2, 4, 16),  # of products of few rows
        "n": (8, 24, 96),
        "k": (16, 64, 264),
        "e": (0, 0),
    },
    (*_LETTERS, ("c",), ("r", "k"), ("n", "k"), ("r", "k"), ("n", "k"), ("n",), ("e", "c")),
    2,
    (4, 14),
    6000,
)
MODELS = Kind(
    ModelMaker,
    MODEL_FAMILIES,
    {
        "a": (1, 2, 3, 4, 16),
        "b": (1, 2, 3, 5, 8, 17, 31),
        "c": (1, 2, 3, 8, 31, 33, 64, 127, 128, 1025),
        "d": (1, 2, 3, 4, 8),
        "h": (1, 4, 5, 7, 8, 9),
        "w": (1, 3, 4, 6, 8, 9, 16),
        "e": (0, 0),
    },
    (
        *_LETTERS, *[("a", "d", "h", "w")] * 4, ("d", "h", "w"), ("1", "d", "h", "h"), ("c",),
        ("b", "a"), ("e", "c"), ("a", "e"),
    ),
    2,
    (8, 24),
    6000,
    (*_LAYOUTS, "padded", "misaligned", "broadcast", "windows", "swapped"),
    (*["halves"] * 6, "normal", "normal", "few", "odd", "large"),
    2,
)  # fmt: skip

# A vector has 8 floats (AVX2) or 16 (AVX-512), and twice as many halves.
_AROUND_VECTORS = (1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33)
EDGES = Kind(
    EdgeMaker,
    EDGE_FAMILIES,
    {"a": (1, 2, 3, 1), "b": (1, 2, 3, 8, 17), "c": _AROUND_VECTORS, "e": (0, 0)},
    (("c",), ("a", "c"), ("c", "a"), ("b", "c"), ("a", "1", "c"), ("c",), ("a", "e"), ("1", "c")),
    3,
    (3, 8),
    4000,
    ("dense", "dense", "dense", "reversed", "strided", "offset", "misaligned"),
    ("halves", "halves", "normal"),
)


def random_program(seed: int, kind: Kind = GRAPHS) -> Program | None:
    """A program that eager accepts with its first sizes; None if none was found."""
    rng = random.Random(seed)
    grad = rng.random() < 0.5
    inputs = []
    for number in range(rng.randint(1, 4)):
        dtype = rng.choice(["F32"] * kind.plain + list(DTYPES))
        layout = rng.choice(kind.layouts)
        wants = grad and dtype in FLOATS and layout not in _SHARED and rng.random() < 0.7
        letters = rng.choice(kind.letters)
        held = rng.choice(kind.values) if kind.values else "halves"
        if (held == "odd" and grad) or (held == "large" and DTYPES[dtype].itemsize == 2):
            held = "few"  # (of what cancels in two bytes nothing is left but rounding errors)
        inputs.append(Input(f"x{number}", letters, dtype, layout, wants, held))
    calls = [kind.sizes(rng, number == 0) for number in range(kind.calls)]
    program = Program(seed, tuple(inputs), (), (), tuple(calls))
    maker = kind.maker(rng, grad)
    names = [spec.name for spec in inputs]
    maker.values = dict(zip(names, make_inputs(program, calls[0]), strict=True))
    wide = dict(zip(names, make_inputs(program, calls[0], wide=True), strict=True))
    if not any(t.requires_grad for t in maker.values.values()):
        maker.grad = False
    maker.exact = set(names)
    families, weights = zip(*kind.families, strict=True)
    lines: list[Line] = []
    for number in range(rng.randint(*kind.lines)):
        name = f"v{number}"
        try:
            text, rounds = rng.choices(families, weights)[0](maker)
            written = text.endswith(")") and ("_(" in text or "out=" in text)
            narrow_result = _evaluate(program, text, maker.values, False)
            wide_result = _evaluate(program, text, wide, True)
        except REFUSALS:
            if "_(" in locals().get("text", ""):
                return None  # (a write that failed may have been half done)
            continue
        if not isinstance(narrow_result, Tensor) or narrow_result.numel() > kind.elements:
            continue
        if written:
            # What lies in the same memory changed, too.
            for other in list(maker.values):
                if other in maker.exact and not _same(maker.values[other], wide[other]):
                    maker.exact.discard(other)
            lines.append(Line("", text, False))
            continue
        maker.values[name], wide[name] = narrow_result, wide_result
        used = [n for n in maker.values if n != name and _mentions(text, n)]
        exact = not rounds and all(n in maker.exact for n in used)
        if exact and _same(narrow_result, wide_result):
            maker.exact.add(name)
        elif not narrow_result.is_floating_point():
            del maker.values[name], wide[name]
            continue  # an integer made of what has a rounding error
        lines.append(Line(name, text, name in maker.exact))
    made = [line.name for line in lines if line.name]
    if not made:
        return None
    outputs = rng.sample(made, min(len(made), rng.randint(1, 4)))
    if made[-1] not in outputs:
        outputs.append(made[-1])
    return replace(program, lines=tuple(lines), outputs=tuple(outputs))


def _mentions(text: str, name: str) -> bool:
    return name in _NAME.findall(text)


def _evaluate(program: Program, text: str, values: dict[str, Tensor], wide: bool) -> Any:
    source = f"def fn({', '.join(values)}):\n    return {text}"
    return program.function(source, wide)(*values.values())


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(
        a.detach().double().nan_to_num(12345.0), b.detach().double().nan_to_num(12345.0)
    )


# --- comparing ------------------------------------------------------------------------------------


class Difference(AssertionError):
    """Compiled and eager differ."""


def _run(fn: Callable[..., Any], inputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor | None]]:
    torch.manual_seed(0)
    outputs = list(fn(*inputs))
    leaves = [t for t in inputs if t.requires_grad and t.is_leaf]
    roots = [t for t in outputs if t.requires_grad]
    if not leaves or not roots:
        return outputs, []
    loss: Any = 0
    for number, t in enumerate(roots):
        weights = torch.arange(t.numel(), dtype=torch.float64).view(t.shape) % 3 - 0.75 - number
        loss = loss + (t.double() * weights).sum()
    return outputs, list(torch.autograd.grad(loss, leaves, allow_unused=True))


def _attempt(fn: Callable[..., Any], inputs: list[Tensor]) -> Any:
    try:
        return _run(fn, inputs)
    except REFUSALS as error:
        return error


def check_call(program: Program, compiled: Callable[..., Any], sizes: Sizes) -> str:
    """One call, compared with eager. Raises `Difference`."""
    inputs = [make_inputs(program, sizes) for _ in range(2)]
    wide = make_inputs(program, sizes, wide=True)
    eager = _attempt(program.function(), inputs[0])
    reference = _attempt(program.function(wide=True), wide)
    if isinstance(reference, Exception) != isinstance(eager, Exception):
        return "the reference refuses"
    if not isinstance(eager, Exception) and not _still_exact(program, sizes):
        return "inexact"
    try:
        ours = _run(compiled, inputs[1])
    except Exception as error:
        if isinstance(eager, Exception):
            return "eager refuses"
        raise Difference(f"{sizes}: {type(error).__name__}: {error}") from error
    if isinstance(eager, Exception):
        if any(text in str(eager) for text in _BACKWARD_REFUSALS):
            return "eager refuses"  # of what is written to, compiled code may keep less
        less = replace(needed(program), inputs=program.inputs)
        if not isinstance(_attempt(less.function(), make_inputs(less, sizes)), Exception):
            return "eager refuses"  # what no output needs
        raise Difference(f"{sizes}: eager raises {type(eager).__name__}: {eager}")
    # (a rounding within a kernel may be left out)
    text = program.source() + " ".join(spec.dtype for spec in program.inputs)
    used = {torch.float32, *(d for name, d in FLOATS.items() if re.search(rf"\b{name}\b", text))}
    near = max(near for dtype, near in _NEAR.items() if dtype in used)
    near *= 10 if re.search("norm|rsqrt|var|std", text) else 1  # of what is nearly constant
    for name, a, b, w in zip(program.outputs, ours[0], eager[0], reference[0], strict=True):
        _compare(f"{sizes}: {name}", a, b, w, near)
    for spec, a, b, w in zip(program.inputs, inputs[1], inputs[0], wide, strict=True):
        _compare(f"{sizes}: {spec.name} afterwards", a, b, w, near)
    names = [spec.name for spec in program.inputs if spec.grad]
    for name, ag, bg, wg in zip(names, ours[1], eager[1], reference[1], strict=False):
        if (ag is None) != (bg is None):
            raise Difference(f"{sizes}: gradient of {name}: {ag}, not {bg}")
        if ag is not None and bg is not None and wg is not None:
            _compare(f"{sizes}: gradient of {name}", ag, bg, wg, 10 * near, layout=False)
    return "ok"


def _still_exact(program: Program, sizes: Sizes) -> bool:
    """Whether the lines that made no rounding error with the first sizes make none with these."""
    exact = [line.name for line in program.lines if line.exact]
    if not exact:
        return True
    source = replace(program, outputs=tuple(exact)).source()
    narrow = program.function(source)(*make_inputs(program, sizes))
    wide = program.function(source, wide=True)(*make_inputs(program, sizes, wide=True))
    return all(_same(a, b) for a, b in zip(narrow, wide, strict=True))


_BACKWARD_REFUSALS = ("modified by an inplace operation", "derivative for")
_NEAR = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-9}


def _compare(
    what: str, ours: Tensor, eager: Tensor, wide: Tensor, near: float, layout: bool = True
) -> None:
    if (ours.dtype, ours.shape) != (eager.dtype, eager.shape):
        raise Difference(
            f"{what}: {ours.dtype} {tuple(ours.shape)}, not {eager.dtype} {tuple(eager.shape)}"
        )
    strides = zip(eager.shape, ours.stride(), eager.stride(), strict=True)
    if layout and eager.numel() and not all(n == 1 or a == b for n, a, b in strides):
        raise Difference(f"{what}: strides {ours.stride()}, not {eager.stride()}")
    if layout and ours.requires_grad != eager.requires_grad:
        raise Difference(f"{what}: requires_grad {ours.requires_grad}")
    a, b, w = (t.detach().double() for t in (ours, eager, wide))
    if not eager.is_floating_point():
        if not torch.equal(ours, eager):
            raise Difference(f"{what}: {ours}, not {eager}")
        return
    if a.numel() == 0 or torch.equal(a.nan_to_num(7.25e77), b.nan_to_num(7.25e77)):
        return
    sane = torch.isfinite(b) & torch.isfinite(w)
    if not torch.equal(torch.isfinite(a)[sane], sane[sane]):
        raise Difference(f"{what}: not finite: {ours}, not {eager}")
    odd = ~sane & (torch.isfinite(b) == torch.isfinite(w))
    # (eager's gelu of infinity is NaN)
    if not all(
        x == y or x == z or (x != x and y != y)
        for x, y, z in zip(a[odd].tolist(), b[odd].tolist(), w[odd].tolist(), strict=True)
    ):
        raise Difference(f"{what}: {ours}, not {eager}")
    if not sane.any():
        return
    error, theirs = (a - w).abs()[sane], (b - w).abs()[sane]
    scale = w[sane].abs().max() + 1
    if bool((error > 4 * theirs.max() + near * scale).any()):
        raise Difference(
            f"{what}: off by {error.max():.3g} (eager: {theirs.max():.3g}): {ours}, not {eager}"
        )


def check(program: Program, backend: Backend = "dovetail", dynamic: bool | None = None) -> str:
    """Every call, and the first once more; the outcome of each. Raises `Difference`."""
    compiled = dovetail.compile(program.function(), backend=backend, dynamic=dynamic)
    calls = (*program.calls, program.calls[0])
    return ", ".join(sorted({check_call(program, compiled, sizes) for sizes in calls}))


# --- cutting down ---------------------------------------------------------------------------------


def needed(program: Program) -> Program:
    """The program without lines (and inputs) that no output depends on; writes stay."""
    names, lines = set(program.outputs), []
    for line in reversed(program.lines):
        if not line.name or line.name in names:
            lines.insert(0, line)
            names.update(_NAME.findall(line.text))
    inputs = tuple(spec for spec in program.inputs if spec.name in names)
    return replace(program, lines=tuple(lines), inputs=inputs or program.inputs[:1])


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one call, output or line less; large steps first."""
    for name in program.outputs:
        if len(program.outputs) > 1:
            yield needed(replace(program, outputs=(name,)))
    for sizes in program.calls:
        if len(program.calls) > 1:
            yield replace(program, calls=(sizes,))
    if len(needed(program).lines) < len(program.lines):
        yield needed(program)
    for i in range(len(program.calls)):
        if len(program.calls) > 1:
            yield replace(program, calls=program.calls[:i] + program.calls[i + 1 :])
    for i in range(len(program.outputs)):
        if len(program.outputs) > 1:
            yield replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :])
    made = [line.name for line in program.lines if line.name]
    for name in made[:-1]:
        yield replace(program, outputs=(name,))
    for i in reversed(range(len(program.lines))):
        yield replace(program, lines=program.lines[:i] + program.lines[i + 1 :])
    for i, spec in enumerate(program.inputs):
        if spec.grad:
            specs = list(program.inputs)
            specs[i] = replace(spec, grad=False)
            yield replace(program, inputs=tuple(specs))
        if spec.layout != "dense":
            specs = list(program.inputs)
            specs[i] = replace(spec, layout="dense")
            yield replace(program, inputs=tuple(specs))
        rest = program.inputs[:i] + program.inputs[i + 1 :]
        if rest:
            yield replace(program, inputs=rest)


def cut_down(program: Program, differs: Callable[[Program], bool]) -> Program:
    """The smallest program found that still differs."""
    found, again, until = program, True, time.monotonic() + 90
    while again and time.monotonic() < until:
        again = False
        for candidate in smaller(found):
            if time.monotonic() > until:
                break
            try:
                if candidate.lines and differs(candidate):
                    found, again = candidate, True
                    break
            except Exception:
                continue
    return found


def main() -> None:
    """As the module says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="dovetail")
    parser.add_argument("--dynamic", action="store_true", default=None, help="sizes are symbolic")
    parser.add_argument("--triton", action="store_true", help="GPU kernels, interpreted")
    parser.add_argument("--compile", action="store_true", help="they must compile for an H100")
    parser.add_argument("--models", action="store_true", help="lines of all kinds")
    parser.add_argument("--edges", action="store_true", help="sizes around a vector's")
    parser.add_argument("--seconds", type=float, default=540)
    options = parser.parse_args()
    backend, kind = options.backend, GRAPHS
    if options.triton or options.compile:
        backend = TritonBackend(builder_for_hopper() if options.compile else None)
        kind = KERNELS
    if options.models:
        kind = MODELS
    if options.edges:
        kind = EDGES
    warnings.simplefilter("ignore")

    seen: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(options.first, options.last):
        if time.monotonic() - started > options.seconds:
            print(f"stopped at {seed}")
            break
        try:
            program = random_program(seed, kind)
            if program is None:
                seen["none"] += 1
                continue
            text = difference(program, backend, options.dynamic)
            seen["differs" if text else "ok"] += 1
            if text:
                print(f"\nseed {seed}: {text[:300]}", flush=True)
                report(program, text, backend, options.dynamic)
        except Exception:
            seen["failed"] += 1
            print(f"seed {seed}")
            traceback.print_exc()
    print(f"{time.monotonic() - started:.0f} s", dict(seen))


def difference(program: Program, backend: Backend, dynamic: bool | None) -> str:
    """What differs, or nothing."""
    try:
        check(program, backend, dynamic)
    except Difference as error:
        return str(error)
    return ""


def report(program: Program, text: str, backend: Backend, dynamic: bool | None) -> None:
    """Print a program that differs, cut down (to one that raises only if this one does)."""

    def as_before(candidate: Program) -> bool:
        found = difference(candidate, backend, dynamic)
        return bool(found) and ("Error" in found) == ("Error" in text)

    found = cut_down(program, as_before)
    print(f"cut down to\n{found.inputs}\n{found.calls}\n{found.source()}")
    print(difference(found, backend, dynamic)[:900], flush=True)


if __name__ == "__main__":
    main()
