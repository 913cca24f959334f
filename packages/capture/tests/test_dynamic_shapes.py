"""Sizes and ints that change between calls: how many graphs, what is guarded, what Python sees."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from dovetail_capture import (
    CaptureError,
    mark_dynamic,
    mark_static,
    optimize,
    takes_symbolic_graphs,
)
from dovetail_capture.captured_frame import CapturedFrame
from dovetail_guards import clause_text
from dovetail_guards.clauses import ShapeRelation
from torch.fx import GraphModule

Shapes = Sequence[tuple[int, ...]]


def compiled_with(
    fn: Callable[..., Any], dynamic: bool | None = None
) -> tuple[Any, list[GraphModule]]:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return optimize(fn, backend, fullgraph=True, dynamic=dynamic), graphs


def count(fn: Callable[..., Any], shapes: Shapes, dynamic: bool | None = None) -> int:
    """Eager equals compiled at each shape; gives the number of graphs."""
    run, graphs = compiled_with(fn, dynamic)
    for shape in shapes:
        x = torch.randn(shape)
        wanted, got = fn(x), run(x)
        torch.testing.assert_close(got, wanted)
        assert _types(got) == _types(wanted)
    return len(graphs)


def _types(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_types(v) for v in value]
    return (
        [(_types(k), _types(v)) for k, v in value.items()]
        if isinstance(value, dict)
        else type(value)
    )


def shape_guards(run: Any) -> list[str]:
    """The shape guards of the newest graph, in words."""
    (known,) = (facts.guards for facts in run.capture_context._facts.all() if facts.guards)
    return [clause_text(c) for c in known[-1].clauses if isinstance(c, ShapeRelation)]


TEN = [(4, 6), (5, 7), (9, 2), (2, 9), (3, 3), (8, 16), (17, 5), (6, 4), (33, 8), (2, 2)]


def test_a_size_that_changes_becomes_symbolic() -> None:
    assert count(lambda x: x.sin() * 2, TEN) == 2
    assert count(lambda x: x.sin() * 2, TEN, dynamic=True) == 1
    assert count(lambda x: x.sin() * 2, TEN[:6], dynamic=False) == 6


@dataclasses.dataclass
class _Config:
    rows: int
    ratio: float
    name: str


def test_copies_of_what_depends_on_sizes_are_in_the_graph() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        config = _Config(x.shape[0], x.shape[0] / 2, f"{x.shape[0]} rows")
        parts = copy.deepcopy({"sizes": [x.shape[0], x.numel()], "flag": x.shape[0] > 3})
        copies = dataclasses.asdict(config), dataclasses.astuple(config), parts
        return x * 2, copies, copy.copy(x.shape[0]), copy.copy(x.numel() / 3)

    run, graphs = compiled_with(program)
    for shape in TEN:
        (got, *copies), (wanted, *eager) = run(torch.ones(shape)), program(torch.ones(shape))
        assert torch.equal(got, wanted)
        assert copies == eager and _types(copies) == _types(eager)
    assert len(graphs) <= 3


ONES = [*TEN, (1, 6), (7, 1), (1, 1), (1, 9)]


def test_size_1_is_compiled_apart_where_the_program_asks() -> None:
    assert count(lambda x: x.sin() + 1, ONES) == 2
    assert count(lambda x: (x + x[:1]).t() @ x, ONES) == 2
    assert count(lambda x: x + 1 if x.size(0) == 1 else x * 2, ONES) == 3
    assert count(lambda x: x.squeeze(0) * 2, ONES) == 3


def test_size_1_is_compiled_apart_where_results_lie_otherwise() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous()  # of one row, the input's memory

    assert count(copied, ONES) > 2
    assert count(lambda x: copied(x) @ x, ONES) == 2
    assert count(lambda x: copied(x.sin()).add_(1).sum(), ONES) > 2  # a write tells, too

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.t().is_contiguous() else x.cos()

    assert count(asks, ONES) > 2
    assert count(lambda x: x + copied(x.sin()).stride(1), ONES) > 2
    assert count(lambda x: x * 2 if (y := x.t()).contiguous() is y else x.cos(), ONES) > 2


def test_size_0_is_compiled_apart() -> None:
    assert count(lambda x: x * 2, [(0, 5), (3, 5), (4, 5), (0, 5)]) == 2


def test_only_the_dimension_that_changes_becomes_symbolic() -> None:
    run, graphs = compiled_with(lambda x: x.view(x.shape[0], -1))
    for n in (4, 5, 6):
        run(torch.zeros(n, 3, 2))
    (placeholder, *_) = graphs[-1].graph.nodes
    assert [type(s) is int for s in placeholder.meta["val"]._sizes] == [False, True, True]
    assert len(graphs) == 2


def test_another_rank_is_another_case() -> None:
    run, graphs = compiled_with(lambda x: x + 1)
    for shape in ((4,), (4, 4), (5, 4), (6, 4), (9,), (7,)):
        run(torch.zeros(shape))
    assert len(graphs) == 4  # static, static, (s, 4), (s,)


def arithmetic(x: torch.Tensor) -> Any:
    b, t = x.shape
    y = x.reshape(b * t, -1) * (b + t // 2)
    n = max(b, 2) + len(x)
    return y.view(b, t), b + t, n - 1, {"half": (t + 1) // 2}, t / b, -b, abs(b - 100)


def test_arithmetic_stays_symbolic() -> None:
    assert count(arithmetic, TEN) == 2


def in_order(x: torch.Tensor) -> Any:
    inwards = sorted(range(2), key=lambda d: x.size(d), reverse=True)
    pairs = sorted([(x.size(0), "rows"), (x.size(1), "columns")])
    return x.permute(inwards) * sorted(x.shape)[0] + len(pairs[0][1])


def test_sizes_are_sorted_by_comparisons() -> None:
    assert count(in_order, [(n + 3, n) for n in range(4, 14)]) == 2
    assert count(in_order, [(8, 4), (9, 5), (10, 6), (6, 10), (7, 11), (8, 12)]) == 3


def branches(x: torch.Tensor) -> Any:
    if x.size(0) > 4 and x.size(1) <= 128:
        return x + 1
    return x - 1


def test_a_branch_is_a_guard_in_words() -> None:
    run, graphs = compiled_with(branches)
    for shape in ((8, 6), (9, 7), (5, 100), (4, 7), (3, 9)):
        x = torch.randn(shape)
        assert torch.equal(run(x), branches(x))
    assert len(graphs) == 3
    run, _ = compiled_with(branches, dynamic=True)
    run(torch.zeros(8, 6))
    assert shape_guards(run) == [
        "x.size(0) >= 5",
        "x.size(1) >= 1",
        "x.size(1) <= 128",
        "x.size(1) == x.stride(0)",
    ]


def test_what_needs_a_number_gets_one() -> None:
    def text(x: torch.Tensor) -> Any:
        sizes = {x.size(0): "rows", "columns": x.size(1)}
        parts = [x[i] * i for i in range(x.size(0))]
        return f"{x.size(0)} rows, {x.shape[1]:3d}", sizes, torch.stack(parts), [0] * x.size(0)

    shapes = [(4, 6), (5, 7), (4, 9)]
    run, _ = compiled_with(text, dynamic=True)
    for shape in shapes:
        x = torch.randn(shape)
        wanted, got = text(x), run(x)
        assert got[0] == wanted[0] and got[1] == wanted[1] and got[3] == wanted[3]
        assert torch.equal(got[2], wanted[2])


def test_other_functions_of_numbers() -> None:
    def numbers(x: torch.Tensor) -> Any:
        n, m = x.shape
        both = sum(x.shape)
        found = (
            min(n, m), divmod(n, 3), math.ceil(n / 2), int(m), bool(n), n == 5, both,
            isinstance(n, int), type(m) is int, hash(n), n in (4, 5), round(n), pow(n, 2),
            math.sqrt(n * n), [n, m][n > m], n & 1, n << 1, str(n), n is None, float(n),
        )  # fmt: skip
        return x[: n // 2, : min(n, m)] + both, found

    run, _ = compiled_with(numbers, dynamic=True)
    for shape in ((4, 6), (5, 3), (8, 8)):
        x = torch.randn(shape)
        (got, found), (wanted, expected) = run(x), numbers(x)
        assert torch.equal(got, wanted)
        assert found == expected and _types(found) == _types(expected)


def test_an_int_that_changes_becomes_symbolic() -> None:
    def scaled(x: torch.Tensor, n: int) -> Any:
        return x * n + x.size(0), n + 1

    run, graphs = compiled_with(scaled)
    for n in (3, 5, 100, 7, -2, 1, 0):
        x = torch.randn(4, 5)
        got, wanted = run(x, n), scaled(x, n)
        assert torch.equal(got[0], wanted[0]) and got[1] == wanted[1] and type(got[1]) is int
    assert len(graphs) == 5  # 3; 2 and more; negative; 1; 0


def test_strides_are_guarded() -> None:
    run, graphs = compiled_with(lambda x: x.view(-1) + 1 if x.is_contiguous() else x - 1)
    for n in (4, 5, 6):
        assert torch.equal(run(torch.ones(n, 3)), torch.full((3 * n,), 2.0))
    assert torch.equal(run(torch.ones(3, 6).t()), torch.zeros(6, 3))
    assert len(graphs) == 3


def test_marks() -> None:
    run, graphs = compiled_with(lambda x: x + 1)
    x = torch.zeros(8, 4)
    mark_dynamic(x, 0, min=4, max=16, hint_override=8, specialize_on=[lambda n: n == 9])
    run(x)
    for n in (4, 5, 16):
        run(torch.zeros(n, 4))
    assert len(graphs) == 1
    assert shape_guards(run) == ["x.size(0) >= 4", "x.size(0) <= 16"]
    run(torch.zeros(17, 4))
    assert len(graphs) == 2

    run, graphs = compiled_with(lambda x: x + 1)
    for n in (4, 5, 6):
        x = torch.zeros(n, 4)
        mark_static(x, 0)
        run(x)
    assert len(graphs) == 3


def test_marks_of_torch_are_honoured() -> None:
    run, graphs = compiled_with(lambda x: x + 1)
    x = torch.zeros(8, 4)
    x._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    run(x)
    run(torch.zeros(9, 4))
    assert len(graphs) == 1


def test_a_mark_that_cannot_be_kept_is_an_error() -> None:
    run, _ = compiled_with(lambda x: x + sum(range(x.size(0))))
    x = torch.zeros(8, 4)
    mark_dynamic(x, 0)
    with pytest.raises(CaptureError, match=r"x.size\(0\) is marked dynamic, but the program needs"):
        run(x)
    with pytest.raises(IndexError):
        mark_dynamic(x, 2)
    with pytest.raises(ValueError, match="min=3"):
        mark_dynamic(x, 0, min=3, max=2)


def test_parameters_stay_static() -> None:
    model = torch.nn.Linear(4, 3)
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    run = optimize(model, backend, dynamic=True)
    for n in (2, 5, 9):
        x = torch.randn(n, 4)
        torch.testing.assert_close(run(x), model(x))
    assert len(graphs) == 1
    sizes = [n.meta["val"]._sizes for n in graphs[0].graph.nodes if n.op == "placeholder"]
    assert sum(all(type(s) is int for s in own) for own in sizes) == 2


def test_a_comparison_of_sizes_as_a_flag_of_an_operation() -> None:
    """Torch's flags are no symbols: which of both it is, is guarded."""

    def flags(x: torch.Tensor) -> Any:
        n = x.shape[0]
        found = x.sum(0, keepdim=n > 3), torch.sort(x, descending=n > 3)[0]
        return found, torch.tensor(n > 3), torch.full((2,), n > 3), x * (n > 3)

    assert count(flags, [(2, 3), (3, 3), (4, 3), (5, 3), (6, 3)], dynamic=True) == 2


