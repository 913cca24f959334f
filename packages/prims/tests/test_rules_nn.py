"""Normalisation, convolution, pooling and attention on the CPU against eager."""

from __future__ import annotations

import itertools

import pytest
import torch
from dovetail_prims import choose_backend, from_real
from rule_checks import aten, check, layouts
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 4), (2, 4, 6), (3, 5)])
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for x, pdtype in itertools.product(layouts(shape, dtype), {dtype, torch.float32}):
        for inner in (shape[-1:], shape[-2:]):
            w = zeros(*inner, dtype=pdtype)
            check(aten.native_layer_norm.default, x, list(inner), w, w, 1e-5)
            check(aten.native_layer_norm.default, x, list(inner), None, None, 1e-5)
            if dtype is torch.float64 and pdtype is not dtype:
                continue
            _, mean, rstd = aten.native_layer_norm.default(x, list(inner), w, w, 1e-5)
            for mask in ([True, True, True], [True, False, True]):
                check(
                    aten.native_layer_norm_backward.default,
                    x, x, list(inner), mean, rstd, w, w, mask,
                )  # fmt: skip
        channels = shape[1]
        w = zeros(channels, dtype=pdtype)
        check(aten._native_batch_norm_legit.no_stats, x, w, w, True, 0.1, 1e-5)
        for training in (True, False):
            op = aten.native_batch_norm.default
            check(op, x, w, w, w, w + 1, training, 0.1, 1e-5)
            check(op, x, None, None, w, w + 1, training, 0.1, 1e-5)
            if dtype is torch.float64 and pdtype is not dtype:
                continue
            _, mean, invstd = op(x, w, w, w, w + 1, training, 0.1, 1e-5)
            check(
                aten.native_batch_norm_backward.default,
                x, x, w, w, w + 1, mean, invstd, training, 1e-5, [True] * 3,
            )  # fmt: skip
        if len(shape) > 2:
            n, size = shape[0], x.numel() // (shape[0] * channels)
            last = len(shape) == 4 and x.is_contiguous(memory_format=torch.channels_last)
            dense = x if last else x.contiguous()  # as F.group_norm hands it over
            check(aten.native_group_norm.default, dense, w, w, n, channels, size, 1, 1e-5)
        check(aten.native_dropout.default, x, 0.5, True)
        check(aten.native_dropout.default, x, 0.5, False)


