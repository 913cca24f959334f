"""Writes between a forward and its backwards: eager's numbers, or an error, and never others."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from aot_testing import TABLES, as_graph, run_fx
from dovetail_autograd_aot import aot_compile, min_cut_partition, trace_joint
from torch.utils.checkpoint import checkpoint

# Eager keeps their results, and not what they are computed from.
KEEPING_RESULTS = {
    "exp": torch.exp, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "softmax": lambda v: v.softmax(0), "log_softmax": lambda v: v.log_softmax(0),
}  # fmt: skip
FIRST = {
    **KEEPING_RESULTS, "sin": torch.sin, "square": lambda v: v * v, "twice": lambda v: v * 2,
    "view": lambda v: v.view(9).view(3, 3), "cumprod": lambda v: v.cumprod(0), "gelu": F.gelu,
    "norm": lambda v: F.layer_norm(v, (3,)), "rows": lambda v: v[[0, 1]], "slice": lambda v: v[:2],
}  # fmt: skip
SECOND = {
    "alone": lambda h, w: h, "mul": lambda h, w: h * w[: len(h)], "mm": torch.mm,
    "add": lambda h, w: h + w[0], "div": lambda h, w: w[: len(h)] / (h + 7),
    "linear": lambda h, w: F.linear(h, w).relu(),
}  # fmt: skip
PLACES = ("x", "w", "result", "inner")
KINDS = ("first", "differentiable", "second after", "again after")


def matrices():
    torch.manual_seed(0)
    return [(torch.rand(3, 3, dtype=torch.double) + 0.1).requires_grad_() for _ in range(2)]


def write(place, inputs, results):
    tensors = {"x": inputs[0], "w": inputs[1], "result": results[0], "inner": results[-1]}
    if place is not None:
        with torch.no_grad():
            tensors[place].add_(1)


def gradients(kind, run, place):
    """Of a forward, a write, and a backward; or of two backwards, with the write between them.
    Where an error is raised, its text."""
    inputs = matrices()
    results = run(*inputs)
    loss = results[0].sum() if len(results) == 1 else (results[0] * results[0]).sum()
    if kind in ("first", "differentiable"):
        write(place, inputs, results)
    try:
        if kind == "first":
            return torch.autograd.grad(loss, inputs, allow_unused=True)
        options = {"create_graph": kind != "again after", "allow_unused": True}
        found = torch.autograd.grad(loss, inputs, retain_graph=True, **options)
        if kind == "differentiable":
            return [None if one is None else one.detach() for one in found]
        write(place, inputs, results)
        if kind == "again after":
            return torch.autograd.grad(loss, inputs, allow_unused=True)
        total = sum((one * one).sum() for one in found if one is not None)
        return torch.autograd.grad(total, inputs, allow_unused=True)
    except RuntimeError as error:
        return str(error)


def same(ours, eager):
    for one, other in zip(ours, eager, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def compiled(function, table):
    return aot_compile(
        as_graph(function, 2), matrices(), forward_compiler=run_fx, decompositions=TABLES[table]
    )


@pytest.mark.parametrize("first", FIRST)
def test_a_number_is_eagers_or_that_of_the_values_from_before_the_write(first):
    for last in SECOND.values():

        def function(x, w, last=last):
            h = FIRST[first](x)
            return last(h, w), h

        run = compiled(function, "core")
        for kind, place in itertools.product(KINDS, PLACES):
            ours = gradients(kind, run, place)
            eager = gradients(kind, function, place)
            if isinstance(ours, str):
                assert "modified" in ours
            else:
                same(ours, gradients(kind, function, None) if isinstance(eager, str) else eager)


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("first", KEEPING_RESULTS)
@pytest.mark.parametrize("last", ["alone", "mul", "mm", "add"])
def test_what_eager_keeps_and_the_caller_gets_is_kept(first, last, table):
    """So the input may be written to, and the result may not."""

    def function(x, w):
        h = KEEPING_RESULTS[first](x)
        return SECOND[last](h, w), h

    run = compiled(function, table)
    same(gradients("first", run, "x"), gradients("first", function, "x"))
    for kind in ("first", "differentiable", "again after"):
        assert "modified" in gradients(kind, function, "inner")
        assert "modified" in gradients(kind, run, "inner")


@pytest.mark.parametrize("first", [lambda v: v + 1, lambda v: v * 2], ids=["sum", "twice"])
def test_what_the_caller_gets_and_eager_does_not_keep_may_be_written_to(first):
    def function(x, w):
        h = first(x)
        return h.exp() @ w, h

    same(
        gradients("first", compiled(function, "core"), "inner"),
        gradients("first", function, "inner"),
    )


INDIFFERENT = {  # to the second input
    "a sum": lambda x, w: x.sin() + w, "a product of it": lambda x, w: x.exp() + w * 2,
    "a mean": lambda x, w: x * x - w.mean(0), "a part": lambda x, w: torch.cat([x.sin(), w[:1]]),
    "its sizes": lambda x, w: x.sin() / w.new_ones(3).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", INDIFFERENT)
def test_what_no_gradient_depends_on_may_be_written_to(name):
    function = INDIFFERENT[name]
    run = compiled(lambda x, w: (function(x, w),), "core")
    for kind in KINDS:
        ours = gradients(kind, run, "w")
        same(ours, gradients(kind, lambda x, w: (function(x, w),), "w"))


def test_what_is_read_from_an_inputs_storage_may_not_be_written_to():
    def function(x, v):
        return (x * v.as_strided((3,), (1,), 0),)

    x = torch.ones(3, requires_grad=True)
    run = aot_compile(as_graph(function, 2), [x, torch.arange(6.0)[1:4]], forward_compiler=run_fx)
    for call in (function, run):
        v = torch.arange(6.0)[1:4]
        (result,) = call(x, v)
        v.mul_(5)
        with pytest.raises(RuntimeError, match="modified"):
            torch.autograd.grad(result.sum(), x, create_graph=True)


NOT_KEPT = {  # inputs, but what is computed from them
    "a sum": lambda x, w: (x + x).abs(),
    "a multiple": lambda x, w: (x * 2).sin() * w,
    "deviations": lambda x, w: (x - x.mean(0)).square(),
    "a row and all": lambda x, w: (x[0] * 3 + w * 2).cos(),
    "halves": lambda x, w: (x.float() * 0.5).sin().double() + w,
    "a view": lambda x, w: (x.t() + 1).square(),
    "a copy": lambda x, w: x.clone().square(),
}  # fmt: skip


@pytest.mark.parametrize("table", ["aten", "core"])
@pytest.mark.parametrize("name", NOT_KEPT)
def test_an_input_that_eager_does_not_keep_may_be_written_to(name, table):
    def function(x, w):
        return (NOT_KEPT[name](x, w),)

    run = compiled(function, table)
    for kind, place in itertools.product(("first", "again after"), ("x", "w")):
        eager = gradients(kind, function, place)
        if not isinstance(eager, str):
            same(gradients(kind, run, place), eager)
    assert not isinstance(gradients("first", function, "x"), str)


def test_what_is_saved_of_an_input_that_eager_does_not_keep():
    """A copy of it if that is smaller than what eager keeps; of parameters none; all that eager
    keeps, and regions that run again, itself."""

    def parts(function, *inputs):
        graph = as_graph(lambda *given: (function(*given),), len(inputs))
        return min_cut_partition(trace_joint(graph, inputs, decompositions=TABLES["core"]))

    row, rows = torch.rand(8), torch.rand(4, 8)
    small = parts(lambda x, w: (x + w).sin(), row.requires_grad_(), rows)
    assert small.saved_primals == () and small.saved_bytes == rows.nbytes  # (of the sum)
    small = parts(lambda x: (x.expand(4, 8) + 1).sin(), row)
    assert small.saved_primals == () and small.saved_bytes == row.nbytes
    large = parts(lambda x: (x.half() + 1).sin(), rows.requires_grad_())
    assert large.saved_primals == () and large.saved_bytes == rows.nbytes // 2
    parameter = torch.nn.Parameter(rows.detach())
    assert parts(lambda x: (x + 1).sin(), parameter).saved_primals == (0,)
    assert parts(lambda x: x.sin(), rows).saved_primals == (0,)

    def region(x):
        return checkpoint(lambda v: (v + 1).sin().exp(), x, use_reentrant=False)

    held = parts(region, rows)
    assert held.saved_primals == (0,) and held.saved_bytes == 0
