"""Names of generated kernels, and labels of their launches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.kernel_names import MOST_LETTERS, head_of
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_runtime import Plan, as_python


def planned(fn: Callable[..., Any], *inputs: torch.Tensor, gpu: bool = False) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = f'File "model.py", line 7, in {fn.__name__}'
    return compile_graph(gm, options=InductorOptions(triton=gpu, simd_bytes=64))


def operators(plan: Plan) -> list[str]:
    return [re.sub("_[0-9a-f]{12,16}$", "", kernel.symbol) for kernel in plan.kernels]


def softmax_twice(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x + 1, -1) * 2


def test_names_are_made_of_operators() -> None:
    x = torch.randn(8, 40)
    assert operators(planned(softmax_twice, x)) == ["dovetail_add_softmax_mul"]
    assert operators(planned(lambda x: torch.log_softmax(x, -1), x)) == ["dovetail_log_softmax"]
    assert operators(planned(lambda x: x.t().contiguous(), x)) == ["dovetail_copy"]
    assert operators(planned(lambda x: torch.cumsum(x.exp(), 1), x)) == ["dovetail_exp_cumsum"]


def test_triton_names_tell_the_form_and_the_operators() -> None:
    x = torch.randn(8, 40)
    (name,) = operators(planned(softmax_twice, x, gpu=True))
    assert name == "reduce_persistent_add_softmax_mul"
    (name,) = operators(planned(lambda x: torch.relu(x) * 2, x, gpu=True))
    assert name == "pointwise_relu_mul"


def test_names_are_bounded() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        for op in (torch.sin, torch.cos, torch.exp, torch.tanh, torch.erf, torch.sqrt, torch.abs):
            x = op(x) + 1
            x = torch.floor(x).reciprocal() * x.log2() - torch.atan(x)
        return x

    (kernel,) = planned(long, torch.randn(8)).kernels
    assert len(kernel.symbol) <= len("dovetail_") + MOST_LETTERS + len("_") + 16
    assert kernel.symbol.startswith("dovetail_sin_add_")


def test_the_users_lines_do_not_split_equal_kernels() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def other(y: torch.Tensor) -> torch.Tensor:
        return y.sin() + 1

    x = torch.randn(64)
    (a,), (b,) = planned(one, x).kernels, planned(other, x).kernels
    assert a == b and hash(a) == hash(b) and a.source == b.source

    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.mm(x.sin() + 1, x), torch.mm(y.sin() + 1, y)

    plan = planned(twice, torch.randn(8, 8), torch.randn(8, 8))
    assert len(plan.kernels) <= 1  # two launches of one kernel, or one of both


def test_launches_tell_the_program_s_line() -> None:
    text = as_python(planned(softmax_twice, torch.randn(8, 40)))
    assert "  # add_softmax_mul (model.py:7)" in text


def test_the_head_of_a_kernel_tells_the_lines_of_all_its_nests() -> None:
    def two_lines(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.cos()

    gm = trace_aten(two_lines, torch.randn(64), decompositions=core_aten_table())
    for node in gm.graph.nodes:
        line = 8 if "cos" in node.name else 7
        node.meta["stack_trace"] = f'File "model.py", line {line}, in two_lines'
    for gpu in (False, True):
        plan = compile_graph(gm, options=InductorOptions(triton=gpu, simd_bytes=64))
        (kernel,) = plan.kernels
        assert " sin_cos (model.py:7, model.py:8): " in head_of(kernel, plan)


def test_the_head_of_a_kernel_tells_launches_and_shapes() -> None:
    plan = planned(softmax_twice, torch.randn(8, 40))
    (kernel,) = plan.kernels
    head = head_of(kernel, plan)
    assert head == "// add_softmax_mul (model.py:7): arg0 float32[8, 40], buf4 float32[8, 40]\n"
    assert "model.py" not in kernel.source

    def twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.mm(x.sin() + 1, x), torch.mm(y.sin() + 1, y)

    x = torch.randn(1024, 1024)
    plan = planned(twice, x, x.clone(), gpu=True)
    (kernel,) = plan.kernels
    assert head_of(kernel, plan).count("# sin_add (model.py:7): arg") == 2
