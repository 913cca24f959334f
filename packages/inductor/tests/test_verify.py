"""The verifier: it accepts what passes make, and finds what is wrong in graphs that are spoilt."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import compile_graph
from dovetail_inductor.knobs import VERIFY_LOOPS
from dovetail_inductor.loop_ir.expr import Load, rename
from dovetail_inductor.loop_ir.index import Index, Var, variable
from dovetail_inductor.loop_ir.loops import LoopGraph, LoopNest, Strided
from dovetail_inductor.lowering import lower as lowering
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.pipeline import PassLog, find_error
from dovetail_inductor.scheduler.fuse import fuse
from dovetail_inductor.targets.cpu.syntax import ScopeError, check_scopes
from dovetail_inductor.verify import LoopError, verify
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table


def traced(fn, *inputs):
    return trace_aten(fn, *inputs, decompositions=core_aten_table())


def padded_softmax(x, y):
    both = torch.cat([F.pad(x, (2, 1)), y], 1)
    return both.softmax(1), both.flip(1) + 1


INPUTS = torch.randn(3, 17), torch.randn(3, 1)


def graph() -> LoopGraph:
    return lower(traced(padded_softmax, *INPUTS))


def spoilt(changed: LoopGraph, position: int, **fields: object) -> LoopGraph:
    nodes = list(changed.nodes)
    nodes[position] = replace(nodes[position], **fields)
    return replace(changed, nodes=tuple(nodes))


def shifted(whole: LoopGraph, nest: LoopNest, by: int) -> LoopNest:
    """The nest with every index into an input moved on, under the masks that it has."""

    def element(load: Load, index: Index, mask: object) -> object:
        moved = index + by if load.buffer.startswith("arg") else index
        return whole.builder.load(load.buffer, moved, load.dtype, mask)

    (body,) = rename(whole.builder, [nest.body], variable, element)
    return replace(nest, body=body)


def test_it_is_on_in_all_tests() -> None:
    assert VERIFY_LOOPS and PassLog().verified is not None


def test_what_lowering_and_fusion_give_is_accepted() -> None:
    verify(graph())
    verify(fuse(graph(), InductorOptions()))


@pytest.mark.parametrize("by", [1, -1])
def test_a_masked_index_beyond_its_buffer(by: int) -> None:
    """The masks keep each read of the padded rows within its input, by not one element more."""
    whole = graph()
    first = next(n for n in whole.nodes if isinstance(n, LoopNest))
    assert any(load.mask is not None for load in first.loads)
    nodes = tuple(shifted(whole, n, by) if n is first else n for n in whole.nodes)
    with pytest.raises(LoopError, match=r"is read at (-1|51|3), and it has (51|3) elements"):
        verify(replace(whole, nodes=nodes))


def test_a_buffer_that_is_read_before_it_is_written() -> None:
    whole = graph()
    with pytest.raises(LoopError, match="before anything writes it"):
        verify(replace(whole, nodes=whole.nodes[::-1]))


def test_a_variable_that_is_no_loop() -> None:
    whole = graph()
    nest = whole.nodes[0]
    assert isinstance(nest, LoopNest)
    body = whole.builder.index_value(variable(Var(40, 3)))
    with pytest.raises(LoopError, match="i40 < 3 in i40 is no loop of the nest"):
        verify(spoilt(whole, 0, body=body))
    with pytest.raises(LoopError, match="depends on i40"):
        verify(spoilt(whole, 0, index=variable(Var(40, 3)), reduce_vars=(Var(40, 3),)))


def test_a_place_beyond_what_is_written() -> None:
    whole = graph()
    nest = whole.nodes[0]
    assert isinstance(nest, LoopNest)
    with pytest.raises(LoopError, match="is written at"):
        verify(spoilt(whole, 0, index=nest.index + 1))


def test_a_value_of_the_same_kernel_at_another_point() -> None:
    def fn(x):
        y = x.exp()
        return y, y.sum(1)

    kernels = fuse(lower(traced(fn, torch.randn(40, 8))), InductorOptions())
    verify(kernels)
    (kernel,) = kernels.kernels
    first, second = kernel.nests
    with pytest.raises(LoopError, match="before it is computed"):
        verify(replace(kernels, steps=(replace(kernel, nests=(second, first)),)))
    with pytest.raises(LoopError, match="at another point"):
        moved = replace(first, index=first.index + 1)
        verify(replace(kernels, steps=(replace(kernel, nests=(moved, second)),)))


def test_the_names_in_a_kernels_text() -> None:
    (kernel,) = compile_graph(traced(padded_softmax, *INPUTS)).kernels
    check_scopes(kernel.source)
    text = kernel.source
    name = next(n for n in ("t3", "t4", "t5") if text.count(f"const auto {n} =") == 1)
    with pytest.raises(ScopeError, match=f"{name} is not declared"):
        check_scopes(text.replace(f"const auto {name} =", "const auto other =", 1))


def test_what_is_wrong_is_found_on_the_way_to_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = traced(padded_softmax, *INPUTS)
    assert find_error(gm, INPUTS) is None
    monkeypatch.setattr(lowering, "as_promised", lambda ctx, value, like: replace_output(value))
    found = find_error(gm, INPUTS)
    assert found is not None and "after the pass lower: the output nowhere is never" in found


def replace_output(value):
    return Strided("nowhere", value.shape, value.stride, 0)
