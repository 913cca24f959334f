"""Checks of tensors' data: the graph goes on behind them, and what fails is raised as in Python.

PYTEST_DONT_REWRITE: pytest would put code of its own into the assertions of the programs.
"""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from construct_cases import CountingBackend
from dovetail_capture import explain, optimize
from torch import Tensor, nn

GOOD, BAD = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, -2.0, 3.0])


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result, or the exception's type and text; and what follows from the generator."""
    torch.manual_seed(7)
    try:
        result: Any = function(*args, **kwargs)
    except Exception as error:
        result = (type(error).__name__, str(error))
    return result, torch.rand(2)


def same(found: Any, wanted: Any) -> None:
    """Are two outcomes alike?"""
    if isinstance(wanted, tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, (Tensor, np.ndarray, float)):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    else:
        assert found == wanted, (found, wanted)


class NotPositive(ValueError):
    """An exception of the program's, with a text of its own."""

    def __init__(self, value: Tensor) -> None:
        super().__init__(f"{int((value <= 0).sum())} of {tuple(value.shape)} are not positive")
        self.value = value


def raises(x: Tensor) -> Tensor:
    if (x <= 0).any():
        raise NotPositive(x)
    return x.log()


def asserts(x: Tensor) -> Tensor:
    assert torch.isfinite(x.log()).all(), f"not finite: {x.tolist()}"
    return x.log()


def asserts_all_ways(x: Tensor) -> Tensor:
    assert bool((x > 0).all())
    assert (x > -1).all().item() and not (x > 9).any()
    assert not torch.equal(x, x + 1)
    assert torch.allclose(x, x * 1.0)
    torch._assert((x > 0).sum() > 0, "none")
    torch._check_tensor_all(x < 9, "too large")
    return x + 1


def through_functions(x: Tensor) -> Tensor:
    def is_good(y: Tensor) -> bool:
        return bool((y > 0).all())

    def check(y: Tensor) -> None:
        good = is_good(y)
        if not good:
            text = f"bad: {y.min():.1f}"
            raise ValueError(text) from KeyError("cause")

    check(x)
    return x * 2


