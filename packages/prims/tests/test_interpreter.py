"""CORE_ATEN -> PRIMS, and the interpreter that says what PRIMS means."""

import math

import prims_interpreter
import pytest
import torch
from dovetail_prims.decompositions import core_aten_table, prims_table
from dovetail_prims.decompositions.apply import apply_table
from dovetail_prims.dialects.opsets import CORE_ATEN, EXTERN, PRIMS
from dovetail_prims.graphs.record import trace_aten
from eager_oracle import assert_matches_eager, name_of
from prims_interpreter import PrimsError, interpret
from torch.fx import Graph, GraphModule

aten = torch.ops.aten
F = torch.nn.functional


def check(op, args, kwargs=None, **flags):
    seen = assert_matches_eager(prims_table(), op, args, kwargs or {}, **flags)
    left = {name_of(o) for o in seen} - set(PRIMS)
    assert not left, f"{op} leaves {left}"


def test_every_prim_has_a_meaning_and_every_other_core_op_an_entry():
    assert set(PRIMS) - set(EXTERN) == set(prims_interpreter.RULES)
    entries = {name_of(op) for op in prims_table()}
    assert set(CORE_ATEN) - set(PRIMS) <= entries <= set(CORE_ATEN)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)


def draw(*shape, dtype):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(1, 9, shape).to(dtype)
    return torch.randn(shape, dtype=torch.float64).to(dtype)


