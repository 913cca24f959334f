"""Names that programs know from torch.compile's front end, at `dovetail.*`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail


class Graphs:
    """A backend that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: Any, inputs: Any) -> Callable[..., Any]:
        self.count += 1
        return gm.forward  # type: ignore[no-any-return]


def _graphs(sizes: tuple[int, ...], mark: Callable[[Tensor], Any], **settings: Any) -> int:
    """How many graphs calls with these sizes compile, each tensor marked; results as eager's."""
    backend = dovetail.takes_symbolic_graphs(Graphs())

    def f(x: Tensor) -> Tensor:
        return x.sin() * x.shape[0]

    compiled = dovetail.compile(f, backend=backend, **settings)
    for size in sizes:
        x = torch.randn(size)
        mark(x)
        torch.testing.assert_close(compiled(x), f(x))
    return backend.count


@pytest.mark.parametrize(
    ("mark", "sizes", "graphs"),
    [
        (lambda x: dovetail.mark_dynamic(x, 0, min=2, max=9), (4, 5, 6), 1),
        (lambda x: dovetail.mark_dynamic(x, [0], hint_override=7), (4, 5, 6), 1),
        (lambda x: dovetail.mark_dynamic(x, 0, specialize_on=[lambda n: n == 8]), (8, 5, 6), 2),
        (lambda x: dovetail.mark_dynamic(x, index=0), (4, 5, 6), 1),
        (lambda x: dovetail.maybe_mark_dynamic(x, 0), (4, 5, 6), 1),
        (lambda x: dovetail.maybe_mark_dynamic(x, 0, min=3, max=8), (4, 5, 6), 1),
        (lambda x: dovetail.mark_static(x, 0), (4, 5, 6), 3),
        (lambda x: dovetail.mark_static(x), (4, 5), 2),
        (lambda x: dovetail.mark_unbacked(x, 0, min=0, max=9), (4, 1, 6), 1),
        (lambda x: dovetail.mark_static_address(x, guard=True), (4, 4), 1),
    ],
)
def test_marks(mark: Callable[[Tensor], Any], sizes: tuple[int, ...], graphs: int) -> None:
    assert _graphs(sizes, mark) == graphs


def test_marks_that_cannot_be() -> None:
    x = torch.ones(5)
    with pytest.raises(ValueError, match="greater"):
        dovetail.mark_dynamic(x, 0, min=5, max=4)
    with pytest.raises(ValueError, match="outside"):
        dovetail.mark_unbacked(x, 0, max=4)
    with pytest.raises(NotImplementedError, match=r"torch\._check"):
        dovetail.mark_unbacked(x, 0, shape_id="batch")
    with pytest.raises(TypeError):
        dovetail.mark_static_address(3)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        dovetail.maybe_mark_dynamic(x, 1)


def test_a_maybe_dynamic_size_may_be_needed() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] == 4 else x * 3

    compiled = dovetail.compile(f, backend="eager", fullgraph=True)
    weak, strong = torch.ones(4), torch.ones(4)
    dovetail.maybe_mark_dynamic(weak, 0)
    torch.testing.assert_close(compiled(weak), f(weak))
    dovetail.reset()
    dovetail.mark_dynamic(strong, 0)
    dovetail.maybe_mark_dynamic(strong, 0)  # cannot weaken it
    with pytest.raises(dovetail.CaptureError, match="marked dynamic"):
        compiled(strong)


def test_run_compiles_nothing_new() -> None:
    backend = Graphs()
    compiled = dovetail.compile(lambda x: x + 1, backend=backend, dynamic=False)
    compiled(torch.ones(2))
    prior = dovetail.run(compiled)
    for size in (2, 3):
        torch.testing.assert_close(prior(torch.ones(size)), torch.full((size,), 2.0))
    with dovetail.run():
        compiled(torch.ones(4))
    assert backend.count == 1
    compiled(torch.ones(5))
    assert backend.count == 2


def test_dont_skip_tracing_is_captured() -> None:
    @dovetail.dont_skip_tracing
    def g(x: Tensor) -> Tensor:
        with dovetail.dont_skip_tracing():
            return x.sin()

    x = torch.randn(3)
    compiled = dovetail.compile(lambda x: g(x) + 1, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), x.sin() + 1)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_forbidden_functions_are_errors(fullgraph: bool) -> None:
    @dovetail.forbid_in_graph
    def g(x: Tensor) -> Tensor:
        return x.sin()

    x = torch.ones(2)
    torch.testing.assert_close(g(x), x.sin())
    with pytest.raises(dovetail.CaptureError, match="forbid_in_graph"):
        dovetail.compile(lambda x: g(x) + 1, backend="eager", fullgraph=fullgraph)(x)
    with pytest.raises(TypeError):
        dovetail.forbid_in_graph(3)


def test_options_are_listed() -> None:
    assert dovetail.list_mode_options("reduce-overhead") == {"cudagraphs": True}
    assert dovetail.list_mode_options("default") == {}
    assert set(dovetail.list_mode_options()) >= {"default", "max-autotune"}
    assert set(dovetail.list_mode_options("max-autotune")) <= set(dovetail.list_options())
    with pytest.raises(ValueError, match="'reduce-overhead'"):
        dovetail.list_mode_options("reduce_overhead")


def test_explain_has_torchs_fields() -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        print(end="")
        return x.sin() * 2

    told = dovetail.explain(f)(torch.ones(2))
    assert (told.graph_count, told.graph_break_count, told.op_count) == (2, 1, 3)
    assert len(told.graphs) == 2 and [len(ops) for ops in told.ops_per_graph] == [1, 2]
    (reason,) = told.break_reasons
    (line,) = reason.user_stack
    assert line.filename == __file__ and line.line == 'print(end="")'
    assert told.out_guards and "backend" in told.compile_times


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(self.linear(self.norm(x))).softmax(-1).var(0)


@pytest.mark.parametrize("how", [{"mode": "lite"}, {"options": {"fallback_by_default": True}}])
def test_lite_runs_eagers_kernels_alone(how: dict[str, Any]) -> None:
    block, x = Block(), torch.randn(4, 8)
    compiled: Any = dovetail.compile(block, fullgraph=True, **how)
    gradients = []
    for run in (block, compiled):
        block.zero_grad()
        y = run(x)
        y.sum().backward()
        gradients.append([y, *(p.grad.clone() for p in block.parameters())])  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    assert dovetail.report(compiled).kernels == 0
    assert dovetail.list_mode_options("lite") == {"fallback_by_default": True}
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), block(x), rtol=0, atol=0)
