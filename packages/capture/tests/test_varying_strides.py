"""Strides of inputs that change between calls and do not follow from the sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import export, mark_dynamic, optimize
from dovetail_guards import clause_text
from dovetail_guards.clauses import ShapeRelation
from torch import Tensor
from torch.fx import GraphModule

LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "all but the last column": lambda i: torch.randn(4, 10 + i)[:, :-1],
    "the first columns": lambda i: torch.randn(4, 10 + i)[:, :5],
    "a chunk of the last dimension": lambda i: torch.randn(4, 7 + i, 24)[..., :8],
    "a chunk of a dimension that grows": lambda i: torch.randn(4, 7 + i, 24 + i)[..., :8],
    "one column, kept": lambda i: torch.randn(4, 2 + i)[:, :1],
    "one column": lambda i: torch.randn(4, 3 + i)[:, 1],
    "a part of a cache": lambda i: torch.randn(4, 64)[:, : 5 + i],
    "heads": lambda i: torch.randn(2, 5 + i, 4, 8).transpose(1, 2),
    "heads out of one product": lambda i: torch.randn(2, 5 + i, 3, 4, 8)[:, :, 1].transpose(1, 2),
    "repeated rows": lambda i: torch.randn(4, 1, 6 + i)[..., :-1].expand(4, 3, 5 + i),
    "every other": lambda i: torch.randn(4, 2 * (6 + i))[:, ::2],
    "contiguous": lambda i: torch.randn(4, 10 + i),
}


def scaled(x: Tensor) -> tuple[Tensor, Any]:
    return x * 2, x.stride()


def flattened(x: Tensor) -> tuple[Tensor, Any]:
    y = x.reshape(-1)
    return y, (y.stride(), x.is_contiguous())


def counted(fn: Callable[..., Any], dynamic: bool | None = None) -> tuple[Any, list[GraphModule]]:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return optimize(fn, backend, fullgraph=True, dynamic=dynamic), graphs


def agree(fn: Callable[..., Any], run: Any, x: Tensor) -> None:
    (wanted, facts), (got, found) = fn(x), run(x)
    assert torch.equal(got, wanted)
    assert got.stride() == wanted.stride()
    assert (found, type(found)) == (facts, type(facts))


@pytest.mark.parametrize("fn", [scaled, flattened])
@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_takes_two_graphs(name: str, fn: Callable[..., Any]) -> None:
    run, graphs = counted(fn)
    for i in range(6):
        agree(fn, run, LAYOUTS[name](i))
    assert len(graphs) == 2


def test_with_dynamic_sizes_or_a_mark_one_graph_is_enough() -> None:
    for dynamic in (None, True):
        run, graphs = counted(scaled, dynamic)
        for i in range(4):
            x = torch.randn(4, 10 + i)[:, :-1]
            if dynamic is None:
                mark_dynamic(x, 1)
            agree(scaled, run, x)
        assert len(graphs) == 1


def test_with_static_sizes_each_stride_has_a_graph() -> None:
    run, graphs = counted(scaled, dynamic=False)
    for i in range(3):
        agree(scaled, run, torch.randn(4, 10 + i)[:, :5])
    assert len(graphs) == 3


def test_a_stride_is_an_input_and_guarded_not_to_overlap() -> None:
    run, graphs = counted(scaled)
    for i in range(2):
        agree(scaled, run, torch.randn(4, 10 + i)[:, :-1])
    assert [n.name for n in graphs[1].graph.nodes if n.op == "placeholder"] == [
        "in0_x", "in1_x_stride_0"
    ]  # fmt: skip
    known = [facts.guards for facts in run.capture_context._facts.all() if facts.guards]
    texts = [clause_text(c) for c in known[0][-1].clauses if isinstance(c, ShapeRelation)]
    assert "x.size(1) <= x.stride(0)" in texts


def test_rows_that_overlap_have_graphs_of_their_own() -> None:
    run, graphs = counted(scaled)
    memory = torch.arange(64.0)
    for step, graph_count in ((5, 1), (6, 2), (7, 2), (9, 2), (2, 3), (3, 4)):
        agree(scaled, run, memory.as_strided((3, 5), (step, 1)))
        assert len(graphs) == graph_count


def test_a_question_about_the_layout_is_guarded() -> None:
    def asked(x: Tensor) -> tuple[Tensor, Any]:
        return (x * 2, True) if x.is_contiguous() else (x * 3, False)

    run, graphs = counted(asked)
    for width in (7, 8, 5, 9, 5, 11):
        agree(asked, run, torch.randn(4, width)[:, :5])
    assert len(graphs) == 3


def test_sizes_and_strides_that_part_later() -> None:
    """They follow from each other at first."""
    run, graphs = counted(scaled)
    for width, taken in ((5, 5), (6, 6), (8, 6), (9, 5), (12, 7), (6, 6)):
        agree(scaled, run, torch.randn(4, width)[:, :taken])
    assert len(graphs) == 3


def test_what_is_exported_takes_no_strides() -> None:
    x = torch.randn(4, 6)[:, :-1]
    mark_dynamic(x, 0)
    exported = export(lambda x: x * 2, (x,))
    assert len([n for n in exported.gm.graph.nodes if n.op == "placeholder"]) == 1
    assert torch.equal(exported(torch.ones(3, 6)[:, :-1]), torch.full((3, 5), 2.0))


@pytest.mark.parametrize("first", [40, 41])
def test_every_other_element_of_rows_of_any_length(first: int) -> None:
    """A row of an odd number of elements begins before the step after the last one taken: it does
    not overlap with what lies before it."""
    run, graphs = counted(scaled)
    for n in range(first, first + 12):
        agree(scaled, run, torch.randn(3, 5, n)[..., ::2])
    assert len(graphs) <= 3
