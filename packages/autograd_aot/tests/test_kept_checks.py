"""What eager raises for data is raised of results that nobody reads, before an input is written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import aot_compile

BEYOND = torch.tensor([0, 9])
CALLS = {
    "index": lambda x, i: x[:, i],
    "two indices": lambda x, i: x[i * 0, i],
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "take": torch.take,
    "scatter": lambda x, i: x.scatter(1, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i[:, None], torch.ones(2, 1)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i[:, None], torch.ones(2, 1), "amax"),
    "index_put": lambda x, i: x.index_put((i,), torch.ones(4)),
    "index_copy": lambda x, i: x.index_copy(1, i, torch.ones(2, 2)),
    "index_fill": lambda x, i: x.index_fill(1, i, 1.0),
    "put": lambda x, i: x.put(i, torch.ones(2)),
    "cross_entropy": F.cross_entropy,
    "nll_loss": lambda x, i: F.nll_loss(x, i, reduction="none"),
    "multi_margin_loss": F.multi_margin_loss,
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "floor_divide": lambda x, i: i // torch.zeros_like(i),
    "divide by 0": lambda x, i: i % 0,
    "remainder": lambda x, i: 7 % (i * 0),
    "fmod": lambda x, i: i.fmod(i * 0),
    "eigh": lambda x, i: torch.linalg.eigh((x[0, 0] * float("nan")).expand(3, 3)),
    "inv": lambda x, i: torch.linalg.inv(x[:, :2] * 0),
    "bincount": lambda x, i: torch.bincount(-i, minlength=5),
    "repeat_interleave": lambda x, i: torch.repeat_interleave(i, -i, output_size=5),
}  # fmt: skip


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_unread_results_are_checked(name: str, graded: bool) -> None:
    call = CALLS[name]

    def fn(x, i, written):
        call(x, i)
        written.add_(1)
        return (x * 2,)

    def inputs():
        return torch.ones(2, 4, requires_grad=graded), BEYOND.clone(), torch.zeros(3)

    with pytest.raises((RuntimeError, IndexError)) as expected:
        fn(*inputs())
    given = inputs()
    # (What a number in the program tells is raised while it is traced.)
    with pytest.raises((RuntimeError, IndexError)) as raised:
        run = aot_compile(
            as_graph(fn, 3), list(inputs()), forward_compiler=run_fx, decompositions=TABLES["core"]
        )
        run(*given)
    assert type(raised.value) is type(expected.value)
    assert torch.equal(given[2], torch.zeros(3))


@pytest.mark.parametrize("name", ["index", "gather", "embedding", "cross_entropy", "scatter"])
def test_results_that_are_read_cost_no_check_of_their_own(name: str) -> None:
    call = CALLS[name]
    seen = []

    def compiler(gm, example_inputs):
        seen.extend(str(n.target) for n in gm.graph.nodes)
        return gm

    aot_compile(
        as_graph(lambda x, i: (call(x, i),), 2),
        [torch.ones(2, 4), torch.tensor([0, 1])],
        forward_compiler=compiler,
        decompositions=TABLES["core"],
    )
    assert seen
    assert "aten._assert_async.msg" not in seen


def test_a_result_that_a_call_reads_elsewhere_is_checked_once() -> None:
    seen = []

    def compiler(gm, example_inputs):
        seen.extend(str(n.target) for n in gm.graph.nodes)
        return gm

    def fn(x, y, i):
        y[i], x[i], y[i] * 2
        return (x[i] + 1,)

    aot_compile(
        as_graph(fn, 3),
        [torch.ones(4), torch.ones(4, 2), torch.tensor([0, 1])],
        forward_compiler=compiler,
        decompositions=TABLES["core"],
    )
    assert "aten.index.Tensor" in seen
    assert "aten._assert_async.msg" not in seen


def test_the_forward_checks_what_the_backward_alone_reads() -> None:
    class Picks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, i):
            ctx.save_for_backward(w[i])
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (picked,) = ctx.saved_tensors
            return g * picked, None, None

    args = [torch.ones(2, requires_grad=True), torch.ones(3), torch.tensor([0, 1])]
    run = aot_compile(
        as_graph(lambda *a: (Picks.apply(*a),), 3),
        args,
        forward_compiler=run_fx,
        decompositions=TABLES["core"],
    )
    run(*args)[0].sum().backward()
    with pytest.raises(IndexError, match="9 is out of bounds"):
        run(args[0], args[1], BEYOND)


def test_an_index_of_nothing_is_in_bounds() -> None:
    def fn(x, i):
        x[i], x.gather(0, i)
        return (x * 2,)

    args = [torch.ones(3), torch.zeros(0, dtype=torch.int64)]
    run = aot_compile(as_graph(fn, 2), args, forward_compiler=run_fx, decompositions=TABLES["core"])
    assert torch.equal(run(*args)[0], args[0] * 2)


@pytest.mark.parametrize("length", [4, 5])
def test_positions_that_are_known_to_fit_are_not_checked(length: int) -> None:
    """A mask's lookups by ranges of numbers, as libraries write them, cost nothing if unread."""
    seen = []

    def compiler(gm, example_inputs):
        seen.extend(str(n.target) for n in gm.graph.nodes)
        return gm

    def fn(x, mask):
        positions = torch.arange(length) + 0
        mask[positions[None], positions[:, None]]
        return (x * 2,)

    aot_compile(
        as_graph(fn, 2),
        [torch.ones(3), torch.ones(4, 4)],
        forward_compiler=compiler,
        decompositions=TABLES["core"],
    )
    assert ("aten._assert_async.msg" in seen) == (length > 4)
