"""Scalar ops as Triton text, and the helper functions that the text may call.

A helper is a `@triton.jit` function written here in plain Triton, so that it also runs in Triton's
interpreter; a kernel's source carries the helpers that it uses and no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch

from dovetail_inductor.loop_ir.ops import OF_OPERATORS

TRITON_TYPES: Mapping[torch.dtype, str] = {
    torch.float64: "tl.float64",
    torch.float32: "tl.float32",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
    torch.float8_e4m3fn: "tl.float8e4nv",
    torch.float8_e5m2: "tl.float8e5",
}

POINTER_TYPES: Mapping[torch.dtype, str] = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int16: "*i16",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e5m2: "*fp8e5",
}

# The extreme one of two elements, and where it is: NaN is extreme, too.
_NEXT = """def dv_next_{0}(a, i, b, j):
    better = ~(b {1} a) & (a == a)
    return tl.where(better, b, a), tl.where(better, j, i)"""
_FIRST = """def dv_first_{0}(a, i, b, j):
    equal = (b == a) | ((b != b) & (a != a))
    better = (~(b {1} a) & (a == a)) | (equal & (j < i))
    return tl.where(better, b, a), tl.where(better, j, i)"""

# expm1 and log1p: W. Kahan's compensation, accurate to a few ulp for every argument, from exp and
# log alone. Quotients of floats are rounded as IEEE says, and remainders exact: what rounds a
# quotient down would make much of its last digit. The others are textbook identities.
HELPERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "dv_max": (
        (),
        "def dv_max(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    ),
    "dv_min": (
        (),
        "def dv_min(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    ),
    "dv_first_max": ((), _FIRST.format("max", "<=")),
    "dv_first_min": ((), _FIRST.format("min", ">=")),
    "dv_next_max": ((), _NEXT.format("max", "<=")),
    "dv_next_min": ((), _NEXT.format("min", ">=")),
    "dv_add": ((), "def dv_add(a, b):\n    return a + b"),
    "dv_mul": ((), "def dv_mul(a, b):\n    return a * b"),
    "dv_logaddexp": (
        ("dv_log1p", "dv_max", "dv_min"),
        "def dv_logaddexp(a, b):\n"
        "    top = dv_max(a, b)\n"
        "    gap = dv_min(a, b) - top\n"
        "    far = (top == float('inf')) | (top == float('-inf'))\n"
        "    return tl.where(far, top, top + dv_log1p(tl.exp(tl.where(far, 0.0, gap))))",
    ),
    "dv_expm1": (
        (),
        "def dv_expm1(x):\n"
        "    u = tl.exp(x)\n"
        "    d = u - 1.0\n"
        "    l = tl.log(u)\n"
        "    safe = tl.where(l == 0.0, 1.0, l)\n"
        "    y = tl.where(u == 1.0, x, d * (x / safe))\n"
        "    y = tl.where(d == -1.0, -1.0, y)\n"
        "    return tl.where(u == float('inf'), u, y)",
    ),
    "dv_log1p": (
        (),
        "def dv_log1p(x):\n"
        "    u = 1.0 + x\n"
        "    d = u - 1.0\n"
        "    safe = tl.where(d == 0.0, 1.0, d)\n"
        "    y = tl.where(d == 0.0, x, tl.log(u) * (x / safe))\n"
        "    return tl.where(u == float('inf'), u, y)",
    ),
    # float32: a polynomial fitted to tanh(x)/x near 0 (1.3 ulp), 1 - 2/(exp(2x)+1) beyond
    "dv_tanh": (
        (),
        "def dv_tanh(x):\n"
        "    z = x * x\n"
        "    p = 2.142961640e-03\n"
        "    p = p * z - 8.177398017e-03\n"
        "    p = p * z + 2.170070314e-02\n"
        "    p = p * z - 5.394676305e-02\n"
        "    p = p * z + 1.333320601e-01\n"
        "    p = p * z - 3.333333080e-01\n"
        "    a = tl.abs(x)\n"
        "    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)\n"
        "    far = tl.where(x < 0.0, -far, far)\n"
        "    return tl.where(a < 0.625, x + x * z * p, far)",
    ),
    # The same where an absolute error counts, as in an exponent.
    "dv_tanh_rough": (
        (),
        "def dv_tanh_rough(x):\n    return 1.0 - 2.0 / (tl.exp2(2.8853900818 * x) + 1.0)",
    ),
    # float32 for results of 2 bytes: 1 - exp2(-|x| q(|x|)) with a polynomial q fitted to the
    # logarithm of erfc (1e-7 everywhere), and two terms of the series near 0, where that cancels.
    "dv_erf_narrow": (
        (),
        "def dv_erf_narrow(x):\n"
        "    a = tl.abs(x)\n"
        "    q = 4.5358617428e-05\n"
        "    q = q * a - 4.4550781167e-04\n"
        "    q = q * a + 1.4894421920e-03\n"
        "    q = q * a + 7.7462870556e-04\n"
        "    q = q * a - 2.8253680219e-02\n"
        "    q = q * a + 1.4848161467e-01\n"
        "    q = q * a + 9.1841639335e-01\n"
        "    q = q * a + 1.6279085931e+00\n"
        "    far = 1.0 - tl.exp2(-a * q)\n"
        "    far = tl.where(x < 0.0, -far, far)\n"
        "    near = x * (1.1283791671 - 0.3761263890 * x * x)\n"
        "    return tl.where(a < 0.01, near, far)",
    ),
    # The same for tanh: 1 - 2/(exp(2|x|) + 1), and the series near 0.
    "dv_tanh_narrow": (
        (),
        "def dv_tanh_narrow(x):\n"
        "    a = tl.abs(x)\n"
        "    far = 1.0 - 2.0 / (tl.exp2(2.8853900818 * a) + 1.0)\n"
        "    far = tl.where(x < 0.0, -far, far)\n"
        "    near = x * (1.0 - 0.3333333333 * x * x)\n"
        "    return tl.where(a < 0.02, near, far)",
    ),
    "dv_tanh64": (
        ("dv_expm1",),
        "def dv_tanh64(x):\n"
        "    t = dv_expm1(-2.0 * tl.abs(x))\n"
        "    y = -t / (t + 2.0)\n"
        "    return tl.where(x < 0.0, -y, y)",
    ),
    "dv_div": (
        (),
        "def dv_div(a, b):\n"
        "    if a.dtype == tl.float32:\n"
        "        return tl.div_rn(a, b)\n"
        "    else:\n"
        "        return a / b",
    ),
    "dv_round": ((), "def dv_round(x):\n    return libdevice.rint(x)"),  # half to even
    "dv_trunc": ((), "def dv_trunc(x):\n    return libdevice.trunc(x)"),
    "dv_fmod": ((), "def dv_fmod(a, b):\n    return libdevice.fmod(a, b)"),
    # Nearly always what division and rounding down give, but for quotients that round up to a
    # whole number.
    "dv_floordiv": (
        ("dv_div", "dv_fmod"),
        "def dv_floordiv(a, b):\n"
        "    q = dv_div(a, b)\n"
        "    r = dv_fmod(a, b)\n"
        "    whole = dv_div(a - r, b)\n"
        "    whole = tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), whole - 1.0, whole)\n"
        "    down = tl.floor(whole)\n"
        "    down = tl.where(whole - down > 0.5, down + 1.0, down)\n"
        "    down = tl.where(whole == 0.0, libdevice.copysign(whole, q), down)\n"
        "    return tl.where(b == 0.0, q, down)",
    ),
    # By fewer than none, or by all bits and more: what is shifted out is gone.
    "dv_shift_left": (
        (),
        "def dv_shift_left(a, b):\n"
        "    gone = (b < 0) | (b >= a.dtype.primitive_bitwidth)\n"
        "    return tl.where(gone, 0, a << tl.where(gone, 0, b)).to(a.dtype)",
    ),
    "dv_shift_right": (
        (),
        "def dv_shift_right(a, b):\n"
        "    gone = (b < 0) | (b >= a.dtype.primitive_bitwidth)\n"
        "    return tl.where(gone, -(a < 0).to(a.dtype), a >> tl.where(gone, 0, b))",
    ),
    "dv_ifloordiv": (
        (),
        "def dv_ifloordiv(a, b):\n"
        "    q = a // b\n"
        "    return tl.where((a - q * b != 0) & ((a < 0) != (b < 0)), q - 1, q)",
    ),
    "dv_iremainder": (
        (),
        "def dv_iremainder(a, b):\n"
        "    r = a - (a // b) * b\n"
        "    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)",
    ),
    # Products of two blocks of `size` elements, added to `sums` by `count` neighbours: those of one
    # thread, where layouts keep them together.
    "dv_add_products": (
        (),
        "def dv_add_products(a, b, sums, size: tl.constexpr, count: tl.constexpr):\n"
        "    if count == 1:\n"
        "        return tl.fma(tl.reshape(a, [size]), tl.reshape(b, [size]), sums)\n"
        "    else:\n"
        "        half: tl.constexpr = size // 2\n"
        "        a0, a1 = tl.split(tl.reshape(a, [half, 2]))\n"
        "        b0, b1 = tl.split(tl.reshape(b, [half, 2]))\n"
        "        sums = dv_add_products(a0, b0, sums, half, count // 2)\n"
        "        return dv_add_products(a1, b1, sums, half, count // 2)",
    ),
    "dv_remainder": (
        ("dv_fmod",),
        "def dv_remainder(a, b):\n"
        "    r = dv_fmod(a, b)\n"
        "    return tl.where((r != 0.0) & ((r < 0.0) != (b < 0.0)), r + b, r)",
    ),
}


# What the text of symbolic sizes calls, on numbers: Triton's own division truncates.
SIZE_HELPERS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "floor_div": (
        (),
        "def floor_div(a, b):\n"
        "    q = a // b\n"
        "    return tl.where((a - q * b != 0) & ((a < 0) != (b < 0)), q - 1, q)",
    ),
    "floor_mod": (("floor_div",), "def floor_mod(a, b):\n    return a - floor_div(a, b) * b"),
    "least": ((), "def least(a, b):\n    return tl.minimum(a, b)"),
    "greatest": ((), "def greatest(a, b):\n    return tl.maximum(a, b)"),
}


def size_helpers(text: str) -> set[str]:
    """The helpers that the symbolic sizes in a kernel's text call."""
    return {name for name in SIZE_HELPERS if f"{name}(" in text}