def inside_of_blocks(x: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.outer(x) @ x.outer(x)
        if (x < 0).any():
            raise ValueError(f"{y.dtype}, {torch.is_grad_enabled()}")
    return x * 3


def in_a_loop(x: Tensor) -> Tensor:
    for i in range(3):
        x = x * 2 - 1
        if x.min() < 0:
            raise ValueError(f"after {i}: {x.min().item()}")
    return x


def written_to_later(x: Tensor) -> Tensor:
    good = (x > 0).all()
    if not good:
        raise ValueError("bad")
    good.fill_(False)
    return torch.where(good, x, -x)


def with_managers(x: Tensor) -> Tensor:
    @contextlib.contextmanager
    def checked(y: Tensor) -> Iterator[Tensor]:
        bad = not (y > 0).all()
        if bad:
            raise ValueError(f"{y[~(y > 0)].tolist()}")
        yield y * 2

    with checked(x) as y:
        z = torch.empty(3)
        torch.add(y, 1, out=z)
        assert (z > 0).all()
    return z


def draws(x: Tensor) -> Tensor:
    noise = torch.rand(3)
    if (x + noise < 0).any():
        raise ValueError(f"with {noise.tolist()}")
    return x + noise + torch.randn(3)


def of_an_array(x: Tensor) -> Any:
    a = x.numpy()
    if np.any(a < 0):
        raise ValueError(f"{a.min()}")
    return a * 2


def places(x: Tensor) -> Tensor:
    """What is checked is what makes the rest possible."""
    index = x.long() + 1
    if (index < 0).any() or (index > 4).any():
        raise IndexError(f"{index.tolist()} is out of range")
    return torch.arange(5.0)[index]


PROGRAMS = [
    raises, asserts, asserts_all_ways, through_functions, inside_of_blocks, in_a_loop,
    written_to_later, with_managers, draws, of_an_array, places,
]  # fmt: skip


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_python(program: Callable[[Tensor], Any], fullgraph: bool) -> None:
    backend = CountingBackend()
    compiled = optimize(program, backend, fullgraph=fullgraph)
    for x in (GOOD, BAD, GOOD, BAD - 9):
        same(outcome(compiled, x), outcome(program, x))
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert len(backend.graphs) == 1


def test_the_exception_is_the_programs_object() -> None:
    compiled = optimize(raises, CountingBackend(), fullgraph=True)
    with pytest.raises(NotPositive) as found:
        compiled(BAD)
    assert found.value.value is BAD
    names = [entry.frame.code.name for entry in found.traceback]
    assert names.count("raises") == 1
    with pytest.raises(ValueError, match="bad") as caused:
        optimize(through_functions, CountingBackend())(BAD)
    assert isinstance(caused.value.__cause__, KeyError)


def test_explained() -> None:
    explanation = explain(raises)(GOOD)
    (check,) = explanation.checks
    assert "if (x <= 0).any():" in check
    assert f"check 0: {check}" in explanation.as_text()
    assert not explanation.breaks


def test_gradients() -> None:
    compiled = optimize(raises, CountingBackend(), fullgraph=True)
    x = GOOD.clone().requires_grad_()
    same(torch.autograd.grad(compiled(x).sum(), x), (1 / GOOD,))


# --- nothing is left half changed -----------------------------------------------------------------


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.calls = 0
        self.log: list[Any] = []

    def forward(self, x: Tensor, *rest: Tensor, scale: float = 2.0, **more: Any) -> Tensor:
        self.calls += 1
        self.log.append(x.shape)
        self.seen = self.seen + x
        if (x <= 0).any():
            raise ValueError(f"call {self.calls}")
        self.log.append(self.calls)
        print("checked", self.calls)
        self.seen = self.seen * scale + sum(rest) + more.get("last", 0)
        return self.seen - 1


def test_effects_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    module = Counting()
    plain = copy.deepcopy(module)
    compiled = optimize(module, CountingBackend())
    for x in (GOOD, BAD, BAD, GOOD):
        found = outcome(compiled, x, x, x, scale=3.0, last=4)
        text = capsys.readouterr().out
        same(found, outcome(plain, x, x, x, scale=3.0, last=4))
        assert text == capsys.readouterr().out
        assert module.log == plain.log
        assert module.calls == plain.calls
        same(module.seen, plain.seen)


TOTAL = 0


def test_globals_cells_and_arguments() -> None:
    count = 0

    def program(x: Tensor, seen: dict[str, Any], /, *, into: list[Any]) -> Tensor:
        global TOTAL
        nonlocal count
        TOTAL, count = TOTAL + 1, count + 1
        seen["before"] = x
        into.append(count)
        if (x <= 0).any():
            raise ValueError(f"{TOTAL} {count}")
        seen["after"] = count
        return x * count

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    for number, x in enumerate((GOOD, BAD, GOOD), 1):
        seen: dict[str, Any] = {}
        into: list[Any] = []
        result, _ = outcome(compiled, x, seen, into=into)
        assert (TOTAL, count, into) == (number, number, [number])
        assert seen["before"] is x
        if x is BAD:
            assert result == ("ValueError", f"{number} {number}")
            assert "after" not in seen
        else:
            same(result, x * number)
            assert seen["after"] == number


def writes_before(x: Tensor, y: Tensor) -> Tensor:
    y.add_(1)
    if (x < 0).any():
        raise ValueError("bad")
    return x * y


def writes_after(x: Tensor, y: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("bad")
    y[1:] *= 2
    return x * y


def writes_statistics(x: Tensor, y: Tensor) -> Tensor:
    z = nn.functional.batch_norm(x[None].expand(4, 3) * torch.arange(4.0)[:, None], y, y.exp(),
                                 training=True)  # fmt: skip
    if (x < 0).any():
        raise ValueError("bad")
    return z


@pytest.mark.parametrize("program", [writes_before, writes_after, writes_statistics])
@pytest.mark.parametrize("large", [False, True])
def test_what_is_written_to_is_put_back_or_breaks_the_graph(
    program: Callable[..., Tensor], large: bool
) -> None:
    def argument() -> Tensor:
        return torch.ones(1 << 20)[:3] if large else torch.ones(3)

    explanation = explain(program)(GOOD, argument())
    assert len(explanation.breaks) == large
    assert bool(explanation.checks) != large
    compiled = optimize(program, CountingBackend())
    for x in (GOOD, BAD, GOOD):
        ours, plain = argument(), argument()
        same(outcome(compiled, x, ours), outcome(program, x, plain))
        same(ours, plain)


def test_numbers_of_pythons_are_not_drawn_twice() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * random.random()
        if (x < 0).any():
            raise ValueError("bad")
        return y

    compiled = optimize(program, CountingBackend())
    for x in (GOOD, BAD, GOOD):
        random.seed(3)
        found = (outcome(compiled, x), random.random())
        random.seed(3)
        same(found, (outcome(program, x), random.random()))


# --- around ---------------------------------------------------------------------------------------


def test_behind_a_break_and_inside_of_a_block() -> None:
    seen: list[Any] = []

    class Block:
        def __enter__(self) -> None:
            seen.append("in")

        def __exit__(self, *error: Any) -> None:
            seen.append(("out", error[0]))

    def program(x: Tensor) -> Tensor:
        y = x * 2
        with Block():
            seen.append(float(y.sum()))
            if (y < 0).any():
                raise ValueError(f"{y.tolist()}")
            y = y + 1
        return y * 3

    compiled = optimize(program, CountingBackend())
    for x in (GOOD, BAD, GOOD):
        found = outcome(compiled, x)
        ours, seen[:] = list(seen), []
        same(found, outcome(program, x))
        assert ours == seen
        seen.clear()


def test_before_a_break() -> None:
    def program(x: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("bad")
        y = x * 2
        if float(y.sum()) > 5:
            y = y + 1
        return y * 3

    compiled = optimize(program, CountingBackend())
    for x in (GOOD, BAD, GOOD * 0):
        same(outcome(compiled, x), outcome(program, x))


def handles(x: Tensor) -> Tensor:
    try:
        if (x < 0).any():
            raise ValueError("bad")
    except ValueError:
        return x.abs()
    return x + 1


def other_uses(x: Tensor) -> Any:
    good = bool((x > 0).all())
    if good:
        x = x + 1
    bad = not (x > 5).any()
    return x * 2, good, bad, int((x > 0).all())


@pytest.mark.parametrize("program", [handles, other_uses])
def test_what_goes_on_breaks_the_graph(program: Callable[..., Any]) -> None:
    compiled = optimize(program, CountingBackend())
    for x in (GOOD, BAD, GOOD):
        same(outcome(compiled, x), outcome(program, x))
    assert explain(program)(GOOD).breaks


def test_inside_of_a_transformed_function() -> None:
    def inner(row: Tensor) -> Tensor:
        if (row < 0).any():
            raise ValueError("bad")
        return row * 2

    def program(x: Tensor) -> Tensor:
        checked: Tensor = torch.func.functional_call(nn.Identity(), {}, (inner(x),))
        return torch.vmap(lambda row: row * 2)(checked)

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    for x in (GOOD, BAD):
        same(outcome(compiled, x), outcome(program, x))
    # (Eager refuses to ask a row of a batch; so does what is compiled.)
    found = [
        outcome(f, GOOD)
        for f in (torch.vmap(inner), optimize(torch.vmap(inner), CountingBackend()))
    ]
    assert found[0][0][0] == found[1][0][0] == "RuntimeError"


def test_a_graph_that_raises_is_told_of_only_where_the_program_does_not() -> None:
    def failing(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise RuntimeError("of the graph")

        return run

    compiled = optimize(raises, failing, fullgraph=True)
    with pytest.raises(NotPositive):
        compiled(BAD)
    with pytest.warns(RuntimeWarning, match="of the graph"):
        same(compiled(GOOD), GOOD.log())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(optimize(raises, CountingBackend())(GOOD), GOOD.log())


def test_checks_beside_random_numbers_and_tensors_without_data() -> None:
    def drawn_after_a_check(x: Tensor, shape: Tensor) -> Tensor:
        if (x < 0).any():
            raise ValueError("negative")
        return x * torch.rand(3) + shape.new_zeros(3, device="cpu")

    compiled = optimize(drawn_after_a_check, CountingBackend(), fullgraph=True)
    shape = torch.empty(3, device="meta")
    for x in (GOOD, BAD):
        same(outcome(compiled, x, shape), outcome(drawn_after_a_check, x, shape))


def test_what_only_looks_like_a_write_is_none() -> None:
    """`operator.and_` ends as functions do that write."""

    def both(first: Tensor, second: Tensor) -> Tensor:
        assert first.any()
        return first & second | first

    compiled = optimize(both, CountingBackend(), fullgraph=True)
    first, second = torch.tensor([True, False]), torch.tensor([True, True])
    assert torch.equal(compiled(first, second), both(first, second))
    guards = compiled.capture_context.explain_guards()
    assert "storage" not in guards


def one_of_two(a: Tensor, b: Tensor) -> Tensor:
    assert a.all() or b.all()
    return a + b


def one_of_three(a: Tensor, b: Tensor) -> Tensor:
    if not (a.all() or (b > a).any() or b.sum() == 4):
        raise ValueError(f"no {a.shape}")
    return a + b


def none_of_both(a: Tensor, b: Tensor, told: bool = False) -> Tensor:
    assert not a.any() or told or not b.any(), "both"
    rising = a[1:] >= a[:-1]
    assert rising.all() or (~rising).all()
    return a + b


def in_a_callee(a: Tensor, b: Tensor) -> Tensor:
    return one_of_two(a, b) * one_of_three(b, a)


def in_a_callee_that_only_checks(a: Tensor, b: Tensor) -> Tensor:
    def check(name: str, a: Tensor) -> None:
        assert a.all() or (~(a > 1)).all() or b.any(), f"{name} is wrong"

    check("a", a)
    return a - b


def with_a_truth(a: Tensor, b: Tensor, told: bool = True) -> Tensor:
    assert a.all() or told
    return a * b


def that_changes_something(a: Tensor, b: Tensor) -> tuple[Tensor, list[int], Tensor]:
    noted: list[int] = []
    rest = iter([1, 0, 1])
    assert a.all() or noted.append(1) is None
    assert a.all() or next(rest)
    assert a.all() or b.add_(1).all()
    assert a.all() or torch.rand(2).sum() >= 0
    assert a.all() or noted.append(len(list(rest))) is None
    return a + b, noted, torch.rand(1)


def that_may_fail(a: Tensor, b: Tensor) -> Tensor:
    assert a.all() or b.absent  # type: ignore[attr-defined]
    return a + b


def in_a_loop_that_asks(a: Tensor, b: Tensor) -> Tensor:
    while not (a.all() or b.all()):
        a = a + 1
    return a + b


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "program",
    [one_of_two, one_of_three, none_of_both, in_a_callee, in_a_callee_that_only_checks,
     with_a_truth, that_changes_something, that_may_fail, in_a_loop_that_asks],
)  # fmt: skip
def test_one_of_several_conditions(program: Callable[..., Any], whole: bool) -> None:
    broken = program in (that_changes_something, that_may_fail, in_a_loop_that_asks)
    if whole and broken:
        return
    backend = CountingBackend()
    compiled = optimize(program, backend, fullgraph=whole)
    values = (torch.zeros(4), torch.ones(4), torch.arange(4.0), -torch.arange(4.0))
    for first in values:
        for second in values:
            seen = []
            for call in (program, compiled):
                torch.manual_seed(0)
                given = first.clone(), second.clone()
                try:
                    found = call(*given)
                except (AssertionError, ValueError, AttributeError) as error:
                    found = type(error), str(error)
                seen.append(str((found, given)))
            assert seen[0] == seen[1], (first, second)
    assert len(backend.graphs) == 1 or broken
