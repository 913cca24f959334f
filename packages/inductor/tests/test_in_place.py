"""New values of inputs computed where the inputs lie: where that is done, and where it would be
wrong. The caller's copy is stood for by `place`, which does it where it is still needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime import load
from dovetail_runtime.plan import Allocate, CallAten, LaunchTriton, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor

Fn = Callable[..., tuple[Tensor, ...]]
TRITON = InductorOptions(triton=True)


def compiled(
    fn: Fn,
    inputs: Sequence[Tensor],
    overwritten: Mapping[int, int],
    options: InductorOptions | None = None,
) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for position, output in overwritten.items():
        placeholders[position].meta["overwritten"] = output
    return compile_graph(gm, list(inputs), options=options)


def check(
    fn: Fn,
    inputs: Sequence[Tensor],
    overwritten: Mapping[int, int],
    in_place: Sequence[int],
    options: InductorOptions | None = None,
) -> Plan:
    """All results are as eager's; of the inputs, those `in_place` have their new values."""
    plan = compiled(fn, inputs, overwritten, options)
    wanted, old = fn(*inputs), [t.clone() for t in inputs]
    made = [t.clone() for t in inputs]
    if options is TRITON:
        got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*made)
    else:
        got = load(plan).run(*made)
    for mine, expected in zip(got, wanted, strict=True):
        assert isinstance(mine, Tensor) and mine.stride() == expected.stride()
        torch.testing.assert_close(mine, expected)
    for position, (now, before) in enumerate(zip(made, old, strict=True)):
        if position in in_place:
            result = got[overwritten[position]]
            assert isinstance(result, Tensor) and result.data_ptr() == now.data_ptr()
            torch.testing.assert_close(now, wanted[overwritten[position]])
        else:
            assert torch.equal(now, before)
    assert plan.mutated == tuple(f"arg{i}" for i in in_place)
    return plan