def positions(x: torch.Tensor, at: Any) -> Any:
    """Tensors of the place of a token, as a decoding loop makes them."""
    one = torch.arange(at, at + 1)
    return x[one % 3] + one, one.unsqueeze(0) > torch.arange(4), torch.cat([one, one + 1]).sum()


def tensors(x: torch.Tensor, number: Any) -> Any:
    """Tensors of a number, alone and among others."""
    several = torch.tensor([[number, 2], [number * 3, True]])
    return (
        x + torch.tensor(number), several, torch.as_tensor((number, 0.5)), torch.asarray([number]),
        torch.tensor(number, dtype=torch.float64), x.new_tensor([number]), several.sum(),
    )  # fmt: skip


@pytest.mark.parametrize("fn", [positions, tensors])
def test_tensors_of_an_int_that_changes_do_not_fix_it(fn: Callable[..., Any]) -> None:
    run, graphs = compiled_with(fn)
    x = torch.arange(3.0)
    for number in range(3, 9):
        torch.testing.assert_close(run(x, number), fn(x, number), rtol=0, atol=0)
    # (Three times the number is computed in 64 bits.)
    expected = ["number >= 2", f"number <= {2**60 // 3}"] if fn is tensors else ["at >= 2"]
    assert len(graphs) == 2 and shape_guards(run) == expected


