"""Inputs whose strides change from call to call: two graphs for all of them, with eager's values,
layouts, writes and gradients."""

from __future__ import annotations

import pytest
import strided_programs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail


@pytest.mark.parametrize("seed", range(4000, 4040))
def test_random_programs(seed: int) -> None:
    assert strided_programs.check(seed, "aot_eager") <= 3


@pytest.mark.parametrize("seed", range(4100, 4106))
def test_random_programs_in_kernels(seed: int) -> None:
    assert strided_programs.check(seed, "dovetail") <= 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5000, 5060))
def test_more_random_programs_in_kernels(seed: int) -> None:
    assert strided_programs.check(seed, "dovetail") <= 3


def test_training_on_sequences_cut_short() -> None:
    """`tokens[:, :-1]` and `tokens[:, 1:]` of changing length."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    weight = model[0].weight

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.reshape(-1))

    compiled = dovetail.compile(loss)
    for length in (6, 7, 9, 12):
        tokens = torch.randint(11, (3, length))
        gradients = []
        for fn in (loss, compiled):
            value = fn(tokens[:, :-1], tokens[:, 1:])
            gradients.append((value, torch.autograd.grad(value, weight)[0]))
        for mine, wanted in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, wanted)
    assert dovetail.report(compiled).graphs == 2


def test_attention_on_parts_of_one_product() -> None:
    def attention(qkv: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)

    compiled = dovetail.compile(attention)
    for length in (5, 6, 8, 11):
        whole = torch.randn(2, length + 1, 3, 4, 8, requires_grad=True)
        results = [fn(whole[:, :-1]) for fn in (attention, compiled)]
        gradients = [torch.autograd.grad(y.square().sum(), whole)[0] for y in results]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(gradients[1], gradients[0])
    assert dovetail.report(compiled).graphs == 2
