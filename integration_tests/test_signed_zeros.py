"""The sign of a zero, as eager gives it.

What is computed with a number (clamp, relu6, hardtanh) keeps the sign of its operand. Of the zeros
of two tensors eager's maximum and minimum give the second in vectors, and the first in what is left
over: here it is the second everywhere. (fmax, fmin, amax and sorting have no such rule in eager,
whose kernels differ by dtype; nothing is promised of them.)
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dovetail

F = torch.nn.functional
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu6": F.relu6, "hardtanh to 1": lambda x: F.hardtanh(x, 0.0, 1.0),
    "hardtanh from -1": lambda x: F.hardtanh(x, -1.0, 0.0), "clamp_min": lambda x: x.clamp(min=0.0),
    "clamp_min of -0": lambda x: x.clamp(min=-0.0), "clamp_max": lambda x: x.clamp(max=0.0),
    "clamp_max of -0": lambda x: x.clamp(max=-0.0), "clamp": lambda x: x.clamp(0.0, 1.0),
    "clamp below": lambda x: x.clamp(-1.0, -0.0), "clamp in place": lambda x: (x * 1).clamp_(0, 1),
    "threshold": lambda x: F.threshold(x, 0.0, 0.0), "hardshrink": F.hardshrink,
    "leaky_relu": F.leaky_relu, "elu": F.elu, "hardswish": F.hardswish, "abs": torch.abs,
    "sign": torch.sign, "round": lambda x: (x - 0.2).round(), "trunc": lambda x: (x - 0.2).trunc(),
    "fmod": lambda x: torch.fmod(x, 2.0), "remainder": lambda x: torch.remainder(x, 2.0),
    "nan_to_num": torch.nan_to_num, "neg": torch.neg, "scaled": lambda x: x * -1, "gelu": F.gelu,
    "silu": F.silu, "tanh": torch.tanh, "sqrt": torch.sqrt, "prod": lambda x: x[:1].prod(),
    "floored": lambda x: torch.div(x, 2.0, rounding_mode="floor"), "sum": torch.sum,
}  # fmt: skip
OF_TWO = {"maximum": torch.maximum, "minimum": torch.minimum, "add": torch.add, "sub": torch.sub,
          "copysign": torch.copysign, "clamp to a tensor": lambda x, y: torch.clamp(x, min=y),
          "mul": torch.mul}  # fmt: skip


def _zeros(dtype: torch.dtype, size: int) -> tuple[Tensor, Tensor]:
    """-0 and +0, each the other way round in the second."""
    x = torch.zeros(2, size, dtype=dtype)
    x[0] = -0.0
    return x, -x


@pytest.mark.parametrize("size", [1, 64, 67])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_tensor(dtype: torch.dtype, size: int) -> None:
    x, _ = _zeros(dtype, size)
    eager = {name: f(x.clone()) for name, f in OF_ONE.items()}

    @dovetail.compile(fullgraph=True)
    def all_of(x: Tensor) -> dict[str, Tensor]:
        return {name: f(x) for name, f in OF_ONE.items()}

    for name, ours in all_of(x).items():
        assert torch.equal(torch.signbit(ours), torch.signbit(eager[name])), name


@pytest.mark.parametrize("size", [64, 67])
@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_two_tensors(dtype: torch.dtype, size: int) -> None:
    x, y = _zeros(dtype, size)
    even = _zeros(dtype, 64)  # (all of it in eager's vectors)
    eager = {name: torch.signbit(f(*even))[:, :1] for name, f in OF_TWO.items()}

    @dovetail.compile(fullgraph=True)
    def all_of(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {name: f(x, y) for name, f in OF_TWO.items()}

    for name, ours in all_of(x, y).items():
        assert torch.equal(torch.signbit(ours), eager[name].expand(2, size)), name