CONVOLUTIONS = [
    ((2, 4, 9, 9), (6, 4, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ((2, 4, 9, 9), (4, 1, 3, 3), [2, 2], [1, 1], [1, 1], False, [0, 0], 4),
    ((2, 4, 9, 9), (6, 4, 1, 1), [2, 2], [0, 0], [1, 1], False, [0, 0], 1),
    ((1, 3, 8, 8), (8, 3, 4, 4), [4, 4], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 4, 9, 9), (4, 6, 3, 3), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
    ((2, 4, 9, 9), (6, 4, 3, 3), [1], [1], [2], False, [0], 1),
    ((2, 4, 12), (6, 4, 3), [2], [1], [1], False, [0], 1),
    ((2, 4, 5, 5, 5), (6, 4, 3, 3, 3), [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
    ((2, 4, 2, 2), (6, 4, 3, 3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ((2, 4, 1, 1), (6, 4, 1, 1), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: tuple[object, ...], dtype: torch.dtype) -> None:
    xs, ws, *rest = case
    for x in layouts(xs, dtype):  # type: ignore[arg-type]
        for w in layouts(ws, dtype)[:1] + layouts(ws, dtype)[-4:]:  # type: ignore[arg-type]
            check(aten.convolution.default, x, w, None, *rest)
            try:
                out = aten.convolution.default(x, w, None, *rest)
            except RuntimeError:
                continue
            for grad in layouts(tuple(out.shape), dtype)[:1]:
                args = (grad, x, w, [out.shape[1]], *rest)
                check(aten.convolution_backward.default, *args, [True] * 3, loose=True)
                check(aten.convolution_backward.default, *args, [False, True, False], loose=True)


@pytest.mark.parametrize("dtype", (*DTYPES, torch.float16))
def test_small_convolutions_in_three_dimensions(dtype: torch.dtype) -> None:
    """Which library computes them decides on the result's format."""
    kinds = itertools.product(
        (1, 2), (1, 3, 4), (1, 4), (False, True), ((1, 1, 0), (2, 1, 1), (1, 2, 0))
    )
    for batch, kernel, groups, transposed, (stride, dilation, more) in kinds:
        if more and not transposed:
            continue
        x, weight = (
            zeros(batch, 4, 7, 7, 7, dtype=dtype),
            zeros(4, 4 // groups, *[kernel] * 3, dtype=dtype),
        )
        last = torch.channels_last_3d
        rest = ([stride] * 3, [0] * 3, [dilation] * 3, transposed, [more] * 3, groups)
        for a, b in (
            (x.to(memory_format=last), weight),
            (x, weight.to(memory_format=last)),
            (x, weight),
        ):
            check(aten.convolution.default, a, b, None, *rest, loose=True)
            out = aten.convolution.default(a, b, None, *rest)
            args = (out, a, b, None, *rest, [True, True, False])
            check(aten.convolution_backward.default, *args, loose=True)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_of_weights_gradients(dtype: torch.dtype, threads: int) -> None:
    """The strides of dimensions of one element, too: they tell which library computed it."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    last, rows = torch.channels_last, torch.contiguous_format
    kinds = itertools.product((1, 4, 20), (1, 3), (1, 5), (1, 6), (last, rows), (last, rows))
    try:
        for batch, kernel, channels, results, of_x, of_w in kinds:
            x = zeros(batch, channels, 8, 9, dtype=dtype).to(memory_format=of_x)
            w = zeros(results, channels, kernel, kernel, dtype=dtype).to(memory_format=of_w)
            rest = ([1, 1], [kernel // 2] * 2, [1, 1], False, [0, 0], 1)
            out = aten.convolution.default(x, w, None, *rest)
            check(aten.convolution_backward.default, out, x, w, None, *rest, [True, True, False])
    finally:
        torch.set_num_threads(before)


def test_what_keeps_channels_last_on_a_cpu() -> None:
    for x in layouts((2, 4, 6, 5)):
        check(aten.pixel_shuffle.default, x, 2)
        check(aten.channel_shuffle.default, x, 2)
        for kind in ("reflection", "replication"):
            check(getattr(aten, f"{kind}_pad2d").default, x, [1, 2, 0, 3])
            check(getattr(aten, f"{kind}_pad3d").default, x, [1, 2, 0, 3, 1, 1])
    for x in layouts((2, 3, 4, 4, 3)):
        for kind in ("reflection", "replication"):
            check(getattr(aten, f"{kind}_pad3d").default, x, [1, 1, 0, 1, 2, 0])
    for shape in ((2, 3), (2, 3, 4), (2, 3, 4, 5)):
        for x in layouts(shape):
            w = torch.ones(3)
            check(aten._batch_norm_with_update.default, x, w, w, w + 0, w + 1, 0.1, 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 4, 9, 9), (4, 9, 9), (2, 1, 8, 8), (1, 3, 1, 1)])
def test_pooling(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    windows = [
        ([3, 3], [2, 2], [1, 1], [1, 1], False),
        ([2, 2], [], [0, 0], [1, 1], True),
        ([2], [2], [0], [1], False),
        ([3, 2], [1, 2], [1, 1], [1, 1], True),
    ]
    for x in layouts(shape, dtype):
        for kernel, stride, pad, dilation, ceil in windows:
            check(aten.max_pool2d_with_indices.default, x, kernel, stride, pad, dilation, ceil)
            check(aten.avg_pool2d.default, x, kernel, stride, pad, ceil)
            try:
                out, at = aten.max_pool2d_with_indices.default(
                    x, kernel, stride, pad, dilation, ceil
                )
            except RuntimeError:
                continue
            for grad in layouts(tuple(out.shape), dtype)[:3]:
                check(
                    aten.max_pool2d_with_indices_backward.default,
                    grad, x, kernel, stride, pad, dilation, ceil, at,
                )  # fmt: skip
                check(
                    aten.avg_pool2d_backward.default,
                    grad, x, kernel, stride, pad, ceil, True, None,
                )  # fmt: skip
        for size in ([1, 1], [2, 3]):
            check(aten._adaptive_avg_pool2d.default, x, size)
            for grad in layouts((*shape[:-2], *size), dtype)[:3]:
                check(aten._adaptive_avg_pool2d_backward.default, grad, x)


def _heads(b: int, h: int, s: int, d: int, dtype: torch.dtype) -> list[Tensor]:
    return [
        zeros(b, h, s, d, dtype=dtype),
        zeros(b, s, h, d, dtype=dtype).transpose(1, 2),
        zeros(b, s, 3 * h, d, dtype=dtype)[:, :, :h].transpose(1, 2),
        zeros(s, b, h, d, dtype=dtype).permute(1, 2, 0, 3),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(dtype: torch.dtype) -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    for (b, h, s, t, d), layout in itertools.product(
        ((2, 3, 5, 7, 8), (1, 3, 5, 5, 8), (2, 1, 1, 7, 8)), range(4)
    ):
        q, k, v = _heads(b, h, s, d, dtype)[layout], *[_heads(b, h, t, d, dtype)[layout]] * 2
        for mask in (None, zeros(s, t, dtype=dtype), zeros(b, 1, s, t, dtype=dtype)):
            check(op, q, k, v, attn_mask=mask)
            out, lse = op(q, k, v, attn_mask=mask)
            for grad in (torch.zeros_like(out), zeros(b, h, s, d, dtype=dtype)):
                check(
                    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
                    grad, q, k, v, out, lse, 0.0, False, attn_mask=mask,
                )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_backend_choice(dtype: torch.dtype) -> None:
    names = {0: "math", 1: "flash_attention_for_cpu"}
    for layout, grad, dropout, masked in itertools.product(
        range(4), (False, True), (0.0, 0.1), (None, "float", "needs grad")
    ):
        q, k, v = [_heads(2, 3, 5, 8, dtype)[layout] for _ in range(3)]
        mask = None if masked is None else zeros(5, 5, dtype=dtype)
        fakes = [from_real(t) for t in (q, k, v)]
        if mask is not None:
            mask.requires_grad_(masked == "needs grad" and grad)
        for t in (q, k, v):
            t.requires_grad_(grad)
        expected = names[torch._fused_sdp_choice(q, k, v, mask, dropout, False)]
        fake_mask = None if mask is None else from_real(mask)
        assert choose_backend(*fakes, fake_mask, dropout, False, grad) == expected
    wide = from_real(zeros(2, 3, 5, 8, dtype=dtype))
    assert choose_backend(wide, wide, wide, None, 0.0, False, False) == "flash_attention_for_cpu"
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert choose_backend(wide, wide, wide, None, 0.0, False, False) == "math"


def test_draws_for_parameters() -> None:
    for x in layouts((4, 5), torch.float32):
        x.fill_(0.5)
        check(aten._sample_dirichlet.default, x)
        check(aten._dirichlet_grad.default, x, x.clone(), x + 1)
        check(aten._standard_gamma_grad.default, x, x.clone())
        check(aten.binomial.default, x.ceil(), x.clone())
