"""Dtypes that eager's kernels refuse on a GPU are refused by what is compiled, with its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dovetail

pytestmark = pytest.mark.gpu
F = torch.nn.functional
DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.complex64)

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "relu": F.relu, "abs": torch.abs, "argmax": torch.argmax, "neg": torch.neg,
    "softmax": lambda x: x.softmax(0), "dot": lambda x: torch.dot(x, x), "mean": torch.mean,
    "isin": lambda x: torch.isin(x, x > 0), "ldexp": lambda x: torch.ldexp(x, x),
    "gather": lambda x: x.gather(0, x), "embedding": lambda x: F.embedding(x, x[:, None]),
    "shift": lambda x: torch.bitwise_left_shift(x, x), "cumsum": lambda x: x.clone().cumsum_(0),
    "sort": torch.sort, "add in place": lambda x: x.clone().add_(1.5), "floor": torch.floor,
    "product": lambda x: x[:, None] @ x[None], "hypot": lambda x: torch.hypot(x, x),
    "norm": lambda x: F.layer_norm(x[None], [3], x, x),
    "loss": lambda x: F.nll_loss(x[None], x[:1]),
}  # fmt: skip


def _raised(call: Callable[[Tensor], Any], x: Tensor) -> type[Exception] | None:
    try:
        call(x)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_refused_dtypes(name: str) -> None:
    for dtype in DTYPES:
        if name in ("gather", "embedding", "loss") and dtype is torch.int64:
            continue  # (valid indices, or refused by sizes)
        x = torch.ones(3, dtype=dtype, device="cuda")
        # (What tracing refuses runs as it is, and raises there.)
        compiled = dovetail.compile(CALLS[name], options={"on_error": "run_uncompiled"})
        ours = _raised(compiled, x)
        assert ours is _raised(CALLS[name], x), dtype


def test_the_device_is_left_working_and_its_random_numbers_as_they_were() -> None:
    state = torch.cuda.get_rng_state()
    index = torch.zeros(1, dtype=torch.int64, device="cuda")
    table = torch.ones(1, 4, device="cuda")
    assert torch.equal(dovetail.compile(F.embedding)(index, table), table)
    assert torch.equal(torch.cuda.get_rng_state(), state)