def helper_source(names: set[str]) -> str:
    """The text of these helpers and of those they call, callees first."""
    known = {**HELPERS, **SIZE_HELPERS}
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered:
            return
        for callee in known[name][0]:
            visit(callee)
        ordered.append(name)

    for name in sorted(names):
        visit(name)
    return "".join(f"@triton.jit\n{known[name][1]}\n\n\n" for name in ordered)


# The forms of ops, by the kind of their operands; names that begin with `dv_` are helpers.
_OF_BOOLEANS = {
    "add": "({0} | {1})", "mul": "({0} & {1})", "maximum": "({0} | {1})", "minimum": "({0} & {1})",
    "abs": "{0}", "bitwise_not": "({0} == 0)",
}  # fmt: skip

_OF_FLOAT32 = {"sqrt": "tl.sqrt_rn({0})", "reciprocal": "tl.div_rn(1.0, {0})"}

_OF_FLOAT64 = {"tanh": "dv_tanh64({0})"}

_OF_FLOATS = {
    "maximum": "dv_max({0}, {1})", "minimum": "dv_min({0}, {1})",
    "truncdiv": "dv_trunc(dv_div({0}, {1}))", "floordiv": "dv_floordiv({0}, {1})",
    "remainder": "dv_remainder({0}, {1})", "fmod": "dv_fmod({0}, {1})",
}  # fmt: skip

