"""Tables of constructs: each a tiny function, run by Python and captured, and compared in value,
type, what it printed, raised and changed, and in the number of graphs."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import io
import operator
import traceback
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_capture import optimize
from dovetail_capture.interpreter.attempts import attempt as attempt_module

# Every step's stack depth is compared with what `dis` says.
attempt_module.DEBUG = True

LOG: dict[str, list[Any]] = {"events": []}


class CountingBackend:
    """A backend that counts graphs, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs.append(gm)
        return gm.forward


class OwnError(ValueError):
    """An exception with a field."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def fails(x: torch.Tensor, message: str = "bad") -> torch.Tensor:
    """Raises for a matrix."""
    if x.dim() == 2:
        raise OwnError(message, code=7)
    return x


@functools.total_ordering
class Version:
    """Compared by its number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.n == other.n

    def __lt__(self, other: Version) -> bool:
        return self.n < other.n


class Manager:
    """A context manager that logs."""

    def __init__(self, log: list[str], swallow: bool = False) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> Manager:
        self.log.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


def loud(x: torch.Tensor) -> torch.Tensor:
    """Breaks the graph of its caller."""
    y = x + 1
    print("loud")
    return y * 2


@dataclass(frozen=True)
class Case:
    """One construct. `graphs` is the number of graphs after two calls; `breaks` that of breaks
    (None: as many as it takes); `make` gives fresh arguments."""

    function: Callable[..., Any]
    graphs: int | None
    breaks: int | None
    make: Callable[[], tuple[Any, ...]]
    since: tuple[int, int]


def _one_tensor() -> tuple[Any, ...]:
    return (torch.arange(6.0).reshape(2, 3),)