def test_tensors_of_a_float_that_changes_do_not_fix_it() -> None:
    run, graphs = compiled_with(tensors)
    for number in (0.5, 2.25, -3.0, 8.125):
        torch.testing.assert_close(run(torch.ones(3), number), tensors(torch.ones(3), number))
    assert len(graphs) == 2


def test_the_data_of_a_tensor_of_sizes_is_known_where_it_is_asked_for() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        half = torch.tensor(x.shape[0]) // 2
        return x.sum() * torch.ones(int(half)) if half > 1 else x.new_zeros(half)

    assert count(fn, [(3,), (4,), (6,), (4,)]) == 3


def rows_and_columns(x: torch.Tensor, at: int) -> Any:
    read = x[at], x[:, at], x[..., -at], x[at, at + 1], x[:at, None, at], x[at, [0, 2]], x[at - 5]
    written = x.clone()
    written[:, at] = 1.0
    written[at, :at] += x[0, 0]
    written[at, torch.tensor([0, 1])] = 3.0
    return read, written


def test_an_index_that_changes_is_not_fixed() -> None:
    """A step's number, say, at which a table is read and a cache is written."""
    run, graphs = compiled_with(rows_and_columns)
    for at in range(2, 8):
        torch.manual_seed(at)
        x = torch.randn(9, 9)
        kept = x.clone()
        torch.testing.assert_close(run(x, at), rows_and_columns(x, at), rtol=0, atol=0)
        assert torch.equal(x, kept)
    assert len(graphs) == 3  # an index from the end is another case than one from the start


