"""The loop IR: index algebra against brute force, handlers, text of small graphs."""

import itertools
import random

import pytest
import torch
from dovetail_inductor.loop_ir.expr import Builder, IndexCheck
from dovetail_inductor.loop_ir.handlers import Printer, count, interpret
from dovetail_inductor.loop_ir.index import FloorDiv, Index, Mod, Var, constant, variable
from dovetail_inductor.loop_ir.ops import SCALAR_OPS
from dovetail_inductor.lowering.lower import lower
from dovetail_inductor.lowering.reshapes import reshape_indices, reshape_strides
from dovetail_inductor.lowering.rules import RULES
from dovetail_inductor.targets.cpu import syntax
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.dialects import opsets


def value(index: Index, env: dict[int, int]) -> int:
    total = index.const
    for atom, c in index.terms:
        if isinstance(atom, Var):
            total += c * env[atom.id]
        elif isinstance(atom, FloorDiv):
            total += c * (value(atom.inner, env) // atom.divisor)
        else:
            assert isinstance(atom, Mod)
            total += c * (value(atom.inner, env) % atom.divisor)
    return total


def test_index_algebra_against_brute_force():
    rng = random.Random(7)
    for _ in range(300):
        loop = [Var(i, rng.choice([1, 2, 3, 4, 6, 8])) for i in range(3)]
        index = constant(rng.randint(-4, 4))
        wanted = [index.const]
        makers = [lambda e, k=index.const: k]
        for _ in range(rng.randint(1, 4)):
            kind, n, v = rng.choice("+*/%"), rng.choice([1, 2, 3, 4, 6, 12]), rng.choice(loop)
            last = makers[-1]
            if kind == "+":
                index = index + variable(v) * n
                makers.append(lambda e, f=last, v=v, n=n: f(e) + e[v.id] * n)
            elif kind == "*":
                index = index * n
                makers.append(lambda e, f=last, n=n: f(e) * n)
            elif kind == "/":
                index = index.floordiv(n)
                makers.append(lambda e, f=last, n=n: f(e) // n)
            else:
                index = index.mod(n)
                makers.append(lambda e, f=last, n=n: f(e) % n)
        low, high = index.bounds
        for point in itertools.product(*(range(v.size) for v in loop)):
            env = {v.id: p for v, p in zip(loop, point, strict=True)}
            wanted = makers[-1](env)
            assert value(index, env) == wanted, (str(index), env)
            assert low <= wanted <= high
    assert len(str(index)) > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [((4, 6), (24,)), ((24,), (4, 6)), ((2, 3, 4), (6, 4)), ((2, 12), (4, 6)), ((1, 5), (5, 1)),
     ((2, 3, 4), (4, 3, 2))],
)  # fmt: skip
def test_reshape_indices(old, new):
    x = torch.arange(torch.Size(old).numel()).view(old)
    y = x.reshape(new)
    loop = [Var(i, n) for i, n in enumerate(new)]
    indices = reshape_indices(old, new)(tuple(variable(v) for v in loop))
    for point in itertools.product(*(range(n) for n in new)):
        at = tuple(value(i, dict(enumerate(point))) for i in indices)
        assert x[at] == y[point]


def test_reshape_strides_agree_with_torch():
    x = torch.empty(4, 6, 5).transpose(0, 1)
    for new in [(6, 20), (6, 2, 2, 5), (24, 5), (6, 4, 5, 1), (3, 2, 4, 5)]:
        try:
            wanted = x.view(new).stride()
        except RuntimeError:
            wanted = None
        got = reshape_strides(tuple(x.shape), x.stride(), new)
        assert (got is None) == (wanted is None)
        if got is not None and wanted is not None:
            assert all(n == 1 or a == b for n, a, b in zip(new, got, wanted, strict=True))


def test_every_scalar_op_has_a_spelling():
    for op in SCALAR_OPS:
        check = IndexCheck(4, 0, "IndexError", False) if op == "check_index" else None
        assert syntax.op_text(op, ["a", "b", "c"], torch.float64, torch.float32, check, vector=True)


def test_core_aten_is_lowered_or_known_to_be_extern():
    assert set(opsets.CORE_ATEN) - set(RULES) <= set(opsets.EXTERN)


def test_builder_interns_and_folds():
    b = Builder()
    i = Var(0, 10)
    x = b.load("a", variable(i), torch.float32)
    assert x is b.load("a", variable(i), torch.float32)
    one = b.constant(1, torch.float32)
    assert b.apply("mul", [x, one]) is x
    zero = b.constant(0.0, torch.float32)
    assert b.apply("add", [x, zero]) is not x  # -0.0 + 0.0 is 0.0
    assert zero is not b.constant(-0.0, torch.float32)
    below = b.apply("lt", [b.index_value(variable(i)), b.constant(10, torch.int64)])
    assert b.apply("where", [below, x, one]) is x
    with pytest.raises(ValueError, match="mixed dtypes"):
        b.apply("add", [x, b.constant(1, torch.int64)])
    printer = Printer()
    interpret([b.apply("exp", [b.apply("add", [x, x])])], printer)
    assert printer.lines == [
        "%0: f32 = load a[i0]", "%1: f32 = add(%0, %0)", "%2: f32 = exp(%1)",
    ]  # fmt: skip
    assert count([b.apply("add", [x, x])]).loads == 1


def test_text_of_softmax():
    x = torch.empty(4, 8)
    gm = trace_aten(lambda x: torch.softmax(x, -1), x, decompositions=core_aten_table())
    text = lower(gm).as_text()
    assert "reduce i2 < 8" in text and "max(%0)" in text and "= sum(" in text
    assert text.count("buffer buf") == 4 and "output" in text


def test_text_of_transposed_add():
    gm = trace_aten(lambda x, y: x + y.permute(1, 0), torch.empty(4, 8), torch.empty(8, 4))
    assert lower(gm).as_text() == (
        "input arg0: f32[4, 8] strides [8, 1]\n"
        "input arg1: f32[8, 4] strides [4, 1]\n"
        "buffer buf2: f32[4, 8] strides [8, 1]\n"
        "for i0 < 4, i1 < 8:  # add_tensor\n"
        "    %0: f32 = load arg0[8*i0 + i1]\n"
        "    %1: f32 = load arg1[i0 + 4*i1]\n"
        "    %2: f32 = add(%0, %1)\n"
        "    buf2[8*i0 + i1] = %2\n"
        "output buf2[4, 8]\n"
    )
