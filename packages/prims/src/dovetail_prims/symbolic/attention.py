"""`scaled_dot_product_attention` by the operator of the kernel that eager would choose, with the
preparations that C++ makes for it."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail_prims.ops.sdpa import choose_backend
from dovetail_prims.sizes.batched_matmul import batched_matmul

aten = torch.ops.aten

# A row of the efficient kernel's mask must start at a multiple of this many elements.
_MASK_ALIGNMENT = 16


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` by the operator of the kernel eager would choose."""
    # Autocast knows the public operator only: what it would cast is cast here.
    query, key, value = (_autocast(t) for t in (query, key, value))
    attn_mask = None if attn_mask is None else _autocast(attn_mask)
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    # The kernels read a mask row by row; one expanded along its rows would send eager's choice to
    # the unfused formula, so it is laid out first.
    mask = _additive(attn_mask, query)
    if mask is not None and mask.stride(-1) != 1:
        mask = mask.contiguous()
    backend = choose_backend(query, key, value, mask, dropout_p, is_causal, needs_grad, enable_gqa)
    if backend == "flash_attention":
        width = query.shape[-1]
        if scale is None:
            scale = 1 / math.sqrt(width)
        q, k, v = (_pad_last(t, 8) for t in (query, key, value))
        out = aten._scaled_dot_product_flash_attention.default(
            q, k, v, dropout_p, is_causal, False, scale=scale
        )[0]
        result: Tensor = out[..., :width] if q.shape[-1] != width else out
    elif backend == "efficient_attention":
        if mask is not None:
            mask = _aligned(mask, query, key)
        result = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, mask, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    elif backend == "cudnn_attention":
        result = aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, mask, needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    else:
        result = aten._scaled_dot_product_attention_math.default(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    return result


def unfused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`scaled_dot_product_attention` of symbolic sizes on a CPU, where eager runs no kernel of its
    own: the formula. (Up to PyTorch 2.14 the products of matrices in C++ ask for the numbers.)
    Returns NotImplemented where eager runs a kernel, or refuses.
    """
    tensors = [_autocast(t) for t in (query, key, value)]
    mask = None if attn_mask is None else _autocast(attn_mask)
    ranks = {t.dim() for t in tensors}
    if len(ranks) > 1 or min(ranks) < 2 or (is_causal and mask is not None):
        return NotImplemented
    if len({t.dtype for t in tensors}) > 1 or not query.is_floating_point():
        return NotImplemented
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    q, k, v = tensors
    choice = choose_backend(q, k, v, mask, dropout_p, is_causal, needs_grad, enable_gqa)
    if choice != "math":
        return NotImplemented
    dtype = q.dtype
    if dtype in (torch.float16, torch.bfloat16):
        if torch._C._get_math_sdp_allow_fp16_bf16_reduction():
            return NotImplemented
        q, k, v = q.float(), k.float(), v.float()
    if is_causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    mask = _additive(mask, q)
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    factor = 1 / torch.sym_sqrt(q.shape[-1]) if scale is None else abs(scale)
    root = torch.sym_sqrt(factor)
    scores = _product(q * (-root if scale is not None and scale < 0 else root), k.mT * root)
    if mask is not None:
        scores = scores + mask
    weights = aten._safe_softmax.default(scores, -1)
    if dropout_p > 0:
        weights = F.dropout(weights, dropout_p)
    return _product(weights, v).to(dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    found = batched_matmul(a, b)
    return a @ b if found is NotImplemented else found


def _autocast(t: Tensor) -> Tensor:
    """The tensor as autocast hands it to an operator of its lower-precision list."""
    kind = t.device.type
    if not torch.is_autocast_enabled(kind) or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(kind))


def _pad_last(t: Tensor, multiple: int) -> Tensor:
    missing = -t.shape[-1] % multiple
    return F.pad(t, (0, missing)) if missing else t


def _additive(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A boolean mask (True takes part) as one that is added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zeros = torch.zeros((), dtype=query.dtype, device=query.device)
    return torch.where(mask, zeros, float("-inf"))


def _aligned(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask for every batch and head, its rows aligned in memory."""
    length = key.shape[-2]
    missing = -length % _MASK_ALIGNMENT
    if not isinstance(missing, int) or missing:  # nothing is asked of a symbolic length
        mask = F.pad(mask, (0, missing))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[-2], length)