def test_an_index_out_of_bounds_has_the_words_of_its_error() -> None:
    run = optimize(lambda x, at: x[0, at], lambda gm, _: gm.forward)
    for at in (2, 3, 4):
        assert run(torch.arange(20.0).view(4, 5), at) == at
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 1 with size 5"):
        run(torch.arange(20.0).view(4, 5), 5)


def test_a_size_that_happens_to_be_1_does_not_stand_in_the_way_of_a_view() -> None:
    def cropped(x: torch.Tensor) -> torch.Tensor:
        pooled = torch.nn.functional.avg_pool2d(x, 4)
        return pooled[..., 5:-5, 5:-5].reshape(x.shape[0], -1) + 1

    shapes = [(1, 1, 44, 44), (1, 1, 45, 46), (1, 1, 64, 60), (1, 1, 68, 60), (2, 1, 44, 60)]
    assert count(cropped, shapes, dynamic=True) == 3


def test_a_float_that_is_compared_or_rounded_keeps_its_graph() -> None:
    def scheduled(x: torch.Tensor, rate: float) -> Any:
        decayed = max(rate * 0.9, 0.01) if math.isfinite(rate) and rate * 0.9 > 1e-9 else rate
        return x * decayed + math.exp(-rate) * math.cos(math.pi * rate), x[: int(2 + rate)]

    run, graphs = compiled_with(scheduled)
    x = torch.randn(4)
    for rate in (0.9, 0.81, 0.73, 0.66, 0.11, 0.01, 1e-3, 1e-12, 1.4, 0.5):
        torch.testing.assert_close(run(x, rate), scheduled(x, rate))
    assert len(graphs) == 4  # of 0.9, above, below 0.011..., below 1.1e-9