def momentum(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    m = m * 0.9 + g
    return p - 0.1 * m, m


P, G, M = (torch.randn(300, 40) for _ in range(3))


@pytest.mark.parametrize("options", [None, TRITON], ids=["cpp", "triton"])
def test_a_step_of_an_optimizer(options: InductorOptions | None) -> None:
    plan = check(momentum, (P, G, M), {0: 0, 2: 1}, (0, 2), options)
    assert not any(isinstance(s, Allocate) for s in plan.steps)
    assert compiled(momentum, (P, G, M), {}).mutated == (), "nobody said so"


def cached(keys: Tensor, values: Tensor, at: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    keys = torch.index_copy(keys, 1, at, k)
    values = torch.ops.aten.index_put(values, [None, at], v)
    return keys.sum((1, 2)) + values.amax((1, 2)), keys, values


CACHES = (
    torch.randn(2, 8, 16), torch.randn(2, 8, 16), torch.tensor([3]),
    torch.randn(2, 1, 16), torch.randn(2, 1, 16),
)  # fmt: skip


def test_rows_of_caches_are_all_that_is_written() -> None:
    plan = check(cached, CACHES, {0: 1, 1: 2}, (0, 1), TRITON)
    without = compiled(cached, CACHES, {}, TRITON)
    launches = [sum(isinstance(s, LaunchTriton) for s in p.steps) for p in (plan, without)]
    assert launches[0] < launches[1], "no copy to begin with"
    caches = [s for s in plan.steps if isinstance(s, Allocate) and s.spec.shape == (2, 8, 16)]
    assert not caches


def test_rows_of_caches_on_a_cpu() -> None:
    def alike(keys: Tensor, values: Tensor, at: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        keys, values = keys.index_copy(1, at, k), values.index_copy(1, at, v)
        return torch.softmax(keys @ values.mT, -1), keys, values

    plan = check(alike, CACHES, {0: 1, 1: 2}, (0, 1))
    assert not [s for s in plan.steps if isinstance(s, Allocate) and s.spec.shape == (2, 8, 16)]
    check(cached, CACHES, {0: 1, 1: 2}, (0, 1))


SCATTERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, i, s: x.scatter(0, i, s),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_a_place_out_of_bounds_leaves_what_was_written_before(name: str) -> None:
    """As eager does; nothing that another operator would have done before it."""
    x, s = torch.zeros(70), torch.arange(1.0, 41)
    at = torch.randperm(70)[:40]

    def fn(x: Tensor, at: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (SCATTERS[name](x, at, s),)

    check(fn, (x, at, s), {0: 0}, (0,))
    run = load(compiled(fn, (x, at, s), {0: 0})).run
    at[23] = 70
    ours = x.clone()
    with pytest.raises((IndexError, RuntimeError), match="index 70 is out of bounds"):
        run(ours, at, s)
    wanted = SCATTERS[name](x, at[:23], s[:23])
    assert torch.equal(ours, wanted)


UNLIKE_EAGER: dict[str, tuple[Fn, dict[int, int]]] = {
    "what is written is looked up": (
        lambda x, y, i, s: (x.scatter(0, i, y[i]), y),
        {0: 0},
    ),
    "other places": (lambda x, y, i, s: (x.scatter(0, i, s), y.scatter(0, i + 1, s)), {0: 0, 1: 1}),
    "what is not read from it fails, too": (
        lambda x, y, i, s: (x.scatter(0, i, s), torch.index_select(y, 0, i + 1).cumsum(0)),
        {0: 0},
    ),
}


@pytest.mark.parametrize("name", UNLIKE_EAGER)
def test_not_on_a_cpu_where_eager_might_fail_before_it_writes(name: str) -> None:
    fn, overwritten = UNLIKE_EAGER[name]
    inputs = (torch.zeros(70), torch.zeros(70), torch.randperm(69)[:40], torch.randn(40))
    run = load(compiled(fn, inputs, overwritten)).run
    x, y, at, s = (t.clone() for t in inputs)
    at[23] = 71
    with pytest.raises((IndexError, RuntimeError), match="index 71 is out of bounds"):
        run(x, y, at, s)
    assert not x.any() and not y.any(), "nothing was written"


def test_what_fails_after_it_has_read_what_was_written() -> None:
    """In eager it comes later, too."""

    def fn(x: Tensor, at: Tensor, s: Tensor, there: Tensor) -> tuple[Tensor, ...]:
        x = x.scatter(0, at, s)
        return x, torch.index_select(x, 0, there).cumsum(0)

    x, at, s = torch.zeros(70), torch.randperm(70)[:40], torch.randn(40)
    check(fn, (x, at, s, torch.arange(9)), {0: 0}, (0,))


PARTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "columns": lambda x, s: torch.slice_scatter(x, s, 1, 1, 5),
    "a column": lambda x, s: torch.select_scatter(x, s[:, 0], 1, 7),
    "a row": lambda x, s: torch.select_scatter(x, s[0].repeat(25), 0, -1),
    "a block": lambda x, s: torch.slice_scatter(
        x, torch.slice_scatter(x[10:50], s[10:50] * 2, 1, 96), 0, 10, 50
    ),
    "columns where it is positive": lambda x, s: torch.slice_scatter(
        x, torch.where(s > 0, s, x[:, 1:5]), 1, 1, 5
    ),
    "every other column": lambda x, s: torch.slice_scatter(x, s, 1, 1, 9, 2),
    "nothing": lambda x, s: torch.slice_scatter(x, s[:, :0], 1, 5, 5),
}


@pytest.mark.parametrize("options", [None, TRITON], ids=["cpp", "triton"])
@pytest.mark.parametrize("part", PARTS)
def test_loops_go_over_the_part_that_is_written(part: str, options: InductorOptions | None) -> None:
    def fn(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (PARTS[part](x, s),)

    inputs = torch.randn(100, 100), torch.randn(100, 4)
    plan = compiled(fn, inputs, {0: 0}, options)
    if not plan.mutated:  # its strides may differ
        return
    plan = check(fn, inputs, {0: 0}, (0,), options)
    if options is None and part in list(PARTS)[:5]:
        (kernel,) = plan.kernels
        assert "* 100" not in kernel.source and "< 100; " not in kernel.source.replace(
            "i0 < 100; ", ""
        )


@pytest.mark.parametrize("length", [4, 100, 120])
def test_a_cache_is_filled_where_it_lies(length: int) -> None:
    """Though its beginning is one tensor's and the rest another's."""

    def fn(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (torch.slice_scatter(x, s, 1, 0, length),)

    check(fn, (torch.randn(16, 128, 64), torch.randn(16, length, 64)), {0: 0}, (0,), TRITON)


def test_not_on_a_cpu_where_a_divisor_may_be_zero() -> None:
    def fn(count: Tensor, by: Tensor, p: Tensor) -> tuple[Tensor, ...]:
        q = p + 1
        return count // by, q

    counts = torch.arange(1, 9), torch.full((8,), 2)
    check(fn, (*counts, P), {0: 0, 2: 1}, ())
    check(fn, (*(c.double() for c in counts), P), {0: 0, 2: 1}, (0, 2))
    # What is written after the quotients is not touched if one is wrong.
    check(lambda count, by, p: (count // by, p + 1), (*counts, P), {0: 0, 2: 1}, (2,))


WRONG: dict[str, tuple[Fn, tuple[Tensor, ...], dict[int, int]]] = {
    "the old value leaves": (lambda p, g: (p + g, p), (P, G), {0: 0}),
    "the new value leaves twice": (lambda p, g: (q := p + g, q), (P, G), {0: 0}),
    "a view of the new value leaves": (lambda p, g: (q := p + g, q[1:]), (P, G), {0: 0}),
    "read elsewhere": (lambda p, g: (p.roll(1, 0) + g,), (P, G), {0: 0}),
    "reduced before": (lambda p, g: (torch.softmax(p, -1) + g,), (P, G), {0: 0}),
    "another layout": (lambda p, g: (p + g,), (P.t().contiguous().t(), G), {0: 0}),
    "another dtype": (lambda p, g: ((p + g).double(),), (P, G), {0: 0}),
    "two of one value": (lambda p, g, m: (g * 2,), (P, G, M), {0: 0, 2: 0}),
    "read by the other's value": (lambda p, m: (p + m, m + p.roll(1, 0)), (P, M), {0: 0, 1: 1}),
}


@pytest.mark.parametrize("options", [None, TRITON], ids=["cpp", "triton"])
@pytest.mark.parametrize("name", WRONG)
def test_results_are_right_whoever_reads(name: str, options: InductorOptions | None) -> None:
    fn, inputs, overwritten = WRONG[name]
    plan = compiled(fn, inputs, overwritten, options)
    wanted, made = fn(*inputs), [t.clone() for t in inputs]
    if options is TRITON:
        got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*made)
    else:
        got = load(plan).run(*made)
    for mine, expected in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, expected)
    written = {int(n.removeprefix("arg")) for n in plan.mutated}
    for position, (now, before) in enumerate(zip(made, inputs, strict=True)):
        new = wanted[overwritten[position]] if position in written else before
        torch.testing.assert_close(now, new)


@pytest.mark.parametrize("name", list(WRONG)[:5])
def test_what_somebody_still_reads_stays(name: str) -> None:
    fn, inputs, overwritten = WRONG[name]
    assert compiled(fn, inputs, overwritten, TRITON).mutated == ()


def test_a_library_call_that_may_return_its_argument() -> None:
    def fn(p: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        values, _ = torch.sort(p)  # the library's
        return p + g, values

    plan = compiled(fn, (P, G), {0: 0}, TRITON)
    if any(isinstance(s, CallAten) for s in plan.steps):
        assert plan.mutated == ()


def test_a_product_goes_where_the_input_lies_not() -> None:
    """A library call allocates for itself."""
    w = torch.randn(40, 40)
    check(lambda p, w: (F.relu(p @ w), p @ w), (P, w), {0: 0}, ())


@pytest.mark.parametrize("options", [None, TRITON])
def test_rows_that_are_written_as_they_were(options: InductorOptions | None) -> None:
    """The new value is a copy of the old one, which a step has to write all the same."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.slice_scatter(x, x[:2], 0, 0, 2), y * 2

    check(fn, (torch.randn(4, 4), torch.randn(3)), {0: 0}, [0], options)


@pytest.mark.parametrize("how", ["sum", "prod", "amax", "amin"])
def test_reductions_at_places_are_made_where_the_input_lies(how: str) -> None:
    def fn(x: Tensor, at: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (x.scatter_reduce(0, at, s, how),)

    plan = check(fn, (torch.randn(70), torch.randint(0, 70, (90,)), torch.randn(90)), {0: 0}, (0,))
    assert len(plan.kernels) == 1, "no copy before, and none after"


def rows_stepped(p: Tensor, m: Tensor, at: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Rows of two tables get values that are made of their old ones."""
    new = m[at] * 0.9 + g
    m = m.index_put((at,), new)
    return p.index_put((at,), p[at] - 0.1 * new), m


@pytest.mark.parametrize("options", [None, TRITON], ids=["cpp", "triton"])
def test_rows_made_of_their_old_values_are_all_that_is_written(
    options: InductorOptions | None,
) -> None:
    at = torch.randint(0, 30, (90,))  # most of them more than once
    rows = torch.randn(300, 40)[at]
    plan = check(rows_stepped, (P, M, at, rows), {0: 0, 1: 1}, (0, 1), options)
    made = [s.spec.shape for s in plan.steps if isinstance(s, Allocate)]
    assert made and (300, 40) not in made


def test_old_values_that_are_read_later_are_copied() -> None:
    """Where what was written decides what is read of the old value, that has to be kept."""

    def fn(m: Tensor, at: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        new = m.index_put((at,), m[at] + g)
        return new, m.index_select(0, new.sum(1).argsort()[:1])

    at = torch.randint(0, 300, (90,))
    check(fn, (M, at, torch.randn(300, 40)[at]), {0: 0}, ())
