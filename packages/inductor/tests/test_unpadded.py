"""Padded products that a kernel of ours writes without their padding: which, and that they are
right in Triton's interpreter and compile for an H100."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_inductor import InductorOptions, compile_graph
from dovetail_inductor.lowering import aligned
from dovetail_inductor.products import unpadded
from dovetail_inductor.scheduler.kernels import ProductTiles
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.graphs.record import trace_aten
from dovetail_runtime.plan import Allocate, CallAten, Plan, TritonKernel
from kernel_interpreter import run_in_interpreter
from reference_executor import ReferenceExecutor
from torch import Tensor


def half(*shape: int) -> Tensor:
    # not bfloat16: Triton's interpreter truncates to it, where a GPU rounds
    return torch.randn(*shape).half() / 4


def head(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


def head_and_loss(x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """As a language model: the logits, and a loss that reads them by row and by target."""
    logits = (x @ w.t()).view(3, -1, w.shape[0])
    return logits, F.cross_entropy(logits.flatten(0, 1).float(), target)


def turned(x: Tensor, w: Tensor) -> Tensor:
    """The copy does not stand as the product does."""
    return (x @ w.t()).view(3, -1, w.shape[0]).transpose(0, 1).contiguous()


def padding_read(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The product has more columns than are copied, and they are read."""
    y = x @ w.t()
    return y[:, :29].clone(), y.sum(0)


def compiled(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> Plan:
    gm = trace_aten(fn, *inputs, decompositions=core_aten_table())
    return compile_graph(gm, list(inputs), options=InductorOptions(triton=True))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products count as large ones."""
    monkeypatch.setattr(unpadded, "TILES", ProductTiles(16, 16, 16, 4, 2))
    monkeypatch.setattr(unpadded, "LEAST_TILES", 1)
    monkeypatch.setattr(unpadded, "LEAST_OF_PEAK", 0)
    monkeypatch.setattr(aligned, "PRODUCT_RATE", 1.0)


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], bool]] = {
    "head": (head, (half(36, 16), half(37, 16)), True),
    "one_row": (head, (half(1, 16), half(37, 16)), True),  # a product of few rows
    "loss": (head_and_loss, (half(36, 16), half(37, 16), torch.randint(0, 37, (36,))), True),
    "turned": (turned, (half(36, 16), half(37, 16)), False),
    "padding_read": (padding_read, (half(36, 16), half(37, 16)), False),
    "no_padding": (head, (half(36, 16), half(40, 16)), False),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(small: None, name: str) -> None:
    fn, inputs, ours = CASES[name]
    plan = compiled(fn, inputs)
    assert any(isinstance(s, CallAten) for s in plan.steps) is not ours
    got = ReferenceExecutor(plan, launch_triton=run_in_interpreter)(*inputs)
    wanted = fn(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for mine, eager in zip(got, wanted, strict=True):
        assert isinstance(mine, Tensor)
        assert mine.dtype == eager.dtype and mine.stride() == eager.stride()
        torch.testing.assert_close(mine, eager, rtol=4e-3, atol=4e-3)


def head_of(tokens: int, width: int, classes: int) -> Plan:
    x = torch.empty(tokens, width, dtype=torch.bfloat16, device="meta")
    w = torch.empty(classes, width, dtype=torch.bfloat16, device="meta")
    return compiled(head, (x, w))


def test_a_large_head_is_in_memory_once(build_for_h100: Any) -> None:
    plan = head_of(4096, 768, 50257)
    assert not any(isinstance(s, CallAten) for s in plan.steps)
    assert [s.spec.shape for s in plan.steps if isinstance(s, Allocate)] == [(4096, 50257)]
    kernels = {k.symbol: k for k in plan.kernels if isinstance(k, TritonKernel)}
    binaries = build_for_h100(kernels.values())
    assert all(binary.shared_bytes <= 227 * 1024 for binary in binaries.values())


@pytest.mark.parametrize(("tokens", "width"), [(128, 768), (4096, 4096)])
def test_the_library_stays_where_it_pays(tokens: int, width: int) -> None:
    """Few tiles fill no GPU; much to multiply hides the copy."""
    assert any(isinstance(s, CallAten) for s in head_of(tokens, width, 50257).steps)


def test_the_library_stays_where_little_memory_is_saved() -> None:
    def model(x: Tensor, w: Tensor, up: Tensor) -> Tensor:
        return ((x @ up).relu() @ up.t()) @ w.t()

    x, w, up = (
        torch.empty(*shape, dtype=torch.bfloat16, device="meta")
        for shape in ((8192, 768), (20001, 768), (768, 80000))
    )
    assert sum(isinstance(s, CallAten) for s in compiled(model, (x, w, up)).steps) == 3