_OF_ALL = {
    **{
        name: f"({{0}} {sign} {{1}})"
        for name, sign in {
            "add": "+", "sub": "-", "mul": "*", "bitwise_and": "&", "bitwise_or": "|",
            "bitwise_xor": "^", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
            "ge": ">=",
        }.items()
    },
    "cast": "{0}.to({result})", "from_bits": "{0}.to(tl.float64, bitcast=True)",
    "to_bits": "{0}.to(tl.int64, bitcast=True)",
    "round_bf16": "{0}.to(tl.bfloat16).to(tl.float32)",
    "round_f16": "{0}.to(tl.float16).to(tl.float32)",
    "where": "tl.where({0}, {1}, {2})", "neg": "(-{0})", "abs": "tl.abs({0})",
    "sign": "(({0} > 0).to({result}) - ({0} < 0).to({result}))",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})",
    "relu": "tl.where({0} < 0, 0, {0}).to({result})", "bitwise_not": "(~{0})",
    "shift_left": "dv_shift_left({0}, {1})", "shift_right": "dv_shift_right({0}, {1})",
    "div": "dv_div({0}, {1})", "truncdiv": "({0} // {1})", "floordiv": "dv_ifloordiv({0}, {1})",
    "remainder": "dv_iremainder({0}, {1})", "fmod": "({0} - ({0} // {1}) * {1})",
    "isnan": "({0} != {0})", "isinf": "(tl.abs({0}) == float('inf'))",
    "sqrt": "tl.sqrt({0})", "reciprocal": "(1.0 / {0})", "log10": "libdevice.log10({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "rsqrt": "tl.rsqrt({0})",
    "exp": "tl.exp({0})", "exp2": "tl.exp2({0})", "log": "tl.log({0})", "log2": "tl.log2({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})",
    "expm1": "dv_expm1({0})", "log1p": "dv_log1p({0})", "tanh": "dv_tanh({0})",
    "round": "dv_round({0})", "trunc": "dv_trunc({0})", "sigmoid": "tl.sigmoid({0})",
}  # fmt: skip

