"""Size expressions: evaluation in plain Python, and the table form the native executor runs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence

import torch

from dovetail_runtime.plan import Size, SizeExpr, SymbolBinding

# Order is the native executor's operation code.
_INTEGER = ("add", "sub", "mul", "floordiv", "ceildiv", "mod", "min", "max", "neg")
_TRUTH = ("eq", "le", "and", "or", "not")


def _power(base: float, exponent: float) -> float:
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a negative float to a fractional power")
    return float(result)


# On floats given by their bits; `float` takes an integer.
FLOAT_OPERATIONS: Mapping[str, Callable[..., float]] = {
    "float": float,
    "fadd": lambda a, b: a + b,
    "fsub": lambda a, b: a - b,
    "fmul": lambda a, b: a * b,
    "fdiv": lambda a, b: a / b,
    "ffloordiv": lambda a, b: a // b,
    "fmod": lambda a, b: a % b,
    "fpow": _power,
    "fmin": min,
    "fmax": max,
    "fneg": lambda a: -a,
    "fabs": abs,
    **{
        f"f{name}": getattr(math, name)
        for name in "sqrt cos cosh sin sinh tan tanh asin acos atan exp log log2".split()
    },
}
OPERATIONS = (*_INTEGER, *_TRUTH, *FLOAT_OPERATIONS)
_UNARY = {"neg", "not", "float", *list(FLOAT_OPERATIONS)[10:]}


def float_bits(value: float) -> int:
    """The bits of a float, as a signed integer."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def float_from_bits(bits: int) -> float:
    """The float with these bits."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


def symbols_of(size: Size) -> set[str]:
    """The symbols of an expression."""
    if isinstance(size, int):
        return set()
    if size.op == "sym":
        return {str(size.args[0])}
    return {name for arg in size.args if not isinstance(arg, str) for name in symbols_of(arg)}


def bind_symbols(
    bindings: Sequence[SymbolBinding], inputs: Sequence[torch.Tensor | int | float]
) -> dict[str, int]:
    """The value of every symbol, read from the inputs."""
    symbols: dict[str, int] = {}
    for binding in bindings:
        value = inputs[binding.input]
        if binding.is_float:
            if not isinstance(value, float):
                raise TypeError(f"input {binding.input} must be a float: it binds {binding.name!r}")
            symbols[binding.name] = float_bits(value)
        elif binding.dim is None:
            if not isinstance(value, int):
                raise TypeError(f"input {binding.input} must be an int: it binds {binding.name!r}")
            symbols[binding.name] = value
        else:
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"input {binding.input} must be a tensor")
            symbols[binding.name] = value.shape[binding.dim]
    return symbols


def evaluate(size: Size, symbols: Mapping[str, int]) -> int:
    """The value of `size` where each symbol has the given value."""
    if isinstance(size, int):
        return int(size)
    if size.op == "sym":
        return symbols[str(size.args[0])]
    args = [evaluate(_operand(a), symbols) for a in size.args]
    if size.op in FLOAT_OPERATIONS:
        floats = args if size.op == "float" else [float_from_bits(a) for a in args]
        return float_bits(FLOAT_OPERATIONS[size.op](*floats))
    match size.op:
        case "neg":
            return -args[0]
        case "not":
            return int(not args[0])
    left, right = args
    match size.op:
        case "add":
            return left + right
        case "sub":
            return left - right
        case "mul":
            return left * right
        case "floordiv":
            return left // right
        case "ceildiv":
            return -(-left // right)
        case "mod":
            return left % right
        case "min":
            return min(left, right)
        case "max":
            return max(left, right)
        case "eq":
            return int(left == right)
        case "le":
            return int(left <= right)
        case "and":
            return int(bool(left and right))
        case "or":
            return int(bool(left or right))
    raise ValueError(f"unknown size operation {size.op!r}")


def size_text(size: Size) -> str:
    """`size` as a Python expression over its symbols."""
    if isinstance(size, int):
        return str(int(size))
    if size.op == "sym":
        return str(size.args[0])
    args = [size_text(_operand(a)) for a in size.args]
    infix = {
        "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "eq": "==", "le": "<=",
        "and": "and", "or": "or",
    }  # fmt: skip
    if size.op in FLOAT_OPERATIONS:
        return f"rt.on_floats({size.op!r}, {', '.join(args)})"
    if size.op == "not":
        return f"(not {args[0]})"
    if size.op in infix:
        return f"({args[0]} {infix[size.op]} {args[1]})"
    if size.op == "neg":
        return f"(-{args[0]})"
    if size.op == "ceildiv":
        return f"(-(-{args[0]} // {args[1]}))"
    return f"{size.op}({args[0]}, {args[1]})"


def storage_bytes(shape: Sequence[int], stride: Sequence[int], offset: int, itemsize: int) -> int:
    """Bytes from the start of the storage to the end of the last element."""
    if any(extent == 0 for extent in shape):
        return 0
    last = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    return (offset + last + 1) * itemsize


def _operand(argument: int | str | SizeExpr) -> Size:
    if isinstance(argument, str):
        raise ValueError(f"a symbol's name {argument!r} stands where a size is expected")
    return argument


class SizeTable:
    """Sizes numbered for the native executor; equal sizes get one number.

    `values[n]` is number n's value when it is known before a call (a constant), else None: then
    it is a symbol (filled from the inputs, or by a `Bind` step) or the result of an entry of
    `programs`: the first is run on entry, the others each after one `Bind` step.
    """

    def __init__(self) -> None:
        self.values: list[int | None] = []
        # operation, destination, left, right
        self.programs: list[list[tuple[int, int, int, int]]] = [[]]
        self._stage: dict[int, int] = {}  # which program gives a number, if not the first
        self.symbols: dict[str, int] = {}
        self._definitions: dict[str, Size] = {}
        self._constants: dict[int, int] = {}
        self._expressions: dict[SizeExpr, int] = {}
        self._entries: dict[tuple[int, int, int], int] = {}

    def bind(self, name: str) -> int:
        """Make `name` a symbol; every symbol is bound before sizes that use it are numbered."""
        if name not in self.symbols:
            self.symbols[name] = self._new(None)
        return self.symbols[name]

    def bind_late(self, name: str) -> int:
        """Make `name` a symbol that the next `Bind` step fills."""
        if name in self.symbols:
            raise ValueError(f"size symbol {name!r} is bound twice")
        number = self.bind(name)
        self._stage[number] = len(self.programs)
        self.programs.append([])
        return number

    def define(self, name: str, size: Size) -> None:
        """Let `name` be used as a symbol for `size`."""
        self._definitions[name] = size

    def is_late(self, number: int) -> bool:
        """Whether a size is not known yet when a call begins."""
        return number in self._stage

    def number(self, size: Size) -> int:
        """The number of `size`, added if it is new."""
        if isinstance(size, int):
            value = int(size)
            if value not in self._constants:
                self._constants[value] = self._new(value)
            return self._constants[value]
        known = self._expressions.get(size)
        if known is None:
            known = self._expressions[size] = self._number_expression(size)
        return known

    def _number_expression(self, size: SizeExpr) -> int:
        if size.op == "sym":
            name = str(size.args[0])
            if name not in self.symbols and name in self._definitions:
                self.symbols[name] = self.number(self._definitions[name])
            if name not in self.symbols:
                raise ValueError(f"size symbol {name!r} is bound by no input")
            return self.symbols[name]
        if size.op not in OPERATIONS:
            raise ValueError(f"unknown size operation {size.op!r}")
        if len(size.args) != (1 if size.op in _UNARY else 2):
            raise ValueError(f"size operation {size.op!r} with {len(size.args)} operands")
        operands = [self.number(_operand(a)) for a in size.args]
        known = [self.values[n] for n in operands]
        if all(v is not None for v in known):
            constants = tuple(int(v) for v in known if v is not None)
            return self.number(evaluate(SizeExpr(size.op, constants), {}))
        key = (OPERATIONS.index(size.op), operands[0], operands[-1])
        if key not in self._entries:
            made = self._entries[key] = self._new(None)
            stage = max(self._stage.get(n, 0) for n in operands)
            if stage:
                self._stage[made] = stage
            self.programs[stage].append((key[0], made, key[1], key[2]))
        return self._entries[key]

    def _new(self, value: int | None) -> int:
        self.values.append(value)
        return len(self.values) - 1
