"""Elementwise operators on a GPU with 0-d CPU tensors: optimizers' step counters and rates.

There is no GPU here: graphs are traced for one, and what they compile to runs on the CPU, under
Triton's interpreter, with every device in the plan replaced by it.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.options import Gpu
from dovetail_prims import trace_aten
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_runtime.cpp_build import CppBuilder
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CallAten, CppKernel, LaunchCpp, LaunchTriton, Plan
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor, fx

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def compiled(function: Callable[..., Any], inputs: Sequence[Tensor], **options: Any) -> Plan:
    """The plan for tensors on a GPU, but for those of no dimension."""
    fakes = [
        FakeTensor.make(tuple(t.shape), t.stride(), t.dtype, GPU if t.dim() else CPU)
        for t in inputs
    ]
    gm = trace_aten(function, *fakes, decompositions=core_aten_table())
    return compile_graph(gm, options=InductorOptions(gpu=Gpu(), **options))


def here(value: Any) -> Any:
    """A plan, or a part of one, with the CPU in the place of every device."""
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, tuple):
        return tuple(map(here, value))
    if is_dataclass(value) and not isinstance(value, type):
        own = {f.name: here(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **own)
    return value


def on_cpu(plan: Plan) -> ReferenceExecutor:
    """What runs the plan here. In one slab those of two devices would overlap: everything gets
    memory of its own."""
    steps = tuple(
        replace(s, slab_offset=None) if hasattr(s, "slab_offset") else s for s in plan.steps
    )
    kernels = [k for k in plan.kernels if isinstance(k, CppKernel)]
    functions = CppBuilder(Knobs.from_environment()).build(kernels)
    plan = here(replace(plan, steps=steps, slab_bytes=()))
    return ReferenceExecutor(plan, functions, run_in_interpreter)


def check(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Plan:
    plan = compiled(function, inputs, **options)
    run = on_cpu(plan)
    expected = function(*[i.clone() for i in inputs])
    got = run(*[i.clone() for i in inputs])
    for g, e in zip(got, expected, strict=True):
        assert isinstance(g, Tensor)
        torch.testing.assert_close(g, e)
    return plan


def launches(plan: Plan) -> list[LaunchTriton]:
    return [s for s in plan.steps if isinstance(s, LaunchTriton)]


def number_parameters(plan: Plan) -> int:
    """How many parameters of the plan's kernels take a number."""
    signatures = [k.signature for k in plan.kernels if hasattr(k, "signature")]
    return sum(kind == "i64" for signature in signatures for _, kind in signature)


def test_a_number_of_every_kind() -> None:
    def function(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return x * a, x + b, torch.where(c, x, -x), x > a, b - x, torch.minimum(x, a)

    numbers = torch.tensor(0.3), torch.tensor(-7), torch.tensor(False)
    plan = check(function, torch.randn(50), *numbers)
    assert not any(isinstance(s, CallAten | LaunchCpp) for s in plan.steps)
    assert len(launches(plan)) == 1 and number_parameters(plan) == 3


def test_what_is_computed_of_them_is_computed_on_the_cpu() -> None:
    """As Adam does: corrections of a float64 power of the step, once and not for each element."""

    def function(p: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        step = step + 1
        correction = (1 - 0.999 ** step.double()) ** 0.5
        return p - 0.01 * p / (v.sqrt() / correction + 1e-8), step

    plan = check(function, torch.randn(4, 6), torch.rand(4, 6), torch.tensor(3.0))
    (launch,) = launches(plan)
    (kernel,) = (k for k in plan.kernels if k.symbol == launch.kernel)
    assert "pow" not in kernel.source and number_parameters(plan) == 1
    assert sum(isinstance(s, LaunchCpp) for s in plan.steps) == 1


def test_elements_of_a_cpu_tensor() -> None:
    def function(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        rates = torch.stack([a, b, a * b])
        return x * rates[1], y * rates[2], x + rates[0]

    plan = check(function, torch.randn(40), torch.randn(30), torch.tensor(2.0), torch.tensor(0.1))
    assert not any(isinstance(s, CallAten) for s in plan.steps)


def test_kernels_that_share_a_launch_are_given_their_own() -> None:
    def function(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return x * a, y * b

    plan = check(function, torch.randn(40), torch.randn(30), torch.tensor(2.0), torch.tensor(0.1))
    assert len(launches(plan)) == 1 and number_parameters(plan) == 2


def test_numbers_are_not_rounded_as_elements_are() -> None:
    """A float32 number beside half types enters with all its digits, as on the library's kernels;
    a sum of a product with it is rounded once."""

    def function(x: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        return (x * a,)

    plan = compiled(function, (torch.randn(64).bfloat16(), torch.tensor(1.001)))
    run = on_cpu(plan)
    x = torch.randn(64).bfloat16()
    (got,) = run(x, torch.tensor(1.001))
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, (x.float() * 1.001).bfloat16(), rtol=0, atol=0)


def test_after_a_product() -> None:
    """Whether the library computes it or a kernel of ours."""

    def function(x: Tensor, w: Tensor, a: Tensor) -> tuple[Tensor, ...]:
        return ((x @ w) * a,)

    inputs = torch.randn(8, 64), torch.randn(64, 32), torch.tensor(0.7)
    assert number_parameters(check(function, *inputs)) == 1
    plan = check(function, inputs[0].half(), inputs[1].half(), inputs[2])
    assert number_parameters(plan) == 1 and len(plan.steps) == 2  # memory, and a kernel of ours


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_known_of_a_cpu_tensor_is_computed_where_it_goes(exact: bool) -> None:
    """Positions and masks that a model makes on the CPU and moves: no copy between devices. Not so
    what another device would round otherwise."""
    graph = fx.Graph()
    aten = torch.ops.aten

    def call(op: Any, *args: Any, like: Tensor, device: torch.device = CPU, **kwargs: Any) -> Any:
        node = graph.call_function(op, args, kwargs)
        shape, stride = tuple(like.shape), like.stride()
        node.meta["val"] = FakeTensor.make(shape, stride, like.dtype, device)
        return node

    wanted = torch.arange(24).reshape(4, 6)
    x = graph.placeholder("x")
    x.meta["val"] = FakeTensor.make((4, 6), (6, 1), torch.float32, GPU)
    flat = call(aten.arange.start_step, 0, 24, 1, like=wanted.view(24))
    places = call(aten.view.default, flat, [4, 6], like=wanted)
    if not exact:
        wanted = wanted.float().cos()
        places = call(aten.cos.default, places, like=wanted)
    moved = call(aten._to_copy.default, places, like=wanted, device=GPU)
    total = call(aten.add.Tensor, x, moved, like=wanted.float(), device=GPU)
    graph.output((total,))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    plan = compile_graph(gm, options=InductorOptions(gpu=Gpu()))
    assert not any(isinstance(s, CallAten) for s in plan.steps) == exact
    assert any(isinstance(s, LaunchCpp) for s in plan.steps) != exact
    given = torch.randn(4, 6)
    (got,) = on_cpu(plan)(given)
    assert isinstance(got, Tensor)
    torch.testing.assert_close(got, given + wanted)
