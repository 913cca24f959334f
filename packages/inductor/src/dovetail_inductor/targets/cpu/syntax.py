"""Spelling: C++ types, literals, index expressions and scalar ops; and the names in the text of an
emitted kernel, each of which is declared in a block around its use."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from dovetail_inductor.loop_ir.expr import Expr, IndexCheck, Scalar
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Indirect, Mod, Var
from dovetail_inductor.loop_ir.ops import ROUNDING

ARITHMETIC = {
    torch.bool: "bool",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.float32: "float",
    torch.float64: "double",
}
STORAGE = {
    **ARITHMETIC,
    torch.bool: "bool8",
    torch.float16: "half",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}

# What the text of symbolic sizes uses; and memory for rows whose length is known at run time only.
SIZE_FUNCTIONS = """\
static inline int64_t floor_div(int64_t a, int64_t b) {
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
static inline int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greatest(int64_t a, int64_t b) { return a < b ? b : a; }
struct Scratch {
  void* whole;
  char* data;
  explicit Scratch(int64_t bytes) : whole(__builtin_malloc(bytes + 64)) {
    if (!whole) std::__throw_bad_alloc();
    data = (char*)(((uintptr_t)whole + 63) & ~(uintptr_t)63);
  }
  ~Scratch() { __builtin_free(whole); }
};"""


def literal(value: Scalar, dtype: torch.dtype) -> str:
    """A typed constant."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype.is_floating_point:
        number, suffix = float(value), "f" if dtype is torch.float32 else ""
        if math.isnan(number):
            return f'__builtin_nan{suffix}("")'
        if math.isinf(number):
            return f"({'-' if number < 0 else ''}__builtin_inf{suffix}())"
        text = repr(number) + suffix
        return f"({text})" if text[0] == "-" else text
    if value == -(2**63):
        return "INT64_MIN"
    return f"({ARITHMETIC[dtype]}){value}" if value >= 0 else f"(({ARITHMETIC[dtype]})({value}))"


def index_text(index: Index, name: Callable[[Var], str], value: Callable[[Expr], str]) -> str:
    """An index as a C++ expression; `name` spells a variable, `value` an indirect atom's value."""
    parts = []
    for atom, c in index.terms:
        if isinstance(atom, Var):
            text = name(atom)
        elif isinstance(atom, Indirect):
            text = value(atom.value)
        else:
            text = _division(atom, index_text(atom.inner, name, value))
        parts.append(text if c == 1 else f"{c} * {text}")
    if index.const != 0 or not parts:
        parts.append(str(index.const))
    return " + ".join(parts)


def _division(atom: FloorDiv | Mod, inner: str) -> str:
    n = atom.divisor
    # C++ rounds toward zero: lift a possibly negative operand by a multiple of n first.
    low = atom.inner.bounds[0]
    lift = -(low // n) if low < 0 else 0
    operand = f"({inner} + {lift * n})" if lift else f"({inner})"
    if isinstance(atom, Mod):
        return f"({operand} % {n})"
    return f"({operand} / {n} - {lift})" if lift else f"({operand} / {n})"


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_BITS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Functions that are not called as their op with `_` behind.
_CALLS = {
    "maximum": "vmax", "minimum": "vmin", "where": "sel", "truncdiv": "truncdiv",
    "floordiv": "floordiv", "shift_left": "shl", "shift_right": "shr",
    **{rounding: rounding for rounding in ROUNDING.values()},
}  # fmt: skip


def combination(op: str, a: str, b: str) -> str:
    """Two partial results of a reduction as one."""
    sign = (_INFIX | _BITS).get(op)
    return f"{a} {sign} {b}" if sign else f"{_CALLS[op]}({a}, {b})"


# Integer division traps on zero, which the lanes beyond a loop's end may hold.
SCALAR_ONLY_ON_INTEGERS = ("truncdiv", "floordiv", "remainder", "fmod")


def op_text(
    op: str,
    args: list[str],
    dtype: torch.dtype,
    source: torch.dtype,
    check: IndexCheck | None,
    vector: bool,
) -> str:
    """One scalar op on operands of type `source`, all vectors or all scalars."""
    target = ARITHMETIC[dtype]
    if op == "mul" and vector and dtype.itemsize == 1:
        return f"mul_bytes({args[0]}, {args[1]})"
    if op in _INFIX:
        text = f"{args[0]} {_INFIX[op]} {args[1]}"
        return text if vector or dtype.is_floating_point else f"({target})({text})"
    if op in _BITS:
        text = f"{args[0]} {_BITS[op]} {args[1]}"
        return text if vector else f"({target})({text})"
    if op in _COMPARE:
        return f"mask({args[0]} {_COMPARE[op]} {args[1]})"
    if op == "neg":
        return f"-{args[0]}" if vector or dtype.is_floating_point else f"({target})(0 - {args[0]})"
    if op == "bitwise_not":
        if dtype is torch.bool and not vector:
            return f"!{args[0]}"
        return f"~{args[0]}" if vector else f"({target})(~{args[0]})"
    if op == "reciprocal":
        return f"1 / {args[0]}"
    if check is not None:
        kind = "true" if check.error == "IndexError" else "false"
        wrapped = "true" if check.wrapped else "false"
        return f"check_index<{kind}, {wrapped}>({args[0]}, {check.size}, {check.dim})"
    if op == "from_bits":
        return f"bits<double>({args[0]})"
    if op == "to_bits":
        return f"to_bits({args[0]})"
    if op == "cast":
        if dtype is torch.bool:
            return f"mask({args[0]} != 0)"
        if source is torch.bool:
            return f"from_mask<{target}>({args[0]})"
        return f"cast<{target}>({args[0]})"
    return f"{_CALLS.get(op, f'{op}_')}({', '.join(args)})"


_NUMBER = re.compile(r"\s*(?:(?:const )?int64_t|const auto(?= \w+ = cast<int)) (\w+) = [^;]*;")


def without_unread(lines: Sequence[str]) -> list[str]:
    """The statements, without the numbers that they define and never read."""
    words = Counter(re.findall(r"\w+", "\n".join(lines)))
    defined = [_NUMBER.fullmatch(line) for line in lines]
    return [
        line
        for line, number in zip(lines, defined, strict=True)
        if number is None or words[number[1]] > 1
    ]


# --- names in the text of a kernel ---------------------------------------------------------------

# Declarations and uses of the names that the emitter makes: loop variables, values, accumulators,
# arrays, pointers, sizes.
_NAME = r"(?:i\d+|t\d+|acc\d+|scratch\d+|tile\d+|row\d+|resultacc\d+|p\d+|size_\w+|base\d+|rest\d+)"
_TOKEN = re.compile(
    rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<open>{{)|(?P<close>}})"
    rf"|(?P<name>(?<![\w.]){_NAME}\b)(?P<declares>\s*(?:=(?!=)|\[[^\]]*\];|\())?",
    re.DOTALL,
)
_FUNCTION = re.compile(r'^extern "C" void .*?^}', re.DOTALL | re.MULTILINE)
# What stands before the name in a declaration, a type; in the head of a loop a second name follows
# a comma.
_TYPE = re.compile(r"[\w>*]\s+$")
_SECOND = re.compile(r"\bfor \(int64_t [^;{}]*,\s*$")


class ScopeError(AssertionError):
    """A kernel's text names what is not declared there; the message holds the lines around it."""


def check_scopes(source: str) -> None:
    """Raise `ScopeError` at the first name of a kernel's function that no block around it declares
    before."""
    for function in _FUNCTION.finditer(source):
        _check_function(function.group())


def _check_function(text: str) -> None:
    scopes: list[set[str]] = [set()]
    head: set[str] = set()  # declared in the parentheses that stand before a block
    for token in _TOKEN.finditer(text):
        if token["open"] == "{":
            scopes.append(head)
            head = set()
        elif token["close"] == "}":
            scopes.pop()
        elif name := token["name"]:
            before = text[max(0, token.start() - 200) : token.start()]
            if token["declares"] and (_TYPE.search(before) or _SECOND.search(before)):
                in_head = (
                    before.rfind("for (") > before.rfind("{")
                    and ";" not in before[before.rfind("for (") :]
                )
                (head if in_head else scopes[-1]).add(name)
            elif name not in head and not any(name in scope for scope in scopes):
                line = text.count("\n", 0, token.start())
                around = text.splitlines()[max(0, line - 6) : line + 4]
                raise ScopeError(
                    f"{name} is not declared where it is read, in\n" + "\n".join(around)
                )
