"""What is known of the data of tensors that a frame makes from plain numbers, and sizes that only
data tells: tensors taken for whole numbers, and sizes that have to agree.

`torch.tensor(3)`, `torch.div(seq_len, 2)` and small arithmetic on such tensors have the same data
in each run of a graph, so that `int(t)`, `t.tolist()`, `if t:` and sizes given as tensors need not
ask for it. A write to the memory of one of them forgets all of it: of others there may be views.

Of numbers that are sizes, or change from call to call, the data is computed when it is asked for
and not before: that fixes them to what they are now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from dovetail_guards import relations as rel
from dovetail_guards.shape_env import DataDependentError as UnknownSizeError
from dovetail_guards.sym_node import SymNode
from dovetail_prims.sizes.size_nodes import STATE
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_map

from dovetail_capture.interpreter.graph.aliasing import may_write, written_by
from dovetail_capture.interpreter.signals import GraphBreakSignal
from dovetail_capture.interpreter.values.base import Value
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.symbolic import SYMBOLIC_TYPES
from dovetail_capture.interpreter.values.tensors import TensorValue
from dovetail_capture.skip import module_of

if TYPE_CHECKING:
    from dovetail_capture.interpreter.graph.recorder import Recorder


_MOST_ELEMENTS = 64
_NUMBERS = (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64)
_MAKERS = frozenset(
    {"tensor", "as_tensor", "scalar_tensor", "arange", "linspace", "zeros", "ones", "full"}
)
SIZED_MAKERS = frozenset({"zeros", "ones", "full", "empty", "rand", "randn", "eye", "arange"})
_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "div", "truediv", "floordiv", "true_divide", "floor_divide", "remainder",
     "mod", "fmod", "pow", "neg", "abs", "clamp", "sum", "prod", "max", "min", "maximum", "minimum",
     "cumsum", "amax", "amin", "getitem", "cat", "stack", "to", "long", "int", "float", "bool",
     "item", "eq", "ne", "lt", "le", "gt", "ge", "all", "any", "logical_not", "floor", "ceil",
     "round", "trunc", "sqrt", "view", "reshape", "flatten", "squeeze", "unsqueeze", "clone",
     "detach", "contiguous", "flip", "diff", "invert", "bitwise_not", "and_", "or_", "xor",
     "logical_and", "logical_or", "logical_xor", "isfinite", "isnan", "isinf", "unbind", "split",
     "chunk"}
)  # fmt: skip


class KnownData:
    """The data of fakes, by their identity; the recorder keeps the fakes alive."""

    def __init__(self) -> None:
        self._of: dict[int, torch.Tensor] = {}
        # Those of one number or truth value. (Where they are asked for, tensors have no data.)
        self._numbers: dict[int, Any] = {}
        # What computes the data of those that are made from symbolic numbers.
        self._later: dict[int, Callable[[], None]] = {}
        self._storages: set[int] = set()  # ids of the memory of all these fakes

    def __bool__(self) -> bool:
        return bool(self._of or self._later)

    def of(self, fake: Any) -> torch.Tensor | None:
        """A tensor with the data that `fake` stands for, where it is known."""
        compute = self._later.pop(id(fake), None)
        if compute is not None:
            compute()
        return self._of.get(id(fake))

    def forget_if_written(self, node: Node) -> None:
        """Forget everything if the operation that was recorded may write to what is known."""
        if not self or not self._may_be_written(node):
            return
        self._of.clear()
        self._numbers.clear()
        self._later.clear()
        self._storages.clear()

    def _may_be_written(self, node: Node) -> bool:
        if _is_foreign(node.target):
            return True
        if not may_write(node):
            return False
        written = [getattr(part.meta.get("val"), "_storage", None) for part in written_by(node)]
        return not written or any(w is None or id(w) in self._storages for w in written)

    def has_number(self, fake: Any) -> bool:
        """Would `with_numbers` change this argument? (If so, it may have to compute.)"""
        if isinstance(fake, torch.Tensor):
            return id(fake) in self._numbers or (id(fake) in self._later and _is_number(fake))
        if isinstance(fake, slice):
            fake = (fake.start, fake.stop, fake.step)
        return isinstance(fake, (list, tuple)) and any(map(self.has_number, fake))

    def with_numbers(self, written: Any, fake: Any, index: bool = False) -> tuple[Any, Any]:
        """A graph argument and its fake with whole numbers in place of tensors of one known whole
        number, also in lists and slices. What does not change stays the same object. (Of an
        `index`, tensors with dimensions stay: so has what they select. Bounds of slices do not.)"""
        if isinstance(fake, torch.Tensor):
            if id(fake) in self._later and _is_number(fake):
                self.of(fake)
            number = self._numbers.get(id(fake))
            if number is None or (index and fake.dim() > 0):
                return written, fake
            return number, number
        parts: list[tuple[Any, Any]] = []
        if isinstance(fake, slice):
            bounds = (fake.start, fake.stop, fake.step)
            texts = (written.start, written.stop, written.step)
            parts = [self.with_numbers(*part) for part in zip(texts, bounds, strict=True)]
        elif isinstance(fake, (list, tuple)):
            bounds, texts = tuple(fake), tuple(written)
            both = zip(texts, bounds, strict=True)
            parts = [self.with_numbers(*part, index=index) for part in both]
        if not parts or all(new is old for (_, new), old in zip(parts, bounds, strict=True)):
            return written, fake
        make: Any = list if isinstance(fake, list) else tuple
        if isinstance(fake, slice):
            make = _slice
        return make([part[0] for part in parts]), make([part[1] for part in parts])

    def note(
        self, name: str, run: Callable[..., Any], args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """Learn the data of an operation's result, or results, from that of its arguments."""
        if name not in _MAKERS and not (self and name in _ARITHMETIC):  # nearly all there are
            return
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [v for v in leaves if isinstance(v, torch.Tensor)]
        if not self._knows(tensors) or name not in (_ARITHMETIC if tensors else _MAKERS):
            return
        parts = list(result) if isinstance(result, (tuple, list)) else [result]
        if any(part.device.type != "cpu" or not _is_small(part._sizes) for part in parts):
            return

        symbolic = [v for v in leaves if isinstance(v, SYMBOLIC_TYPES)]
        if any(v.node.hint is None for v in symbolic):
            return  # only data tells

        def compute() -> None:
            self._compute(name, run, args, kwargs, parts)

        self._storages.update(id(part._storage) for part in parts)
        if symbolic or any(id(v) in self._later for v in tensors):
            self._later.update((id(part), compute) for part in parts)
        else:
            compute()

    def _compute(
        self,
        name: str,
        run: Callable[..., Any],
        args: Any,
        kwargs: dict[str, Any],
        results: list[Any],
    ) -> None:
        """Compute the data of results. Raises GraphBreakSignal where the operation fails for it:
        the program may handle that, and so not the graph is to raise it."""
        real_args, real_kwargs = tree_map(self._real, (args, kwargs))
        try:
            with torch.no_grad():
                found = run(*real_args, **real_kwargs)
        except Exception as error:
            text = f"`{name}`, which fails for this data: {type(error).__name__}: {error}"
            raise GraphBreakSignal(text) from error
        reals = [found] if isinstance(found, torch.Tensor) else list(found)
        for result, real in zip(results, reals, strict=True):
            self._later.pop(id(result), None)
            if tuple(real.shape) == tuple(result._sizes):
                self._of[id(result)] = real
                # (As an index, uint8 is a mask.)
                if real.numel() == 1 and real.dtype in _NUMBERS:
                    self._numbers[id(result)] = real.item()  # an index of True is not one of 1

    def _real(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.of(value)
        if isinstance(value, SYMBOLIC_TYPES):
            kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
            return kind(value)  # the guard that fixes it
        return value

    def _knows(self, tensors: Iterable[torch.Tensor]) -> bool:
        return all(id(tensor) in self._of or id(tensor) in self._later for tensor in tensors)


def _is_number(fake: Any) -> bool:
    """Is it one whole number or truth value?"""
    return fake.dtype in _NUMBERS and all(size == 1 for size in fake._sizes)


def _is_small(sizes: Any) -> bool:
    count = 1
    for size in sizes:
        if type(size) is not int:
            return False
        count *= size
    return count <= _MOST_ELEMENTS


def _slice(bounds: list[Any]) -> slice:
    return slice(*bounds)


def _is_foreign(target: Any) -> bool:
    """Is it a function of the program's, of which nothing is known?"""
    module = module_of(target) or "torch"
    return callable(target) and module.partition(".")[0] not in ("torch", "_operator", "builtins")


# Operations that want sizes to be equal (or 1, where they are broadcast): where only data tells the
# sizes of two, they are taken to be equal.
SIZES_AGREE = frozenset(
    {prefix + name for prefix in ("", "i")
     for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}
    | {"and_", "or_", "add_", "sub_", "mul_", "div", "div_", "pow_", "where", "maximum", "minimum",
       "eq", "ne", "lt", "le", "gt", "ge", "copy_", "setitem", "addcmul", "lerp", "masked_fill"}
    | {"split", "split_with_sizes", "cat", "concat", "stack", "matmul", "imatmul", "mm", "bmm"}
    | {"cross_entropy", "nll_loss"}  # (torch 2.11 asks, 2.15 does not)
)  # fmt: skip


_INDEXING = frozenset({"getitem", "setitem", "__getitem__", "__setitem__"})  # by tensors, too


def may_ask(name: str, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """May an operation take one of its tensors for a whole number?"""
    if name in _INDEXING:
        return False
    first = 0 if name in SIZED_MAKERS else 1
    return any(map(_has_number, (*args[first:], *kwargs.values())))


def numbers_in(recorder: Recorder, value: Value) -> Value:
    """A value with numbers in place of the tensors inside of it that are whole numbers."""
    if _is_whole_number(value):
        return recorder.record("call_method", "item", [value], {})
    if isinstance(value, (ListValue, TupleValue)) and _has_number(value):
        items = [numbers_in(recorder, item) for item in value.items]
        return ListValue(items) if isinstance(value, ListValue) else TupleValue(items)
    return value


def assume_equal(recorder: Recorder, error: UnknownSizeError) -> bool:
    """Two sizes that only data tells meet in one operation: they are equal, says the operation,
    which the graph checks when it runs. (That one of them is 1 is not among what it takes.)"""
    relation = error.relation
    if recorder.data_env is None or relation is None:
        return False
    equal = relation if relation.kind == "eq" else rel.not_(relation)
    if equal.kind != "eq":
        return False
    holds = torch.SymBool(cast(Any, SymNode(recorder.data_env, equal, bool)))
    try:
        condition = recorder.sizes.node(holds)
    except (NotImplementedError, RuntimeError):  # of a number of which no node is known
        return False
    place = recorder.stack_trace().splitlines()[-1:]
    message = f"sizes that must be equal are not: {equal} ({''.join(place).strip()})"
    if not recorder.data_env.require(equal, message):
        return False
    recorder.state_change(STATE, condition, message)
    return True


def has_known_number(data: KnownData, name: str, pairs: Any, keyword_pairs: Any) -> bool:
    """Are there tensors of one known number among the arguments that sizes may be?"""
    first = 0 if name in SIZED_MAKERS else 1  # what a function works on stays
    rest = (*pairs[first:], *keyword_pairs.values())
    return any(data.has_number(pair[1]) for pair in rest)


def known_numbers_for(
    data: KnownData, name: str, pairs: Any, keyword_pairs: Any
) -> tuple[Any, Any]:
    """Arguments with known numbers in place of tensors whose data is asked for (as sizes)."""
    first = 0 if name in SIZED_MAKERS else 1
    index = name in _INDEXING
    new = [*pairs[:first], *(data.with_numbers(a, b, index) for a, b in pairs[first:])]
    return new, {key: data.with_numbers(*pair) for key, pair in keyword_pairs.items()}


def _is_whole_number(value: Any) -> bool:
    """A tensor that is one whole number."""
    if not isinstance(value, TensorValue) or len(value.sizes) != 0:  # dim() would ask Python
        return False
    dtype = value.fake.dtype
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _has_number(value: Any) -> bool:
    """Is it, or is inside of it, a tensor that is one whole number?"""
    if isinstance(value, (ListValue, TupleValue)):
        return any(map(_has_number, value.items))
    return _is_whole_number(value)
