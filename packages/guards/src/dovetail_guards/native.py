"""Compiles clauses to the native check: sources become a tree, each evaluated once.

The extension is loaded and proved on import of this module, not of the package.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, Protocol, cast

import torch

from dovetail_guards import clauses as c
from dovetail_guards import float_expr
from dovetail_guards import source as s
from dovetail_guards.check_clauses import answers_hold
from dovetail_guards.evaluate import argument_names, constants_equal
from dovetail_guards.expr import Atom, Expr
from dovetail_guards.iterators import READERS as ITERATOR_READERS
from dovetail_guards.native_load import load_native
from dovetail_guards.relations import BoolExpr
from dovetail_guards.torch_state import AUTOCAST_DEVICES, READERS, autocast_dtype

# The numbers of `Op` in csrc/relation.h.
PUSH, SYMBOL, ADD, MUL, FLOORDIV, MOD, MIN, MAX, EQ, NE, LT, LE, AND, OR, NOT = range(15)
_ATOMS = {"floordiv": FLOORDIV, "mod": MOD, "min": MIN, "max": MAX}
_EFFECT = {PUSH: 1, SYMBOL: 1, NOT: 0}  # all others take two and give one

Code = list[tuple[int, int]]


def compile_program(
    expr: Expr | BoolExpr, names: tuple[str, ...]
) -> tuple[tuple[tuple[int, int], ...], int]:
    """(instructions, deepest stack); KeyError-free: every free symbol must be in `names`."""
    missing = expr.free_symbols() - set(names)
    if missing:
        raise ValueError(f"symbols without a source: {', '.join(sorted(missing))}")
    code: Code = []
    if isinstance(expr, Expr):
        _integer(expr, names, code)
    else:
        _boolean(expr, names, code)
    if any(not -(2**63) < argument < 2**63 for _, argument in code):
        raise OverflowError(f"a number in {expr} does not fit 64 bits")
    depth = deepest = 0
    for op, _ in code:
        depth += _EFFECT.get(op, -1)
        deepest = max(deepest, depth)
    return tuple(code), deepest


def _atom(atom: Atom, names: tuple[str, ...], code: Code) -> None:
    if atom.kind == "sym":
        code.append((SYMBOL, names.index(atom.name)))
        return
    for i, arg in enumerate(atom.args):
        _integer(arg, names, code)
        if i:
            code.append((_ATOMS[atom.kind], 0))


def _integer(expr: Expr, names: tuple[str, ...], code: Code) -> None:
    if not expr.terms:
        code.append((PUSH, 0))
    for i, (monomial, coefficient) in enumerate(expr.terms):
        pushed = coefficient != 1 or not monomial
        if pushed:
            code.append((PUSH, coefficient))
        for atom, power in monomial:
            for _ in range(power):
                _atom(atom, names, code)
                if pushed:
                    code.append((MUL, 0))
                pushed = True
        if i:
            code.append((ADD, 0))


def _boolean(expr: BoolExpr, names: tuple[str, ...], code: Code) -> None:
    match expr.kind:
        case "true" | "false":
            code.append((PUSH, int(expr.kind == "true")))
        case "eq" | "le":
            _integer(expr.args[0], names, code)
            code.append((PUSH, 0))
            code.append((EQ if expr.kind == "eq" else LE, 0))
        case "not":
            _boolean(expr.args[0], names, code)
            code.append((NOT, 0))
        case _:
            for i, arg in enumerate(expr.args):
                _boolean(arg, names, code)
                if i:
                    code.append((AND if expr.kind == "and" else OR, 0))


_native = load_native()
accumulator_has_hooks: Callable[[torch.Tensor], bool] = _native.accumulator_has_hooks
"""Are there hooks on the node of autograd that accumulates the gradient of this tensor?"""


class NativeGuard(Protocol):
    """A compiled guard. It keeps alive what its clauses name, but the objects that `IdIs` refers
    to weakly: once such a one has died, the guard never holds again."""

    capsule: object
    """A `PyCapsule` named "dovetail.guard.v1" for C callers; it keeps the guard alive."""

    patience: int
    """How many checks in a row must find everything as it was before it is remembered flat."""
    is_expired: bool
    """Has an object died that it compares by identity?"""
    is_traced: bool
    """Is what the checks found remembered flat?"""

    def __call__(self, args: tuple[Any, ...], func: FunctionType) -> bool:
        """Do all clauses hold for raw arguments in `co_varnames` order?"""

    def repeat(self, args: tuple[Any, ...], func: FunctionType, count: int) -> int:
        """Check `count` times through the C entry; how many passed (for measuring)."""


# The numbers of `Step` and `CheckKind` in csrc/tree.h, and of `RelationKind` in csrc/guard.h.
_ARGUMENT, _CLOSURE, _GLOBALS, _BUILTINS, _OBJECT = range(5)
_ATTR, _INSTANCE_ATTR, _ITEM, _DICT_KEY, _TYPE, _CELL, _SIZE, _FLATTEN, _CALL = range(5, 14)
_TYPE_IS, _ID_IS, _CONSTANT_IS, _LENGTH_IS, _DICT_KEYS, _HAS_KEY, _HAS_ATTR, _TENSOR_IS = range(8)
_CLASS_ATTRS, _FUNCTION_IS, _SLOT_EMPTY, _NO_ACCUMULATOR_HOOKS, _NO_OWN_ATTRS = range(8, 13)
_STRIDES = 1 << 16  # a dimension from here on is a stride's (kStrides in csrc/tensor_view.h)
_SHAPE, _COMPUTED = range(3, 5)


def _flags(value: tuple[bool, ...]) -> int:
    return sum(bool(flag) << i for i, flag in enumerate(value))


def _dtype_number(dtype: torch.dtype) -> int:
    return int(_native.probe_constants(dtype, torch.strided, torch.device("cpu"))[0])


def _device_number(device: str) -> int:
    return int(_native.probe_constants(torch.float32, torch.strided, torch.device(device))[2])


# Setting -> its `State` number (csrc/torch_state.h), how its value is coded (None: this value has
# no code) and whether a code that differs proves that the setting differs.
_STATES: dict[str, tuple[int, Callable[[Any], int | None], bool]] = {
    "grad_mode": (0, int, True),
    "inference_mode": (1, int, True),
    "autocast": (2, lambda value: None if value else 1, False),
    "default_dtype": (3, _dtype_number, True),
    "num_threads": (4, int, True),
    "deterministic": (5, _flags, True),
    "torch_function_modes": (6, lambda value: None if value else 0, False),
    "torch_dispatch_modes": (7, lambda value: None if value else 0, False),
    "sdp_kernels": (8, _flags, True),
    "cudnn": (9, _flags, True),
    "float32_matmul_precision": (10, {"highest": 0, "high": 1, "medium": 2}.get, True),
    "function_transforms": (11, int, True),
    "autocast_cache": (12, int, True),
    **{
        autocast_dtype(device): (64 + _device_number(device), _dtype_number, True)
        for device in AUTOCAST_DEVICES
    },
    # Without a torch-function mode no default device is in force.
    "default_device": (6, lambda value: 0 if value == torch.device("cpu") else None, False),
}


# Of a source with a base: its step, with its key and its index.
_STEPS: dict[type[s.Source], Callable[[Any], tuple[int, Any, int]]] = {
    s.AttrSource: lambda source: (_ATTR, source.name, 0),
    s.InstanceAttrSource: lambda source: (_INSTANCE_ATTR, source.name, 0),
    s.ItemSource: lambda source: (_ITEM, source.key, 0),
    s.DictKeySource: lambda source: (_DICT_KEY, None, source.index),
    s.TypeSource: lambda source: (_TYPE, None, 0),
    s.CellContentsSource: lambda source: (_CELL, None, 0),
    s.SizeSource: lambda source: (_SIZE, None, source.dim),
    s.StrideSource: lambda source: (_SIZE, None, source.dim + _STRIDES),
    s.FlattenSource: lambda source: (_FLATTEN, None, 0),
    s.IteratorSource: lambda source: (_CALL, ITERATOR_READERS[source.part], 0),
}
_tensor_table = attrgetter(
    "type_", "dtype", "device", "layout", "requires_grad", "is_conj", "is_neg", "sizes", "strides"
)
# Of a clause on one source: its check, with what is looked for and a number.
_CHECKS: dict[type[c.Clause], Callable[[Any], tuple[int, Any, int]]] = {
    c.TypeIs: lambda clause: (_TYPE_IS, clause.type_, 0),
    c.IdIs: lambda clause: (
        (_ID_IS, clause.key, 2) if clause.by_address else (_ID_IS, clause.obj, int(clause.is_weak))
    ),
    c.ConstantIs: lambda clause: (_CONSTANT_IS, clause.value, 0),
    c.LengthIs: lambda clause: (_LENGTH_IS, None, clause.length),
    c.DictKeysAre: lambda clause: (_DICT_KEYS, clause.keys, 0),
    c.HasKey: lambda clause: (_HAS_KEY, clause.key, int(clause.present)),
    c.HasInstanceAttr: lambda clause: (_HAS_ATTR, clause.name, int(clause.present)),
    c.TensorIs: lambda clause: (_TENSOR_IS, _tensor_table(clause), 0),
    c.SlotIsEmpty: lambda clause: (_SLOT_EMPTY, clause.name, 0),
    c.NoAccumulatorHooks: lambda clause: (_NO_ACCUMULATOR_HOOKS, None, 0),
    c.ClassAttrsAre: lambda clause: (_CLASS_ATTRS, clause.attrs, 0),
    c.FunctionIs: lambda clause: (
        _FUNCTION_IS,
        (clause.code, clause.defaults, clause.kwdefaults),
        0,
    ),
}
_RELATIONS: dict[type[c.Clause], int] = {
    c.SameObject: 0, c.DistinctObjects: 1, c.DistinctStorage: 2,
}  # fmt: skip


class _Builder:
    """Collects the tables that `_native.NativeGuard` is made of."""

    def __init__(self, code: CodeType, tensors: frozenset[s.Source] = frozenset()) -> None:
        self.tensors = tensors
        self.absent: dict[s.Source, list[str]] = {}  # names that tensors' own attributes lack
        self.arguments = argument_names(code)
        self.freevars = code.co_freevars
        self.nodes: list[tuple[int, int, Any, int]] = []
        self.checks: list[tuple[int, int, Any, int]] = []
        self.states: list[tuple[int, int | None, bool, Any, Any]] = []
        self.relations: list[tuple[int, tuple[Any, ...], Any, int]] = []
        self._indices: dict[Any, int] = {}

    def _node(self, identity: Any, step: int, parent: int, key: Any, index: int) -> int:
        found = self._indices.get(identity)
        if found is None:
            found = self._indices[identity] = len(self.nodes)
            self.nodes.append((step, parent, key, index))
        return found

    def globals_(self) -> int:
        return self._node("globals", _GLOBALS, -1, None, 0)

    def node(self, source: s.Source) -> int:
        """The node of a source; made, with those it hangs under, at first use."""
        found = self._indices.get(source)
        if found is not None:
            return found
        match source:
            case s.LocalSource(name):
                return self._node(source, _ARGUMENT, -1, None, self.arguments.index(name))
            case s.ClosureSource(name):
                return self._node(source, _CLOSURE, -1, None, self.freevars.index(name))
            case s.GlobalSource(name):
                return self._node(source, _ITEM, self.globals_(), name, 0)
            case s.BuiltinSource(name):
                builtins = self._node("builtins", _BUILTINS, -1, None, 0)
                return self._node(source, _ITEM, builtins, name, 0)
            case s.ObjectSource(obj):
                return self._node(source, _OBJECT, -1, obj, 0)
        step, key, index = _STEPS[type(source)](source)
        return self._node(source, step, self.node(source.base), key, index)  # type: ignore[attr-defined]

    def _check(self, source: s.Source, kind: int, obj: Any, number: int) -> None:
        self.checks.append((self.node(source), kind, obj, number))

    def add(self, clause: c.Clause) -> None:
        """Enter one clause into the tables."""
        match clause:
            case c.HasInstanceAttr(present=False) if clause.source in self.tensors:
                self.absent.setdefault(clause.source, []).append(clause.name)
            case c.GlobalPresent():
                node = self.globals_()
                self.checks.append((node, _HAS_KEY, clause.name, int(clause.present)))
            case c.TorchState():
                self._state(clause)
            case c.AbstractAnswers():
                self.states.append((-1, None, False, _asked_again(clause), True))
            case c.SameObject() | c.DistinctObjects() | c.DistinctStorage():
                operands = tuple((self.node(source), None) for source in clause.sources)
                self.relations.append((_RELATIONS[type(clause)], operands, (), 0))
            case c.ShapeRelation():
                self._shape(clause)
            case _:
                self._check(clause.source, *_CHECKS[type(clause)](clause))  # type: ignore[attr-defined]

    def finish(self) -> None:
        """Enter what several clauses say together."""
        for source, names in self.absent.items():
            self._check(source, _NO_OWN_ATTRS, tuple(names), 0)

    def _state(self, clause: c.TorchState) -> None:
        number, code, exact = _STATES.get(clause.name, (-1, lambda value: None, False))
        expected = code(clause.value)
        if expected is None:
            number = -1
        self.states.append((number, expected, exact, READERS[clause.name], clause.value))

    def _shape(self, clause: c.ShapeRelation) -> None:
        check = float_expr.holds(clause.expr, clause.symbols)
        if check is not None:
            operands = self._operands(tuple(float_expr.leaves(clause.symbols).values()))
            self.relations.append((_COMPUTED, operands, check, 0))
            return
        operands = self._operands(tuple(source for _, source in clause.symbols))
        names = tuple(name for name, _ in clause.symbols)
        program, depth = compile_program(clause.expr, names)
        self.relations.append((_SHAPE, operands, program, depth))

    def _operands(self, sources: tuple[s.Source, ...]) -> tuple[Any, ...]:
        return tuple(
            (self.node(source.base), source.dim)
            if isinstance(source, s.SizeSource)
            else (self.node(source.base), source.dim + _STRIDES)
            if isinstance(source, s.StrideSource)
            else (self.node(source), None)
            for source in sources
        )


def _asked_again(clause: c.AbstractAnswers) -> Callable[[], bool]:
    """Whether the answers still hold, asked again only after some class was registered."""
    known: object = None

    def holds() -> bool:
        nonlocal known
        now = abc.get_cache_token()
        if now == known:
            return True
        if not answers_hold(clause):
            return False
        known = now
        return True

    return holds


def compile_guards(clauses: Sequence[c.Clause], code: CodeType) -> NativeGuard:
    """One native check of all clauses, for frames of functions that run `code`.

    Raises ValueError for a source that names no argument or free variable of `code`.
    """
    tensors = frozenset(each.source for each in clauses if isinstance(each, c.TensorIs))
    builder = _Builder(code, tensors)
    for clause in clauses:
        builder.add(clause)
    builder.finish()
    guard = _native.NativeGuard(
        len(builder.arguments), builder.nodes, builder.checks, builder.states, builder.relations
    )
    return cast(NativeGuard, guard)


_native.set_up(constants_equal, torch._C.TensorBase, torch.dtype, torch.layout, torch.device)