# Forms on float32 whose error is below what 2 bytes tell apart.
NARROW = {"erf": "dv_erf_narrow({0})", "tanh": "dv_tanh_narrow({0})"}


def has_triton_form(aten_op: str, dtype: torch.dtype) -> bool:
    """False for the ATen ops (`name.overload`) of CORE_ATEN that stay library calls on a GPU. (The
    lanes of a block wait for the one whose Euclid takes longest: the library is three times as
    fast.)"""
    names = {"gcd.default": "gcd", "pow.Tensor_Tensor": "pow"}
    return has_scalar_form(names.get(aten_op, ""), dtype)


def has_scalar_form(op: str, dtype: torch.dtype) -> bool:
    """False for the scalar ops that kernels for a GPU do not have."""
    return op != "gcd" and (op != "pow" or dtype.is_floating_point)


class UnsupportedOp(NotImplementedError):
    """A scalar op that has no Triton form; the graph's op stays a library call."""


def emit_op(
    op: str,
    args: Sequence[str],
    operand: torch.dtype,
    result: torch.dtype,
    use: Callable[[str], None],
    narrow: bool = False,
) -> str:
    """Triton text of one op on operands of dtype `operand`; `use` is told each helper it calls.
    With `narrow` all that is made of the result is stored in 2 bytes.

    Raises UnsupportedOp for an op without a Triton form.
    """
    form = "({0} != 0)" if op == "cast" and result is torch.bool else _form(op, operand, narrow)
    if form is not None:
        for name in re.findall(r"dv_\w+", form):
            use(name)
        return form.format(*args, result=TRITON_TYPES[result])
    # Rare functions come from CUDA's device library; Triton's interpreter does not have them.
    if op in OF_OPERATORS and operand.is_floating_point and has_scalar_form(op, operand):
        return f"libdevice.{op}({', '.join(args)})"
    raise UnsupportedOp(f"{op} on {operand} has no Triton form")


def _form(op: str, operand: torch.dtype, narrow: bool) -> str | None:
    """The form of an op that has one of its own for operands of this dtype, or for any."""
    tables = [_OF_ALL]
    if operand is torch.bool:
        tables.insert(0, _OF_BOOLEANS)
    if operand.is_floating_point:
        tables.insert(0, _OF_FLOATS)
    if operand is torch.float64:
        tables.insert(0, _OF_FLOAT64)
    if operand is torch.float32:
        tables.insert(0, _OF_FLOAT32)
        if narrow:
            tables.insert(0, NARROW)
    return next((table[op] for table in tables if op in table), None)
