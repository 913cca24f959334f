"""Calls of operators over dtypes: every pair of operands' dtypes, every dtype of a sample."""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims import FakeMemo, FakeMode, from_real
from dovetail_prims.fake_tensor import DataDependentError, FakeTensorError
from sweep_operators import operators
from torch import Tensor
from torch.utils import _pytree as pytree

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
          torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)  # fmt: skip
NUMBERS = (True, 2, 2.5, 2 + 1j)
MASK = torch.tensor([True, False, True])
Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A function with its operands, tensors of three elements or of none dimensions, or numbers."""

    name: str
    function: Function
    operands: tuple[Any, ...]

    def run(self, change: Function = lambda x: x.clone()) -> Any:
        """What it gives, or the exception that it raises, for copies of its operands."""
        given = [change(x) if isinstance(x, Tensor) else x for x in self.operands]
        try:
            return self.function(*given)
        except Exception as error:
            return error

    def __str__(self) -> str:
        kinds = (f"{x.dtype}{list(x.shape)}" if isinstance(x, Tensor) else x for x in self.operands)
        return f"{self.name}({', '.join(str(k).removeprefix('torch.') for k in kinds)})"


def functions() -> dict[str, tuple[int, Function]]:
    """Of each function of one or two operands: how many, and what to call; `_`: in place."""
    known = operators()
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

    found: dict[str, tuple[int, Function]] = {}
    for name, info in known.items():
        if isinstance(info, (BinaryUfuncInfo, UnaryUfuncInfo)):
            count = 2 if isinstance(info, BinaryUfuncInfo) else 1
            found[name] = count, info.get_op()
            if info.get_inplace() is not None:
                found[f"{name}_"] = count, info.get_inplace()
    return found | {name: (2, function) for name, function in _OTHERS.items()}


_OTHERS: dict[str, Function] = {
    "where": lambda a, b: torch.where(MASK, a, b),
    "clamp by a bound": lambda a, b: torch.clamp(a, min=b),
    "div, truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div, floored": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div, floored_": lambda a, b: a.div_(b, rounding_mode="floor"),
    "add of twice": lambda a, b: torch.add(a, b, alpha=2),
    "sub of 2.5 times": lambda a, b: torch.sub(a, b, alpha=2.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
    "addcmul_": lambda a, b: a.addcmul_(a, b),
    "masked_fill": lambda a, b: a.masked_fill(MASK, b),
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "**": lambda a, b: a**b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "-": lambda a, b: a - b,
}


def _tensor(dtype: torch.dtype, shaped: bool) -> Tensor:
    return (torch.arange(1, 4) if shaped else torch.tensor(2)).to(dtype)


def _pairs() -> Iterator[tuple[Any, Any]]:
    for a, b in itertools.product(DTYPES, DTYPES):
        for shapes in ((True, True), (True, False), (False, True), (False, False)):
            yield _tensor(a, shapes[0]), _tensor(b, shapes[1])
    for dtype, number in itertools.product(DTYPES, NUMBERS):
        yield _tensor(dtype, True), number
        yield _tensor(dtype, False), number
        yield number, _tensor(dtype, True)


def calls(name: str, count: int, function: Function) -> list[Call]:
    """A function over all its pairs of operands (one written to is no smaller than the other)."""
    if count == 1:
        shaped = itertools.product(DTYPES, (True, False))
        return [Call(name, function, (_tensor(*each),)) for each in shaped]
    found = []
    for a, b in _pairs():
        in_place = name.endswith("_") and not name.startswith("_")
        if in_place and (
            not isinstance(a, Tensor) or (isinstance(b, Tensor) and b.dim() > a.dim())
        ):
            continue
        found.append(Call(name, function, (a, b)))
    return found


def differs(eager: Tensor, ours: Any) -> str | None:
    """What differs of the results, None if nothing."""
    if not isinstance(ours, Tensor):
        return f"eager gives {eager.dtype}, ours {ours!r}"
    if (eager.dtype, eager.shape) != (ours.dtype, ours.shape):
        return f"eager {eager.dtype}{list(eager.shape)}, ours {ours.dtype}{list(ours.shape)}"
    if eager.dtype.is_complex:
        eager, ours = eager.to(torch.complex128), ours.to(torch.complex128)
    elif not eager.dtype.is_floating_point:
        return None if torch.equal(eager, ours) else f"eager {eager.tolist()}, ours {ours.tolist()}"
    near = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(eager.dtype, 1e-5)
    close = torch.allclose(eager, ours, rtol=near, atol=near / 10, equal_nan=True)
    return None if close else f"eager {eager.tolist()}, ours {ours.tolist()}"


# --- the database's samples in other dtypes -------------------------------------------------------


def converted(
    name: str, info: Any, dtype: torch.dtype, seed: int
) -> Iterator[tuple[str, Function, Any]]:
    """(form, function, sample): a sample of an operator, its tensors of another dtype."""
    made = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
    torch.manual_seed(seed)
    samples = list(itertools.islice(info.sample_inputs("cpu", made), 60))
    random.Random(zlib.crc32(f"{name} {seed}".encode())).shuffle(samples)
    full = [s for s in samples if all(t.numel() for t in _tensors((s.input, s.args)))]
    for sample in (full or samples)[:1]:
        changed = sample.transform(lambda v: _converted(v, made, dtype))
        yield "function", info.get_op(), changed
        shapes = {t.shape for t in _tensors((sample.input, sample.args, sample.kwargs))}
        alike = isinstance(sample.input, Tensor) and len(shapes) == 1
        if info.get_inplace() is not None and alike:
            yield "in place", info.get_inplace(), changed


def _tensors(values: Any) -> Sequence[Tensor]:
    return [v for v in pytree.tree_leaves(values) if isinstance(v, Tensor)]


def _converted(value: Any, made: torch.dtype, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return (value.to(dtype) if value.dtype is made else value).detach()
    return dtype if value is made else value


def raised(function: Function, sample: Any, change: Function) -> type[Exception] | None:
    """The class of what a call raises; None if nothing."""
    memo = FakeMemo()
    torch.manual_seed(1)
    try:
        given = sample.transform(lambda v: change(v, memo) if isinstance(v, Tensor) else v)
        with torch.no_grad():
            function(given.input, *given.args, **given.kwargs)
    except Exception as error:
        return type(error)
    return None


def disagreement(function: Function, sample: Any) -> str | None:
    """How eager and fakes differ in what they raise; None if they do not, or only data tells."""
    eager = raised(function, sample, lambda t, memo: t.clone())
    with FakeMode():
        ours = raised(function, sample, lambda t, memo: from_real(t.clone(), memo=memo))
    unknown = ours is not None and issubclass(ours, (DataDependentError, FakeTensorError))
    if eager is ours or unknown:
        return None
    return f"eager {eager and eager.__name__}, ours {ours and ours.__name__}"