@functools.lru_cache(16)
def halves(shape: tuple[int, ...], parts: int) -> tuple[list[int], dict[str, int]]:
    return [shape[0] * parts, *shape[1:-1], shape[-1] // parts], {"last": shape[-1]}


@functools.cache
def doubled(size: int) -> int:
    return size * 2


def test_cached_functions_of_sizes_do_not_fix_them() -> None:
    """Einops, say, works its shapes out in one."""

    def split(x: torch.Tensor) -> Any:
        shape, named = halves(tuple(x.shape), 2)
        y = x.reshape(halves(x.shape, 2)[0]) * named["last"]
        return y, doubled(x.shape[0]), doubled(x.shape[0] + 1), y.reshape(shape).sum()

    assert count(split, [(3, 4), (5, 6), (9, 2), (2, 8), (7, 10)]) == 2
    assert halves.cache_info().currsize  # (eager's; compiled code asked for no size's)


def test_pixels_as_channels_keep_their_sizes_symbolic() -> None:
    functional = torch.nn.functional
    shapes = [(2, 3, a, a + 2) for a in (4, 6, 8, 10)]
    assert count(lambda x: functional.pixel_unshuffle(x, 2) + 1, shapes) == 2
    assert count(lambda x: functional.pixel_shuffle(x.repeat(1, 4, 1, 1), 2) + 1, shapes) == 2
    assert count(lambda x: functional.pixel_unshuffle(x[0], 2) + 1, shapes) == 2


def test_the_number_that_a_pad_fills_in_may_follow_from_sizes() -> None:
    def fn(x: torch.Tensor) -> Any:
        rows, pad = x.shape[0], torch.nn.functional.pad
        places = pad(torch.arange(4), [0, 1], value=rows - 1)
        return places, pad(x, (1, 0, 2, -1), "constant", rows / 4), pad(places, (1, 1), value=0.5)

    assert count(fn, TEN) == 2
    run, _ = compiled_with(lambda x: torch.nn.functional.pad(x, [1], value=x.shape[0]), True)
    with pytest.raises(RuntimeError, match="Padding length must be divisible by 2") as refused:
        run(torch.ones(3))
    assert refused.type is RuntimeError  # as eager's


@pytest.mark.parametrize(
    "fn",
    [
        *(torch.add, torch.sub, torch.mul, torch.div, torch.true_divide, torch.floor_divide),
        *(torch.ops.aten.add, torch.ops.aten.sub, torch.ops.aten.mul, torch.ops.aten.div),
    ],
)
def test_tensors_of_two_numbers_are_for_all_numbers(fn: Any) -> None:
    def program(a: Any, b: Any, t: torch.Tensor) -> Any:
        return fn(a, b), t * fn(a, 2), t + fn(2.5, b), fn(7, 2)

    t, graphs = torch.ones(2), []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(gm)
        return gm.forward

    captured = optimize(program, backend, fullgraph=True)
    for a, b in ((4, 3.5), (5, 2.5), (6, 0.1), (9, 0.7)):
        assert repr(captured(a, b, t)) == repr(program(a, b, t))
    assert len(graphs) == 2
    assert repr(captured(4, 3, t)) == repr(program(4, 3, t))


def test_what_takes_no_two_numbers_refuses_them() -> None:
    captured = optimize(lambda a, t: t + torch.remainder(a, 2), lambda gm, _: gm.forward)
    for a in (4, 5, 6):
        with pytest.raises(TypeError, match="remainder"):
            captured(a, torch.ones(2))


def test_a_backend_returns_what_it_assumes() -> None:
    """The captured frame stays as it was; the version's guard has both."""
    frames: list[CapturedFrame] = []
    texts: list[str] = []
    thirds: list[bool] = []

    @takes_symbolic_graphs
    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        (size,) = (n.meta["val"] for n in gm.graph.nodes if n.op == "placeholder")
        thirds.append(bool(size.shape[1] % 3 == 0))
        texts.append(frames[-1].as_text())
        return gm.forward

    run, _ = compiled_with(lambda x: x.sum(0) * x.shape[0], True)
    run.capture_context.backend = backend
    run.capture_context.log.keep_frames = True
    kept = run.capture_context._captured

    def captured(*args: Any) -> CapturedFrame:
        frames.append(kept(*args))
        texts.append(frames[-1].as_text())
        return frames[-1]

    run.capture_context._captured = captured
    run(torch.ones(6, 9))
    assert len(frames) == 1 and len(set(texts)) == 1
    assert frames[0].as_text() == texts[0] and "% 3" not in texts[0]
    (record,) = run.capture_context.log.frames
    assert record.captured is frames[0]
    assert any("% 3" in guard for guard in shape_guards(run))
    assert "% 3" in record.guards.as_text()
    run(torch.ones(9, 12))
    assert len(frames) == 1
    run(torch.ones(9, 11))
    assert len(frames) == 2 and thirds == [True, False]
