"""What first calls wait for: not for PyTorch's own compiler, which takes seconds to import and is
none of ours, nor in a backward for what could be compiled beside the forward."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from dovetail_runtime import KernelBuild
from dovetail_runtime.plan import Plan
from torch.fx import GraphModule

import dovetail
from dovetail.pipeline import CompilerBackend

# Functions of an image and of rows, forward and backward; of each PyTorch's own rule for shapes
# (its meta kernel) is written in Python, or once was.
FUNCTIONS = (
    "F.interpolate(image, scale_factor=2, mode='bilinear')",
    "F.interpolate(image, size=3, mode='bicubic')",
    "F.grid_sample(image, torch.rand(2, 3, 3, 2), align_corners=False)",
    "F.group_norm(image, 2)",
    "F.group_norm(image.contiguous(memory_format=torch.channels_last), 2).square()",
    "F.prelu(image, torch.full((4,), 0.1))",
    "F.unfold(image, 3)",
    "F.fold(F.unfold(image, 2), (4, 4), 2)",
    "F.binary_cross_entropy(rows.sigmoid(), target)",
    "F.binary_cross_entropy_with_logits(rows, target, pos_weight=target[0])",
    "F.smooth_l1_loss(rows, target)",
    "F.huber_loss(rows, target)",
    "F.soft_margin_loss(rows, target)",
    "F.multi_margin_loss(rows, torch.tensor([1, 2, 0, 1]))",
    "F.logsigmoid(rows)",
    "F.multilabel_soft_margin_loss(rows, target)",
    "torch.zeros(5, 6).index_add(0, torch.tensor([1, 2, 0, 1]), rows)",
    "(rows > 0).count_nonzero() * rows",
    "rows[torch.tril_indices(4, 4)[0]]",
    "torch.deg2rad(rows) + torch.special.i0e(rows) + torch.special.entr(target)",
    "torch.addmv(rows[:, 0], rows, rows[0]) + torch.addr(rows, rows[:, 0], rows[0]).sum()",
    "torch.hann_window(6) * torch.normal(0.0, 1.0, (4, 6)) * rows",
    "torch.block_diag(rows, rows)",
    "torch._weight_norm(rows, rows[:, :1].detach().clone(), 0)",
    "torch.view_as_complex(rows.view(4, 3, 2)).abs()",
    "torch.view_as_complex(rows.view(4, 3, 2)).std(0)",
)
CHILD = """
import sys, warnings
import torch, torch.nn.functional as F
import dovetail
warnings.simplefilter("ignore")
torch.manual_seed(0)
for text in sys.argv[1:]:
    image = torch.randn(2, 4, 4, 4, requires_grad=True)
    rows = torch.randn(4, 6, requires_grad=True)
    target = torch.rand(4, 6)
    function = eval("lambda image, rows, target: " + text)
    compiled = dovetail.compile(function, fullgraph=True, backend="aot_eager")
    compiled(image, rows, target).sum().backward()
    if any(name in sys.modules for name in ("torch._dynamo", "torch._inductor")):
        sys.exit(f"imported by {text}")
"""


def test_no_first_call_imports_the_compiler_of_pytorch() -> None:
    """In a process of its own, one function after the other."""
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, *FUNCTIONS], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


class Beginning(CompilerBackend):
    """Keeps the graphs that it has begun; `fails` at those of the numbers in it."""

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        super().__init__(dovetail.Options(on_error="raise"))
        self.graphs: list[GraphModule] = []
        self.fails = fails

    def _begin(
        self, gm: GraphModule, example_inputs: Sequence[Any], place: str
    ) -> tuple[Plan, KernelBuild]:
        self.graphs.append(gm)
        if len(self.graphs) in self.fails:
            raise RuntimeError("it does not begin")
        return super()._begin(gm, example_inputs, place)


@pytest.mark.parametrize("fails", [(), (2,)])
def test_a_backward_is_begun_while_its_forward_is_built(fails: tuple[int, ...]) -> None:
    """What fails then is done again when it is asked for."""
    number = random.SystemRandom().random()  # in no cache

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * number).sin()

    backend = Beginning(fails)
    compiled = dovetail.compile(fn, backend=backend)
    x = torch.randn(100, requires_grad=True)
    y = compiled(x)
    assert len(backend.graphs) == 2 and len(backend.records.graphs) == 1
    (got,) = torch.autograd.grad(y.sum(), x)
    assert len(backend.graphs) == 2 + len(fails) and len(backend.records.graphs) == 2
    (wanted,) = torch.autograd.grad(fn(x).sum(), x)
    torch.testing.assert_close(got, wanted)


def test_an_error_of_a_backward_is_raised_by_the_backward() -> None:
    number = random.SystemRandom().random()
    backend = Beginning((2, 3))
    compiled = dovetail.compile(lambda x: (x * number).cos(), backend=backend)
    y = compiled(torch.randn(100, requires_grad=True))
    with pytest.raises(RuntimeError, match="it does not begin"):
        y.sum().backward()


def test_a_cached_forward_waits_for_no_backward() -> None:
    number = random.SystemRandom().random()

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x * number).sin()

    x = torch.randn(100, requires_grad=True)
    dovetail.compile(fn)(x)
    backend = Beginning()
    dovetail.compile(fn, backend=backend)(x)
    assert len(backend.graphs) == 1
