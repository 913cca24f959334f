"""Which size symbols a node reads, found in the IR and not in its text."""

from __future__ import annotations

import torch
from dovetail_guards.expr import symbol
from dovetail_guards.shape_env import ShapeEnv
from dovetail_inductor.loop_ir.expr import Builder
from dovetail_inductor.loop_ir.free_symbols import free_symbols
from dovetail_inductor.loop_ir.index import Var, constant, variable
from dovetail_inductor.loop_ir.loops import ExternCall, LoopNest, Strided
from dovetail_inductor.loop_ir.sizes import dim


def test_symbols_are_found_in_every_part_of_a_nest() -> None:
    env, b = ShapeEnv(), Builder()
    length, stride, offset, number = (dim(env, symbol(name)) for name in ("u0", "u1", "u2", "u3"))
    i = Var(0, length)
    load = b.load("arg0", variable(i) * stride + constant(offset), torch.float32)
    count = b.apply("cast", [b.constant(number, torch.int64)], torch.float32)
    body = b.apply("mul", [load, count])
    nest = LoopNest("buf0", (i,), (), None, body, variable(i), "origin")
    assert free_symbols(nest) == {"u0", "u1", "u2", "u3"}


def test_a_name_that_looks_like_a_symbol_is_none() -> None:
    b, i = Builder(), Var(0, 4)
    nest = LoopNest(
        "u0", (i,), (), None, b.load("u1", variable(i), torch.float32), variable(i), "u2"
    )
    assert free_symbols(nest) == set()
    call = ExternCall("aten::u3", ("u4", Strided("u5", (4,), (1,), 0)), (), ("u6",), True, "u7")
    assert free_symbols(call) == set()
