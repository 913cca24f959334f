"""Fakes of symbolic sizes: questions, rules without needless guards, and a graph at given sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_guards.shape_env import Dim, ShapeEnv
from dovetail_guards.source import LocalSource, SizeSource
from dovetail_guards.sym_node import expr_of
from dovetail_prims import FakeMode, FakeTensor, from_real
from dovetail_prims.fake_tensor import propagate
from dovetail_prims.sizes.at_sizes import at_sizes, is_symbolic
from dovetail_prims.symbolic.symbolic_forms import symbolic_form
from torch.fx import Graph, GraphModule
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten


def symbolic(*shape: int) -> tuple[ShapeEnv, FakeTensor]:
    env = ShapeEnv()
    source = LocalSource("x")
    sizes = [
        env.symint(env.create_size(n, SizeSource(source, i), Dim.DYNAMIC))
        for i, n in enumerate(shape)
    ]
    return env, from_real(torch.empty(shape), sizes=sizes)


def test_questions_keep_symbols() -> None:
    env, x = symbolic(4, 6)
    before = len(env.decisions)
    with FakeMode():
        assert [str(s) for s in x.shape] == ["s0", "s1"]
        assert [str(s) for s in x.stride()] == ["s1", "1"]
        assert str(x.size(-1)) == "s1" and str(x.numel()) == "s0*s1"
        assert x.dim() == 2 and x.is_contiguous() and not x.t().is_contiguous()
        assert x.storage_offset() == 0
        assert str(x[1:].storage_offset()) == "s1"
    assert len(env.decisions) == before


def test_what_needs_a_number_ties_the_size() -> None:
    env, x = symbolic(4, 6)
    with FakeMode():
        assert len(x) == 4
    assert list(env.specialized()) == ["s0"]


class Forms(TorchFunctionMode):
    """Calls by their forms for symbolic sizes, as who traces a program calls them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = symbolic_form(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


OPS: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(-1, x.shape[2]),
    "merged": lambda x: x.transpose(0, 1).reshape(x.shape[0] * x.shape[1], -1),
    "view": lambda x: x.view(x.shape[0], -1),
    "flatten": lambda x: x.flatten(0, 1),
    "cat": lambda x: torch.cat([x, x], 1),
    "arange": lambda x: torch.arange(x.shape[0]),
    "eye": lambda x: torch.eye(x.shape[0], x.shape[1]) + torch.eye(x.shape[1]).sum(0),
    "triangular": lambda x: torch.linalg.solve_triangular(
        x[0, :, :1] * x[0, :, :1].mT + torch.eye(x.shape[1]), x, upper=True
    ),
    "pad": lambda x: F.pad(x, (1, x.shape[0])),
    "expand": lambda x: x[:1].expand(x.shape[1], -1, -1),
    "add": lambda x: x + x[0],
    "sum": lambda x: x.sum(1),
    "matmul": lambda x: x @ x.transpose(1, 2),
    "zeros": lambda x: torch.zeros(x.shape[0], x.shape[1] * 2),
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "index": lambda x: x[torch.arange(x.shape[0])],
    "number": lambda x: x * x.shape[0] + x.shape[1] / 2,
    "repeat": lambda x: x.repeat(2, 1, x.shape[0]),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x),
    "cumsum": lambda x: x.cumsum(0),
    "stack": lambda x: torch.stack([x, x]),
}


@pytest.mark.parametrize("name", OPS)
def test_a_rule_holds_for_all_sizes(name: str) -> None:
    """The symbolic layout, evaluated at other sizes, is eager's there; and nothing is assumed."""
    env, x = symbolic(4, 6, 8)
    before = len(env.decisions)
    with FakeMode(), Forms():
        out = OPS[name](x)
    assert len(env.decisions) == before, env.as_text()
    for shape in ((5, 7, 9), (2, 3, 4), (16, 2, 3)):
        wanted = OPS[name](torch.zeros(shape))
        values = {f"s{i}": n for i, n in enumerate(shape)}
        assert tuple(expr_of(s).evaluate(values) for s in out._sizes) == tuple(wanted.shape)
        assert tuple(expr_of(s).evaluate(values) for s in out._strides) == wanted.stride()


def test_a_graph_at_given_sizes() -> None:
    _, x = symbolic(4, 6)
    graph = Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    rows = graph.call_function(aten.sym_size.int, (node, 0))
    rows.meta["val"] = x._sizes[0]
    view = graph.call_function(aten.view.default, (node, [1, rows, -1]))
    view.meta["val"] = propagate(aten.view.default, (x, [1, x._sizes[0], -1]), {})
    graph.output((view, rows))
    gm = GraphModule(torch.nn.Module(), graph)
    assert is_symbolic(gm)
    at = at_sizes(gm, [torch.zeros(5, 3)])
    assert not is_symbolic(at)
    out, count = at(torch.ones(5, 3))
    assert out.shape == (1, 5, 3) and count == 5
    assert [n.op for n in at.graph.nodes] == ["placeholder", "call_function", "output"]


def test_shapes_by_decomposition_where_a_meta_kernel_wants_numbers() -> None:
    _, x = symbolic(4, 6)
    _, image = symbolic(2, 3, 8, 9)
    labels = from_real(torch.zeros(4, dtype=torch.int64), sizes=[x._sizes[0]])
    with FakeMode():
        assert tuple(map(str, torch.renorm(x, 2, 0, 1.0).shape)) == ("s0", "s1")
        assert [str(n) for n in aten.diagonal_copy.default(image, 0, 0, 1).shape[:2]] == [
            "s2",
            "s3",
        ]
        columns = F.unfold(image, 3, 1, 1, 2)
        assert str(columns.shape[0]) == "s0" and columns.shape[1] == 9 * image.shape[1]
        folded = aten.col2im.default(columns, image.shape[2:], [3, 3], [1, 1], [1, 1], [2, 2])
        assert folded.shape == image.shape
        assert F.multi_margin_loss(x, labels, reduction="none").shape == x.shape[:1]
    with pytest.raises(RuntimeError), FakeMode():
        F.multi_margin_loss(x, labels[:2])


@pytest.mark.parametrize("steps", [
    (("t_.default",), ("unsqueeze_.default", 1), ("squeeze_.dim", 1)),
    (("squeeze_.dim", 0), ("transpose_.default", 0, -1), ("squeeze_.dims", [1])),
    (("unsqueeze_.default", -1), ("squeeze_.default",), ("as_strided_.default", (2, 2), (1, 2))),
], ids=["t_", "transpose_", "as_strided_"])  # fmt: skip
def test_changes_of_shape_in_place(steps: tuple[Any, ...]) -> None:
    """They decide nothing about the sizes."""
    _, fake = symbolic(4, 6)
    real = torch.empty(4, 6)
    for name, *args in steps:
        packet, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, packet), overload)
        assert propagate(op, (fake, *args), {}) is fake
        op(real, *args)
        assert [int(n) for n in fake.shape] == list(real.shape)
        assert [int(n) for n in fake.stride()] == list(real.stride())