ARITHMETIC = ("add", "mul", "sub", "div", "eq", "lt", "ge")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("other", DTYPES, ids=str)
def test_promotion_and_broadcast(dtype, other):
    torch.manual_seed(0)
    for a, b in (((3, 4), (4,)), ((3, 1), (1, 4)), ((), (3,)), ((3,), ()), ((2, 3), (2, 3))):
        x, y = draw(*a, dtype=dtype), draw(*b, dtype=other)
        for name in ARITHMETIC:
            if name == "sub" and torch.bool in (dtype, other):
                continue
            check(getattr(aten, name).Tensor, [x, y])
        check(aten.maximum.default, [x, y])
        check(aten.where.self, [draw(*a, dtype=torch.bool), x, y])
        check(aten.logical_and.default, [x, y])
        check(aten.logical_xor.default, [x, y])
    x = draw(3, 4, dtype=dtype)
    check(aten.cat.default, [[x, draw(3, 2, dtype=other), torch.empty(0)], 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_and_alpha(dtype):
    torch.manual_seed(0)
    x, y = draw(3, 4, dtype=dtype), draw(4, dtype=dtype)
    for n in (2, 0.1, -1.5):
        for name in ("add", "mul", "div"):
            check(getattr(aten, name).Tensor, [x, n])
        for name in ("eq", "ne", "lt", "le", "gt", "ge"):
            check(getattr(aten, name).Scalar, [x, n])
        if dtype != torch.bool:
            check(aten.sub.Tensor, [n, x])
            check(aten.remainder.Scalar, [x, n])
            check(aten.fmod.Scalar, [x, n])
    if dtype != torch.bool:
        check(aten.add.Tensor, [x, y], {"alpha": 2})
        check(aten.sub.Tensor, [x, y], {"alpha": 3})
        for mode in (None, "floor", "trunc"):
            check(aten.div.Tensor_mode, [x, y.abs() + 1], {"rounding_mode": mode})


UNARY = ("relu", "sigmoid", "rsqrt", "reciprocal", "logical_not", "isnan", "isinf", "exp", "erf")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    torch.manual_seed(0)
    if name == "relu" and dtype == torch.bool:
        return
    op = getattr(aten, name).default
    for shape in ((3, 4), (), (0, 2)):
        check(op, [draw(*shape, dtype=dtype)])
    if dtype.is_floating_point:
        check(op, [torch.tensor([0.0, math.inf, -math.inf, math.nan, -1.0, 2.0], dtype=dtype)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype):
    torch.manual_seed(0)
    for shape in ((3, 4), ()):
        x = draw(*shape, dtype=dtype)
        for dim in ([0], [-1], None, []):
            check(aten.sum.dim_IntList, [x, dim, True])
            check(aten.sum.dim_IntList, [x, dim], {"dtype": torch.float32})
        for dim in ([0], [-1]):
            check(aten.any.dims, [x, dim])
            check(aten.all.dims, [x, dim, True])
            check(aten.amax.default, [x, dim])
        check(aten.any.dims, [x])
        check(aten.amin.default, [x])
        check(aten.prod.dim_int, [x, 0])
        check(aten.cumsum.default, [x, 0])
        check(aten.cumsum.default, [x, 0], {"dtype": torch.float64})
        if dtype != torch.bool:
            check(aten.argmax.default, [x])
            check(aten.argmin.default, [x, 0, True])
        if dtype.is_floating_point:
            for correction in (None, 0, 1.5):
                check(aten.var_mean.correction, [x, [0]], {"correction": correction})
    check(aten.all.dims, [torch.ones(3, dtype=torch.uint8), [0]])


def test_views_indexing_creation():
    x = torch.randn(2, 3, 4)
    for dim, index in ((1, 2), (-1, -1), (0, 0)):
        check(aten.select.int, [x, dim, index])
        check(aten.select_scatter.default, [x, torch.zeros_like(x.select(dim, index)), dim, index])
        check(aten.select.int, [x.transpose(0, 2), dim, index])
    for dim in (0, 1, -1):
        check(aten.unsqueeze.default, [x.transpose(0, 2), dim])
    check(aten.squeeze.dims, [torch.randn(1, 3, 1).transpose(0, 1), [1, 2, 0]])
    check(aten.alias.default, [x.transpose(0, 2)])
    index = torch.tensor([[0, 1, 1]])
    check(aten.scatter.value, [torch.zeros(2, 3), 0, index, 2.5])
    check(aten.embedding.default, [x[0], index])
    check(aten.scalar_tensor.default, [2.5])
    check(aten.scalar_tensor.default, [2], {"dtype": torch.int32})
    for value in (2, 2.5, True):
        check(aten.full.default, [[2, 3], value])
    check(aten.arange.start_step, [0, 5, 2])
    check(aten.arange.start_step, [0, 5.5, 2])


def attention(x, w, mask):
    q, k, v = (x @ w).split(4, -1)
    scores = q @ k.transpose(-1, -2) * 0.5
    scores = scores.masked_fill(mask, float("-inf"))
    return F.layer_norm(scores.softmax(-1) @ v, (4,)).relu()


def lookup_loss(table, ids, target):
    h = F.embedding(ids, table)
    h = torch.cat([h.flip(1), F.pad(h, (1, -1))], 1)
    logits = h.mean(1) + h.amax(1)
    best = logits.argmax(-1)
    return (
        F.cross_entropy(logits, target),
        best,
        logits.cumsum(0).var(0),
        h.gather(1, ids[:, :, None]),
    )


def image(x, w, gamma):
    h = F.conv2d(x, w, padding=1)
    mean, var = torch.zeros(4), torch.ones(4)
    h = F.hardswish(F.batch_norm(h, mean, var, gamma, gamma))
    return F.interpolate(h, scale_factor=2, mode="bilinear"), h[:, 1], h.sum((2, 3)).tril()


def programs():
    torch.manual_seed(0)
    ids = torch.tensor([[0, 3, 1], [2, 2, 4]])
    mask = torch.ones(5, 5).triu(1).bool()
    return [
        (attention, (torch.randn(2, 5, 4), torch.randn(4, 12), mask)),
        (lookup_loss, (torch.randn(5, 6), ids, torch.tensor([1, 5]))),
        (image, (torch.randn(2, 3, 4, 4), torch.randn(4, 3, 3, 3), torch.rand(4))),
    ]


@pytest.mark.parametrize("program", range(3))
def test_programs_down_to_prims(program):
    """eager = core graph = PRIMS graph by the interpreter."""
    function, args = programs()[program]
    core = trace_aten(function, *args, decompositions=core_aten_table())
    with pytest.raises(PrimsError):
        interpret(core, *args)
    prims = apply_table(core, prims_table())
    ours, theirs = interpret(prims, *args), function(*args)
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for a, b in pairs:
        assert a.dtype == b.dtype and torch.allclose(a, b, atol=1e-5)
    again = prims(*args)
    for a, b in zip(again, theirs, strict=True) if isinstance(theirs, tuple) else [(again, theirs)]:
        assert torch.allclose(a, b, atol=1e-5)


def graph_of(op, *args):
    graph = Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(len(args))]
    graph.output(graph.call_function(op, tuple(inputs)))
    return GraphModule({}, graph)


def test_interpreter_refuses_what_is_not_prims():
    x = torch.randn(3)
    for op, args, words in (
        (aten.relu.default, (x,), "relu.default is not in PRIMS"),
        (aten.add.Tensor, (x, torch.randn(1)), "shapes differ"),
        (aten.add.Tensor, (x, x.double()), "dtypes differ"),
        (aten.exp.default, (torch.arange(3),), "of torch.int64"),
        (math.sqrt, (x,), "is not in PRIMS"),
    ):
        with pytest.raises(PrimsError, match=words):
            interpret(graph_of(op, *args), *args)


def test_interpreter_index_and_scatter_ops_equal_eager():
    torch.manual_seed(0)
    x, index = torch.randn(3, 4), torch.tensor([[2, 0, 1, 2], [0, 0, 1, 1]])
    src, rows = torch.randn(2, 4), torch.tensor([0, 2, 0])
    rules = prims_interpreter.RULES
    for name, args in {
        "gather.default": (x, 0, index),
        "scatter.src": (x, 1, index[:, :2], src),
        "scatter_add.default": (x, 0, index, src),
        "index_put.default": (x, [rows], torch.randn(3, 4), True),
        "index.Tensor": (x, [None, rows]),
        "slice_scatter.default": (x, torch.zeros(2, 4), 0, 1, 3, 1),
        "diagonal_scatter.default": (x, torch.zeros(3), 1),
        "as_strided_scatter.default": (x, torch.zeros(2), [2], [5], 1),
        "constant_pad_nd.default": (x, [1, -2, 0, 3], 2.0),
        "flip.default": (x, [0, -1]),
        "argmax.default": (torch.tensor([1.0, math.nan, 5.0, math.nan]), 0),
        "argmin.default": (torch.tensor([[1.0, 0.0, 0.0], [2.0, 2.0, 3.0]]), 1, True),
        "all.dims": (x > 0, [1]),
    }.items():
        op, overload = name.split(".")
        assert torch.equal(rules[name](*args), getattr(getattr(aten, op), overload)(*args)), name