class Table:
    """Cases in the order of their definition: `@table()`, or `@table(graphs=2, breaks=1)`."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def __call__(
        self,
        graphs: int | None = 1,
        breaks: int | None = 0,
        make: Callable[[], tuple[Any, ...]] = _one_tensor,
        since: tuple[int, int] = (3, 11),
    ) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            self.cases.append(Case(function, graphs, breaks, make, since))
            return function

        return add

    @property
    def names(self) -> list[str]:
        """Test ids."""
        return [case.function.__name__ for case in self.cases]


@dataclass(frozen=True)
class Outcome:
    """All that can be seen of a call."""

    result: Any
    error: tuple[Any, ...] | None
    printed: str
    arguments: Any
    world: Any


def told(error: BaseException | None, first: int = 0) -> tuple[Any, ...] | None:
    """An exception with all that its printed text says: places it passed, causes and contexts."""
    if error is None:
        return None
    passed = [
        (place.filename, place.name, place.lineno, place.colno, place.end_colno)
        for place in traceback.extract_tb(error.__traceback__)[first:]
    ]
    before = (told(error.__cause__), told(error.__context__), error.__suppress_context__)
    return (type(error), str(error), passed, *before)


def observe(call: Callable[..., Any], function: Any, arguments: tuple[Any, ...]) -> Outcome:
    """Run a call and note what can be seen of it. `function.world`, where set, is a dictionary
    that the function changes."""
    printed, result, error = io.StringIO(), None, None
    torch.default_generator.manual_seed(0)  # (torch.manual_seed notes its stack for a GPU to come)
    with contextlib.redirect_stdout(printed):
        try:
            result = call(*arguments)
        except Exception as raised:
            if "dovetail" in type(raised).__module__:
                raise
            error = told(raised, 1)
    world = copy.deepcopy(getattr(function, "world", None))
    return Outcome(result, error, printed.getvalue(), arguments, world)


def run_case(case: Case) -> None:
    """Eager equals captured, over two calls on the same arguments; graphs and breaks as told."""
    function = case.function
    world = getattr(function, "world", None)
    before = copy.deepcopy(world)
    arguments = case.make()
    expected = [observe(function, function, arguments) for _ in range(2)]
    _put_back(world, before)
    backend = CountingBackend()
    captured = optimize(function, backend)
    arguments = case.make()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="(?s).*Please report this.*")
        seen = [observe(captured, function, arguments) for _ in range(2)]
    _put_back(world, before)
    log = captured.capture_context.log
    for wanted, got in zip(expected, seen, strict=True):
        assert same(wanted, got), f"expected {wanted}\ngot {got}\n{log.as_text()}"
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert case.graphs is None or len(backend.graphs) == case.graphs, log.as_text()
    assert case.breaks is None or len(log.breaks) == case.breaks, log.as_text()


def _put_back(world: dict[str, Any] | None, before: dict[str, Any] | None) -> None:
    if world is not None and before is not None:
        world.clear()
        world.update(copy.deepcopy(before))


_BY_VALUE = (
    bool, int, str, bytes, complex, type(None), range, slice, torch.dtype, torch.device,
    torch.layout, torch.memory_format, enum.Enum, type, types.ModuleType,
    types.BuiltinFunctionType, torch.Generator,
)  # fmt: skip


def same(left: Any, right: Any) -> bool:
    """Equal in type and content; tensors bit for bit."""
    return _same(left, right, {})


def _same(left: Any, right: Any, seen: dict[tuple[int, int], tuple[Any, Any]]) -> bool:
    if type(left) is not type(right):
        # Classes made anew by each call are equal in name.
        names = [f"{type(v).__module__}.{type(v).__qualname__}" for v in (left, right)]
        if names[0] != names[1]:
            return False
    if left is right or (id(left), id(right)) in seen:
        return True
    seen[id(left), id(right)] = (left, right)
    if isinstance(left, torch.Tensor) and left.layout is not torch.strided:
        return left.layout == right.layout and _same(left.to_dense(), right.to_dense(), seen)
    if isinstance(left, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.stride() == right.stride()
            and left.requires_grad == right.requires_grad
            and torch.allclose(left, right, rtol=0, atol=0, equal_nan=left.is_floating_point())
        )
    if isinstance(left, torch.nn.Module):
        plain = [
            {
                k: v
                for k, v in vars(m).items()
                if isinstance(v, (int, float, str, list, torch.Tensor))
            }
            for m in (left, right)
        ]
        states = [dict(m.state_dict()) for m in (left, right)]
        for parts in plain:
            parts.pop("_flat_weight_refs", None)
            parts.pop("_flat_weights", None)
        return _same(states[0], states[1], seen) and _same(plain[0], plain[1], seen)
    if isinstance(left, functools.partial):
        parts = [(p.func, p.args, p.keywords) for p in (left, right)]
        return _same(parts[0], parts[1], seen)
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, type):
        return left.__qualname__ == right.__qualname__
    if isinstance(left, _BY_VALUE):
        return bool(left == right)
    if isinstance(left, BaseException):
        return _same((left.args, vars(left)), (right.args, vars(right)), seen)
    if isinstance(left, dict):
        ours, theirs = list(dict.items(left)), list(dict.items(right))
        if isinstance(left, collections.OrderedDict):
            ours, theirs = list(left.items()), list(right.items())
        if not _same(ours, theirs, seen):
            return False
    elif isinstance(left, (list, tuple, collections.deque)):
        if len(left) != len(right):
            return False
        if not all(_same(a, b, seen) for a, b in zip(left, right, strict=True)):
            return False
    elif isinstance(left, (set, frozenset)):
        if left != right:
            return False
    elif isinstance(left, types.FunctionType):
        cells = [[c.cell_contents for c in f.__closure__ or ()] for f in (left, right)]
        parts = [(f.__name__, f.__defaults__, f.__kwdefaults__, vars(f)) for f in (left, right)]
        return left.__code__ == right.__code__ and _same(
            (cells[0], parts[0]), (cells[1], parts[1]), seen
        )
    elif isinstance(left, types.MethodType):
        return _same((left.__func__, left.__self__), (right.__func__, right.__self__), seen)
    elif type(left).__module__ == "numpy":
        if not hasattr(left, "shape"):
            return bool(left == right)
        if left.dtype != right.dtype or left.shape != right.shape or left.dtype.kind in "OU":
            return repr(left) == repr(right)
        # NumPy and torch round differently.
        tensors = [torch.tensor(part.tolist(), dtype=torch.float64) for part in (left, right)]
        return torch.allclose(tensors[0], tensors[1], rtol=1e-6, atol=1e-9, equal_nan=True)
    elif dataclasses.is_dataclass(left) or hasattr(left, "__dict__"):
        pass
    elif hasattr(type(left), "__next__"):
        return operator.length_hint(left) == operator.length_hint(right)
    elif not getattr(type(left), "__slots__", None):
        return bool(left == right) or repr(left) == repr(right)
    names = [n for cls in type(left).__mro__ for n in _slots(cls)]
    missing = object()
    for name in names:
        if not _same(getattr(left, name, missing), getattr(right, name, missing), seen):
            return False
    return _same(getattr(left, "__dict__", None), getattr(right, "__dict__", None), seen)


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return [n for n in names if n not in ("__dict__", "__weakref__") and not n.startswith("__")]
