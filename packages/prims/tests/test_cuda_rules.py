"""Shape rules of ops that are laid out otherwise on CUDA, against eager there."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from dovetail_prims import from_real
from dovetail_prims.ops.sdpa import choose_backend
from rule_checks import aten, check, layouts
from torch import Tensor

pytestmark = pytest.mark.gpu

HALVES = (torch.float16, torch.bfloat16)


def cuda(t: Tensor) -> Tensor:
    """The tensor on the GPU with its strides."""
    storage = torch.zeros(t.untyped_storage().nbytes() // t.itemsize, dtype=t.dtype, device="cuda")
    return storage.as_strided(t.shape, t.stride(), t.storage_offset())


def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


MAKERS: dict[str, Callable[..., Tensor]] = {
    "plain": lambda b, h, s, d, dt: zeros(b, h, s, d, dtype=dt),
    "split heads": lambda b, h, s, d, dt: zeros(b, s, h, d, dtype=dt).transpose(1, 2),
    "packed": lambda b, h, s, d, dt: zeros(b, s, 3, h, d, dtype=dt)[:, :, 1].transpose(1, 2),
    "length first": lambda b, h, s, d, dt: zeros(s, b, h, d, dtype=dt).permute(1, 2, 0, 3),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_flash(name: str, dtype: torch.dtype) -> None:
    make = MAKERS[name]
    for b, h, s, t, d in ((2, 4, 64, 64, 64), (1, 3, 17, 33, 32), (2, 1, 1, 40, 64)):
        q, k, v = make(b, h, s, d, dtype), make(b, h, t, d, dtype), make(b, h, t, d, dtype)
        for dropout in (0.0, 0.1):
            op = aten._scaled_dot_product_flash_attention.default
            check(op, q, k, v, dropout)
            out = op(q, k, v, dropout)
            for grad in (torch.zeros_like(out[0]), zeros(b, h, s, d, dtype=dtype)):
                check(
                    aten._scaled_dot_product_flash_attention_backward.default,
                    grad, q, k, v, *out[:6], dropout, False, out[6], out[7],
                )  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
def test_efficient(name: str, dtype: torch.dtype) -> None:
    make = MAKERS[name]
    for b, h, s, t, d in ((2, 4, 64, 64, 64), (1, 3, 17, 33, 32), (2, 1, 1, 40, 64)):
        q, k, v = make(b, h, s, d, dtype), make(b, h, t, d, dtype), make(b, h, t, d, dtype)
        full = zeros(b, h, s, (t + 15) // 16 * 16, dtype=dtype)[..., :t]
        for bias, lse in itertools.product((None, full), (False, True)):
            op = aten._scaled_dot_product_efficient_attention.default
            check(op, q, k, v, bias, lse)
            if not lse:
                continue
            out = op(q, k, v, bias, lse)
            for grad in (torch.zeros_like(out[0]), zeros(b, h, s, d, dtype=dtype)):
                check(
                    aten._scaled_dot_product_efficient_attention_backward.default,
                    grad, q, k, v, bias, *out, 0.0, [True, True, True, bias is not None],
                )  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", HALVES)
def test_cudnn(name: str, dtype: torch.dtype) -> None:
    make = MAKERS[name]
    for b, h, s, t, d in ((2, 4, 64, 64, 64), (1, 3, 17, 33, 32)):
        q, k, v = make(b, h, s, d, dtype), make(b, h, t, d, dtype), make(b, h, t, d, dtype)
        for lse in (False, True):
            op = aten._scaled_dot_product_cudnn_attention.default
            check(op, q, k, v, None, lse)
            if lse:
                out = op(q, k, v, None, lse)
                check(
                    aten._scaled_dot_product_cudnn_attention_backward.default,
                    torch.zeros_like(out[0]), q, k, v, out[0], out[1], out[6], out[7], None,
                    out[2], out[3], out[4], out[5], 0.0, False,
                )  # fmt: skip


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32, torch.float64))
def test_norms(dtype: torch.dtype) -> None:
    for shape in ((2, 3, 4, 5), (2, 4, 6), (3, 5)):
        for x in map(cuda, layouts(shape, dtype)):
            w = zeros(shape[-1], dtype=dtype)
            check(aten.native_layer_norm.default, x, [shape[-1]], w, w, 1e-5)
            _, mean, rstd = aten.native_layer_norm.default(x, [shape[-1]], w, w, 1e-5)
            check(
                aten.native_layer_norm_backward.default,
                x, x, [shape[-1]], mean, rstd, w, w, [True] * 3,
            )  # fmt: skip
            check(aten.native_dropout.default, x, 0.5, True)
            check(aten._fused_rms_norm.default, x, [shape[-1]], w, 1e-5)
            check(aten._softmax.default, x, -1, False)
            if dtype is torch.float16:
                check(aten._softmax.default, x, -1, True)
            c = shape[1]
            for pdtype in {dtype, torch.float32}:
                if dtype is torch.float64 and pdtype is not dtype:
                    continue
                p = zeros(c, dtype=pdtype)
                for training in (True, False):
                    op = aten.native_batch_norm.default
                    check(op, x, p, p, p, p + 1, training, 0.1, 1e-5)
                    _, m, s = op(x, p, p, p, p + 1, training, 0.1, 1e-5)
                    check(
                        aten.native_batch_norm_backward.default,
                        x, x, p, p, p + 1, m, s, training, 1e-5, [True] * 3,
                    )  # fmt: skip
            if len(shape) > 2:
                n, hxw = shape[0], x.numel() // (shape[0] * c)
                p = zeros(c, dtype=dtype)
                dense = x.contiguous()  # as F.group_norm hands it over on a GPU
                check(aten.native_group_norm.default, dense, p, p, n, c, hxw, 1, 1e-5)


@pytest.mark.parametrize("dtype", (*HALVES, torch.float32, torch.float64))
def test_convolution_and_pooling(dtype: torch.dtype) -> None:
    cases = (
        ((2, 4, 9, 9), (6, 4, 3, 3), [1, 1], [1, 1], 1),
        ((2, 4, 9, 9), (4, 1, 3, 3), [2, 2], [1, 1], 4),
        ((2, 4, 9, 9), (6, 4, 1, 1), [2, 2], [0, 0], 1),
        ((1, 3, 8, 8), (8, 3, 4, 4), [4, 4], [0, 0], 1),
        ((2, 4, 12), (6, 4, 3), [2], [1], 1),
        ((2, 4, 5, 5, 5), (6, 4, 3, 3, 3), [1, 1, 1], [1, 1, 1], 1),
    )
    for xs, ws, stride, pad, groups in cases:
        zero, one = [0] * len(stride), [1] * len(stride)
        for x in map(cuda, layouts(xs, dtype)):
            w_layouts = layouts(ws, dtype)
            for w in map(cuda, [w_layouts[0], w_layouts[-4]]):
                rest = (stride, pad, one, False, zero, groups)
                check(aten.convolution.default, x, w, None, *rest)
                out = aten.convolution.default(x, w, None, *rest)
                for grad in (out, out.contiguous()):
                    check(
                        aten.convolution_backward.default,
                        grad, x, w, [out.shape[1]], *rest, [True] * 3,
                    )  # fmt: skip
    for x in map(cuda, layouts((2, 4, 9, 9), dtype)):
        check(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])
        check(aten.avg_pool2d.default, x, [2, 2])
        check(aten._adaptive_avg_pool2d.default, x, [1, 1])
        check(aten._adaptive_avg_pool2d.default, x, [2, 3])
        out, at = aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1])
        check(
            aten.max_pool2d_with_indices_backward.default,
            out, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at,
        )  # fmt: skip
        check(
            aten.avg_pool2d_backward.default,
            x[..., :4, :4],
            x,
            [2, 2],
            [],
            [0, 0],
            False,
            True,
            None,
        )
        for size in ([1, 1], [2, 3]):
            check(aten._adaptive_avg_pool2d_backward.default, x[..., : size[0], : size[1]], x)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", (*HALVES, torch.float32))
def test_backend_choice(name: str, dtype: torch.dtype) -> None:
    make = MAKERS[name]
    for (b, h, s, t, d), masked, causal, grad in itertools.product(
        ((2, 4, 64, 64, 64), (1, 3, 17, 33, 32), (2, 4, 64, 64, 40)),
        (False, True), (False, True), (False, True),
    ):  # fmt: skip
        if masked and causal:
            continue
        q, k, v = make(b, h, s, d, dtype), make(b, h, t, d, dtype), make(b, h, t, d, dtype)
        mask = zeros(b, h, s, t, dtype=dtype) if masked else None
        for tensor in (q, k, v):
            tensor.requires_grad_(grad)
        number = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal)
        names = ["math", "flash_attention", "efficient_attention", "cudnn_attention"]
        fakes = [from_real(x.detach()) for x in (q, k, v)]
        fake_mask = None if mask is None else from_real(mask)
        assert choose_backend(*fakes, fake_mask, 0.0, causal, grad) == names[number]


def test_samples_by_cudnn() -> None:
    x, grid = torch.randn(2, 5, 7, 9, device="cuda"), torch.rand(2, 4, 6, 2, device="cuda") * 2 - 1
    for image in (x, x.contiguous(memory_format=torch.channels_last)):
        check(aten.cudnn_grid_sampler.default, image, grid)
