"""Arguments that do not fit, on a GPU; and what picks by indices, against eager."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_arguments_that_do_not_fit import GUARDED, Call
from torch import Tensor

import dovetail

pytestmark = pytest.mark.gpu


def on_gpu(given: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.cuda() for t in given]


@pytest.mark.parametrize("name", GUARDED)
def test_sizes_that_guards_must_refuse(name: str) -> None:
    function, fitting, others = GUARDED[name]
    compiled = dovetail.compile(function)
    for given in fitting:
        torch.testing.assert_close(compiled(*on_gpu(given)), function(*on_gpu(given)))
    for given in others:
        with pytest.raises(RuntimeError):
            compiled(*on_gpu(given))
    torch.cuda.synchronize()
    torch.testing.assert_close(compiled(*on_gpu(fitting[0])), function(*on_gpu(fitting[0])))


PICKED: dict[str, Call] = {
    "cross_entropy": lambda x, i: F.cross_entropy(x, i[: len(x)] % x.shape[1]),
    "weights of classes": lambda x, i: F.cross_entropy(
        x, i[: len(x)] % x.shape[1], x[0].detach().abs()
    ),
    "ignored classes": lambda x, i: F.cross_entropy(
        x, i[: len(x)] % x.shape[1], ignore_index=1, reduction="sum"
    ),
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "index_add": lambda x, i: x.index_add(0, i, x[:1].expand(len(i), -1)),
    "index_copy": lambda x, i: x.index_copy(0, i.unique()[:3], x[:3] * 2),
    "embedding_bag": lambda x, i: F.embedding_bag(i, x, i.new_tensor([0, 2]), mode="max"),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x, i[: len(x)] % x.shape[1]),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, x * 2),
}


@pytest.mark.parametrize("name", PICKED)
def test_what_indices_pick(name: str) -> None:
    i = torch.randint(0, 40, (64,), device="cuda")
    found = []
    for call in (PICKED[name], dovetail.compile(PICKED[name])):
        torch.manual_seed(0)
        x = torch.randn(40, 30, device="cuda", requires_grad=True)
        result = call(x, i)
        (grad,) = torch.autograd.grad(result.sum(), x)
        found.append((result.detach(), grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


NEGATIVE = """
import sys, torch, dovetail
CALLS = {
    "index_select": lambda x, i: x.index_select(0, i) * 2,
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 4, device="cuda")),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 4, device="cuda")),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x[:2], i),
}
call = dovetail.compile(CALLS[sys.argv[1]])
x = torch.zeros(6, 4, device="cuda")
call(x, torch.tensor([1, 0], device="cuda"))
torch.cuda.synchronize()
try:
    call(x, torch.tensor([-1, 0], device="cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    print("refused", type(error).__name__)
"""


@pytest.mark.parametrize("name", ["index_select", "index_add", "index_copy", "cross_entropy"])
def test_an_index_that_may_not_be_negative(name: str, tmp_path: Path) -> None:
    """(In a process of its own: an assertion on the device ends its use.)"""
    script = tmp_path / "negative.py"
    script.write_text(NEGATIVE)
    command = [sys.executable, str(script), name]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    assert "refused" in done.stdout, done.stdout + done.stderr
