"""Breadth of the whole pipeline: the families of the capture sweep, compiled with gradients.

`python integration_tests/sweep_models.py transformers bert gpt2 ...` (or `timm`; names left out:
all) compiles each family's model (evaluation mode, gradients on) down to kernels, and compares
outputs and parameter gradients of two calls with eager. Where they differ by more than rounding,
both are measured against float64, and ours may err at most three times as much.

`--backend aot_eager` leaves code generation out, which is several times faster; `--backend gpu` is
the whole pipeline with model and inputs on a GPU, whose products are not rounded to TF32.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from family_sweep import Row, Sweep, first_line, where_raised
from model_families import TooLong, build, leaves
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import dovetail

ROUNDING = 1e-4  # relative to a tensor's largest value
FLOAT64_FACTOR = 3.0
GPU = "gpu"


def step(model: nn.Module, call: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """Outputs, then the gradients of all parameters (zeros for those without)."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    outputs = list(leaves(call(**inputs)))
    losses = [t.double().nan_to_num().square().mean() for t in outputs if differentiable(t)]
    loss = torch.stack(losses).sum() if losses else torch.zeros((), requires_grad=True)
    loss.backward()
    gradients = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in model.parameters()]
    return [t.detach().clone() for t in [*outputs, *gradients]]


def differentiable(tensor: Tensor) -> bool:
    """True if a loss may depend on it."""
    return tensor.is_floating_point() and tensor.requires_grad


def error(found: Tensor, reference: Tensor) -> float:
    """Largest difference, relative to the reference's largest value (and a floor)."""
    if found.shape != reference.shape:
        return float("inf")
    if reference.numel() == 0:
        return 0.0
    found, reference = found.double().nan_to_num(), reference.double().nan_to_num()
    return float((found - reference).abs().max() / reference.abs().max().clamp_min(1e-3))


def same_layout(found: Tensor, expected: Tensor) -> bool:
    """Of one type and laid out alike; the stride of a dimension of one element says nothing."""
    strides = zip(expected.shape, found.stride(), expected.stride(), strict=False)
    return found.dtype is expected.dtype and all(n == 1 or f == e for n, f, e in strides)


def float64_step(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    """The step of a float64 copy."""
    wide = copy.deepcopy(model).double()
    fed = {
        k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }
    return step(wide, wide, fed)


def difference(
    model: nn.Module, inputs: dict[str, Any], found: list[Tensor], expected: list[Tensor]
) -> str:
    """What differs from eager by more than rounding explains; empty if nothing does."""
    if len(found) != len(expected):
        return f"{len(found)} tensors, eager gives {len(expected)}"
    suspects = [
        i
        for i, (f, e) in enumerate(zip(found, expected, strict=True))
        if not same_layout(f, e) or error(f, e) > ROUNDING
    ]
    for i in suspects:
        if not same_layout(found[i], expected[i]):
            return f"tensor {i} of {len(found)}: {found[i].dtype} {found[i].stride()}"
    if not suspects:
        return ""
    try:
        reference = float64_step(model, inputs)
    except RuntimeError:  # a model that casts to float32 by itself
        first = suspects[0]
        return f"tensor {first} of {len(found)}: {error(found[first], expected[first]):.1e}"
    for i in suspects:
        ours, eager = error(found[i], reference[i]), error(expected[i], reference[i])
        if ours > FLOAT64_FACTOR * max(eager, ROUNDING):
            return f"tensor {i} of {len(found)}: {ours:.1e} from float64, eager {eager:.1e}"
    return ""


def on_gpu(model: nn.Module, inputs: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    """Both on a GPU, where float32 is float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    moved = pytree.tree_map(lambda v: v.cuda() if isinstance(v, Tensor) else v, inputs)
    return model.cuda(), moved


def sweep_one(suite: str, family: str, backend: str = "dovetail") -> Row:
    """Build, run eager, compile, compare."""
    try:
        model, inputs, _ = build(suite, family)
        if backend == GPU:
            model, inputs = on_gpu(model, inputs)
    except TooLong:
        return Row(suite, family, "not built", "time limit")
    except Exception as failure:
        return Row(suite, family, "not built", first_line(failure))
    eager = copy.deepcopy(model)
    try:
        step(eager, eager, inputs)
        expected = step(eager, eager, inputs)
        again = step(eager, eager, inputs)
    except Exception as failure:
        return Row(suite, family, "not built", first_line(failure))
    if any(error(a, b) > ROUNDING for a, b in zip(again, expected, strict=True)):
        return Row(suite, family, "not built", "eager differs from call to call")
    compiled = dovetail.compile(model, backend="dovetail" if backend == GPU else backend)
    try:
        for _ in range(2):
            found = step(model, compiled, inputs)
            what = difference(eager, inputs, found, expected)
            if what:
                return Row(suite, family, "not equal", what)
    except TooLong:
        return Row(suite, family, "error", "time limit in compiling")
    except Exception as failure:
        return Row(suite, family, "error", where_raised(failure))
    report = dovetail.report(compiled)
    text = f"{report.graphs} graphs, {report.kernels} kernels, {report.extern_calls} library calls"
    plain = [*report.recompiles, *report.plain_frames]
    if report.breaks or plain:
        reason = report.breaks[0].as_text() if report.breaks else plain[0]
        return Row(suite, family, "break", f"{text}: {' '.join(reason.split())[:300]}")
    return Row(suite, family, "ok", text)


SWEEP = Sweep(__file__, __doc__ or "", sweep_one, 120, "backend", ("dovetail", "aot_eager", GPU))

if __name__ == "__main__":
    SWEEP.main()
