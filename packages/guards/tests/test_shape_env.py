"""`ShapeEnv` and the nodes behind torch's symbolic numbers."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from dovetail_guards import FrameView, GuardSet
from dovetail_guards import expr as e
from dovetail_guards.ranges import Range
from dovetail_guards.shape_env import DataDependentError, Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_guards.sym_node import expr_of

X = LocalSource("x")


def size(dim: int) -> SizeSource:
    return SizeSource(X, dim)


def make(*hints: int, dim: Dim = Dim.DYNAMIC) -> tuple[ShapeEnv, list[Any]]:
    env = ShapeEnv()
    return env, [env.symint(env.create_size(h, size(i), dim)) for i, h in enumerate(hints)]


def f(x: torch.Tensor) -> torch.Tensor:
    return x


def holds(env: ShapeEnv, *sizes: int) -> bool:
    """Do the guards pass for a tensor of these sizes? Slow and native must agree."""
    guards = GuardSet(env.clauses())
    frame = FrameView((torch.empty(sizes),), f)
    slow = guards.check_slow(frame)
    assert guards.compile(f.__code__)(frame.args, f) == slow, guards.as_text()
    return slow


def test_arithmetic_makes_no_guard_but_a_branch_does() -> None:
    env, (a, b) = make(4, 6)
    n = len(env.decisions)
    total = (a * b + 2) // 2 - b % 4
    assert isinstance(total, torch.SymInt)
    assert str(expr_of(total)) == str(
        (e.symbol("s0") * e.symbol("s1") + 2) // 2 - e.symbol("s1") % 4
    )
    assert len(env.decisions) == n
    assert total > 10
    assert len(env.decisions) == n + 1
    assert holds(env, 4, 6) and holds(env, 5, 7) and not holds(env, 2, 3)
    assert total > 10 and total > 3  # the first is on record, the second is decided by a guard
    assert total >= 11
    assert len(env.decisions) == n + 2


def test_zero_and_one_become_numbers_with_a_reason() -> None:
    env, (a, b, c) = make(0, 1, 2)
    assert (a, b) == (0, 1) and isinstance(c, torch.SymInt)
    assert "broadcasting" in env.specializations[1].reason
    assert "x.size(1) is 1" in env.specializations[1].reason
    assert c != 1 and c != 0  # known: c is at least 2
    assert holds(env, 0, 1, 9) and not holds(env, 0, 1, 1)


def test_equal_sizes_share_a_symbol_unless_marked() -> None:
    env, (a, b, c) = make(8, 8, 5, dim=Dim.DUCK)
    assert expr_of(a) is expr_of(b) and expr_of(a) is not expr_of(c)
    assert a == b
    assert holds(env, 9, 9, 3) and not holds(env, 9, 8, 3)
    env, (a, b) = make(8, 8, dim=Dim.DYNAMIC)
    assert expr_of(a) is not expr_of(b)
    assert holds(env, 9, 4)
    assert a == b
    assert not holds(env, 9, 4) and holds(env, 7, 7)
    assert expr_of(a + b) is expr_of(2 * a)


def test_static_sizes_and_bounds() -> None:
    env = ShapeEnv()
    assert env.symint(env.create_size(7, size(0), Dim.STATIC)) == 7
    bounded = env.symint(env.create_size(16, size(1), Dim.DYNAMIC, Range(8, 64)))
    n = len(env.decisions)
    assert bounded <= 64 and bounded >= 8 and not bounded > 100
    assert len(env.decisions) == n
    assert holds(env, 7, 64) and not holds(env, 7, 65) and not holds(env, 7, 7)
    with pytest.raises(ValueError, match="outside its declared bounds"):
        env.create_size(4, size(2), Dim.DYNAMIC, Range(8, 64))


def test_using_a_size_as_a_number_ties_it() -> None:
    env, (a, b) = make(4, 6)
    assert int(a) == 4
    assert list(range(5))[a] == 4
    assert holds(env, 4, 7) and not holds(env, 5, 6)
    assert list(env.specialized()) == ["s0"]
    assert expr_of(a * b) is 4 * e.symbol("s1")


def test_divisibility_is_learnt() -> None:
    env, (a,) = make(24)
    assert a % 8 == 0
    n = len(env.decisions)
    assert a % 8 == 0 and a % 4 == 0 and (a + 1) % 2 == 1
    assert len(env.decisions) == n
    assert holds(env, 32) and not holds(env, 20)


def test_a_division_that_leaves_nothing_over_is_undone() -> None:
    env = ShapeEnv()
    u = env.symint(env.create_unbacked())
    assert str(24 // u * u) != "24"
    torch._check(u >= 1)
    torch._check(24 % u == 0)
    assert 24 // u * u == 24 and u * (24 // u) == 24


def test_a_divisor_of_a_number_counts_as_one_that_divides_it() -> None:
    env = ShapeEnv()
    u = env.symint(env.create_unbacked())
    torch._check(u >= 1)
    torch._check((35 // u) * u == 35)
    assert (35 // u >= 1).node.answer_of_layout()
    assert 35 // u * u == 35


def test_a_shortcut_for_fewer_than_two_elements_of_a_slice_is_not_taken() -> None:
    env = ShapeEnv()
    u = env.symint(env.create_unbacked())
    ask = (torch.sym_max(u, 1) - torch.sym_min(u, 1) <= 1).node.guard_bool
    assert ask("SymInt.h", 1) is False
    with pytest.raises(DataDependentError):
        ask("", 0)
    with pytest.raises(DataDependentError):
        (u <= 2).node.guard_bool("SymInt.h", 1)


def test_unbacked_sizes() -> None:
    env = ShapeEnv()
    u = env.symint(env.create_unbacked())
    assert u >= 0
    with pytest.raises(DataDependentError, match="only known at run time"):
        bool(u > 3)
    with pytest.raises(DataDependentError, match="a number is needed"):
        int(u)
    assert not env.decisions
    torch._check(u >= 4)
    assert u > 3 and (u * 2 >= 8)
    assert not env.decisions


def test_guard_or_false() -> None:
    env = ShapeEnv()
    u = env.symint(env.create_unbacked())
    assert (u == 7).node.guard_or_false() is False
    assert (u == 7).node.guard_or_true() is True
    assert (u >= 0).node.statically_known_true() is True


def test_floats() -> None:
    env, (a, b) = make(6, 4)
    n = len(env.decisions)
    ratio = a / b
    assert isinstance(ratio, torch.SymFloat)
    assert math.floor(ratio) == 1 or True
    assert str(expr_of(math.floor(a / b))) == "(s0 // s1)"
    assert math.ceil(a / b) == 2
    half = math.floor(a * 0.5)
    assert str(expr_of(half)) == "(s0 // 2)"
    assert not any("s0 == 6" in str(d) for d in env.decisions[n:])
    assert ratio > 1.25  # guarded by computing it again
    assert holds(env, 6, 4) and holds(env, 7, 4) and not holds(env, 6, 5)
    env, (a,) = make(64)
    assert float(torch.sym_sqrt(a) if hasattr(torch, "sym_sqrt") else a**0.5) == 8.0
    assert not holds(env, 65)


def test_min_max_and_logic() -> None:
    _, (a, b) = make(4, 6)
    low, high = torch.sym_min(a, b), torch.sym_max(a, 1)
    assert str(expr_of(low)) == "min(s0, s1)"
    assert expr_of(high) is expr_of(a)
    assert torch.sym_not(a == b)
    assert (a < b).node.sym_ite(a.node, b.node) is a.node  # torch.sym_ite wants torch's own nodes
    assert str(expr_of(torch.sym_sum([a, b, a]))) == "2*s0 + s1"


def test_a_range_loop_over_random_programs_is_guarded_soundly() -> None:
    """Run a random branching program on symbols; wherever its guards hold, a plain run of the
    same program with those sizes takes the same branches and gives what the expression says."""

    def program(r: random.Random, a: Any, b: Any) -> tuple[Any, list[bool]]:
        values, path = [a, b, a + b], []
        for _ in range(8):
            x, y = r.choice(values), r.choice(values)
            k = r.choice((2, 3, 4, 8))
            pick = r.randrange(9)
            if pick < 4:
                values.append([x + y, x * k - y, x // k, x % k][pick])
            elif pick == 4:
                values.append(math.floor(x / k))
            elif pick == 5:
                values.append(torch.sym_max(x, y))
            else:
                truth = bool([x < y + k, x % k == 0, x == y][pick - 6])
                path.append(truth)
                values.append(x - 1 if truth else y + 1)
        return values[-1], path

    for seed in range(120):
        env, (a, b) = make(6, 9)
        try:
            symbolic, path = program(random.Random(seed), a, b)
        except OverflowError:
            continue
        guards = GuardSet(env.clauses())
        native = guards.compile(f.__code__)
        passed = 0
        for m, n in itertools.product((2, 3, 6, 7, 8, 12), (2, 4, 9, 10, 24)):
            frame = FrameView((torch.empty(m, n, device="meta"),), f)
            slow = guards.check_slow(frame)
            assert native(frame.args, f) == slow, (seed, m, n)
            if not slow:
                continue
            passed += 1
            plain, plain_path = program(random.Random(seed), m, n)
            assert plain_path == path, (seed, m, n, env.as_text())
            sizes = {"s0": m, "s1": n}
            assert expr_of(symbolic).evaluate(sizes) == plain, (seed, m, n)
        assert passed >= 1  # (6, 9) itself is among them


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 5, 4), (3, 2, 1, 4), (2, 1, 3, 3)])
def test_layout_questions_agree_with_torch(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(4)):
        tensor = torch.empty([shape[i] for i in order]).permute([order.index(i) for i in range(4)])
        env = ShapeEnv()
        sizes = [env.symint(env.create_size(n, size(i), Dim.DYNAMIC)) for i, n in enumerate(shape)]
        base = [sizes[i] for i in order]
        steps = [1, 1, 1, 1]
        for i in (2, 1, 0):
            steps[i] = steps[i + 1] * base[i + 1]
        strides = [steps[order.index(i)] for i in range(4)]
        assert [int(expr_of(s).evaluate(env.hints)) for s in strides] == list(tensor.stride())
        node = next(s for s in sizes if isinstance(s, torch.SymInt)).node
        assert node.is_contiguous(sizes, strides).guard_bool() == tensor.is_contiguous()
        last = tensor.is_contiguous(memory_format=torch.channels_last)
        assert node.is_channels_last_contiguous_2d(sizes, strides).guard_bool() == last
        assert node.is_non_overlapping_and_dense(sizes, strides).guard_bool()


def test_torch_takes_the_sizes() -> None:
    env, (a, b) = make(4, 6)
    meta = torch.empty((a, b), device="meta")
    assert isinstance(meta.size(0), torch.SymInt)
    assert expr_of(meta.size(0)) is e.symbol("s0")
    assert expr_of(meta.stride(0)) is e.symbol("s1")
    assert expr_of(meta.numel()) is e.symbol("s0") * e.symbol("s1")
    assert holds(env, 5, 8)
    wide = (meta + 1).unsqueeze(0)
    assert expr_of(wide.size(2)) is e.symbol("s1")
    assert holds(env, 5, 8)


def test_truth_values_take_part_in_arithmetic_as_numbers():
    env = ShapeEnv()
    number = env.symint(env.create_size(5, size(0), Dim.DYNAMIC)).node
    for name in ("add", "sub", "mul", "floordiv", "mod", "sym_min", "sym_max", "pow"):
        assert getattr(number, name)(number.wrap_bool(True)).pytype is int, name
        assert getattr(number.wrap_bool(True), name)(number).pytype is int, name
    assert number.add(number.wrap_bool(True)).hint == 6
    assert number.wrap_bool(True).sub(number).hint == -4
    assert number.wrap_bool(True).neg().hint == -1
    assert number.eq(number.wrap_bool(True)).hint is False


def test_layouts_of_sizes_that_data_tells_are_asked_about_values_that_these_may_have() -> None:
    env = ShapeEnv()
    first, second = (env.symint(env.create_unbacked()) for _ in range(2))
    rest = 9 - first - second
    torch._check(first <= 9)
    torch._check(second <= 9)
    torch._check(rest >= 0)
    assert not (rest < 1).node.answer_of_layout()
    assert (first + second > 1).node.answer_of_layout()
    assert rest.node.hint_or_guess() > 0
    unbounded = env.symint(env.create_unbacked())
    assert (unbounded > 1000).node.answer_of_layout()


def test_an_equality_keeps_what_inputs_tell() -> None:
    env, (a,) = make(7)
    u = env.symint(env.create_unbacked())
    made = len(env.decisions)
    torch._check(a == u + 2)
    assert str(expr_of(a + 0)) == "s0" and str(expr_of(u + 2)) == "s0"
    assert u + 2 == a and len(env.decisions) == made


@pytest.mark.parametrize("equal_first", [True, False])
def test_bounds_hold_of_what_a_symbol_is_equal_to(equal_first: bool) -> None:
    env, (a, b) = make(80, 60)
    assert not equal_first or a == b + 20
    assert b >= 40 and a <= 900
    assert equal_first or a == b + 20
    made = len(env.decisions)
    assert a >= 60 and b <= 880
    assert len(env.decisions) == made


@pytest.mark.parametrize("equal_first", [True, False])
def test_what_was_said_of_a_symbol_holds_of_what_stands_for_it(equal_first: bool) -> None:
    env, (a, b, c, d) = make(12, 30, 6, 5)
    rows, one = (a * b) // (c * 12), (a * d) // (12 * d)
    assert not equal_first or rows == d
    assert one == 1 and rows != 9
    assert equal_first or rows == d
    made = len(env.decisions)
    asked = env.symint(env.simplify(expr_of(one)))
    assert "s3" not in str(expr_of(asked)) and asked == 1
    assert env.symint(env.simplify(expr_of(d + 0))) != 9
    assert len(env.decisions) == made
