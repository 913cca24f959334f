"""Kernels of attention, each with what it keeps for its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dovetail_prims.fake_tensor import FakeTensor, Size, Sizes, make
from dovetail_prims.ops import sdpa
from dovetail_prims.ops.card import composed, library
from dovetail_prims.shape_rules.layout import empty_like_strides, fresh

_CPU = torch.device("cpu")

_BLOCK = 32  # efficient attention pads its logsumexp rows to this


def _swap(values: Sequence[Size]) -> tuple[Size, ...]:
    """(batch, heads, length, width) <-> (batch, length, heads, width)."""
    return (values[0], values[2], values[1], values[3])


def _strides(sizes: Sizes, order: Iterable[int], row: Size) -> Sizes:
    """Of rows as long as `row` in the last dimension; the others from the innermost outwards."""
    strides: list[Size] = [1] * len(sizes)
    for d in order:
        strides[d] = row
        row = row * sizes[d]
    return tuple(strides)


def _blhd(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> FakeTensor:
    """A tensor of `sizes` whose memory is ordered batch, length, heads, width."""
    batch, heads, length, width = sizes
    strides = (length * heads * width, width, heads * width, 1)
    return make((batch, heads, length, width), strides, dtype, device)


def _like_transposed(x: FakeTensor) -> FakeTensor:
    """`empty_like(x.transpose(1, 2)).transpose(1, 2)`."""
    sizes = x._sizes
    turned = make(_swap(sizes), _swap(x._strides), x._dtype, x._device)
    return make(sizes, _swap(empty_like_strides(turned)), x._dtype, x._device)


def _check(q: FakeTensor, k: FakeTensor, v: FakeTensor) -> None:
    if not len(q._sizes) == len(k._sizes) == len(v._sizes) == 4:
        raise RuntimeError("fused attention expects 4D queries, keys and values")
    if q._sizes[3] != k._sizes[3]:
        raise RuntimeError("fused attention expects queries and keys of one width")


def flash_cpu(
    q: FakeTensor, k: FakeTensor, v: FakeTensor, *rest: Any, **options: Any
) -> tuple[FakeTensor, FakeTensor]:
    """`_scaled_dot_product_flash_attention_for_cpu`: output, logsumexp."""
    _check(q, k, v)
    batch, heads, length, _ = q._sizes
    out = make(q._sizes, empty_like_strides(q), q._dtype, q._device)
    statistic = torch.float64 if q._dtype is torch.float64 else torch.float32
    logsumexp = make((batch, heads, length), (length * heads, 1, heads), statistic, q._device)
    return out, logsumexp


def flash_cpu_backward(
    grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, *rest: Any, **options: Any
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Gradients of queries, keys, values."""
    dq, dk, dv = (_blhd(t._sizes, t._dtype, t._device) for t in (q, k, v))
    return dq, dk, dv


def _philox() -> tuple[FakeTensor, FakeTensor]:
    """Seed and offset of efficient attention's dropout: on the CPU (outside CUDA graph capture)."""
    return fresh((), torch.int64, _CPU), fresh((), torch.int64, _CPU)


def efficient(
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    attn_bias: FakeTensor | None,
    compute_log_sumexp: bool,
    *rest: Any,
    **options: Any,
) -> tuple[FakeTensor, FakeTensor, FakeTensor, FakeTensor]:
    """`_scaled_dot_product_efficient_attention`: output, logsumexp, seed, offset."""
    _check(q, k, v)
    batch, heads, length, _ = q._sizes
    rows: Size = 0
    if compute_log_sumexp:
        rows = (length + _BLOCK - 1) // _BLOCK * _BLOCK
    return (
        _blhd((batch, heads, length, v._sizes[3]), q._dtype, q._device),
        fresh((batch, heads, rows), torch.float32, q._device),
        *_philox(),
    )


def efficient_backward(
    grad: FakeTensor,
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    attn_bias: FakeTensor | None,
    out: FakeTensor,
    logsumexp: FakeTensor,
    philox_seed: FakeTensor,
    philox_offset: FakeTensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    *rest: Any,
    **options: Any,
) -> tuple[FakeTensor | None, ...]:
    """Gradients of queries, keys, values and bias."""
    bias = attn_bias if grad_input_mask[3] else None
    return *flash_cpu_backward(grad, q, k, v), None if bias is None else _padded_bias(bias)


def _padded_bias(bias: FakeTensor) -> FakeTensor:
    """The bias' gradient: its rows are padded to a multiple of 16 elements."""
    sizes = bias._sizes
    last = sizes[-1]
    padded = last if type(last) is int and last % 16 == 0 else (last + 15) // 16 * 16
    strides = _strides(sizes, range(len(sizes) - 2, -1, -1), padded)
    return make(sizes, strides, bias._dtype, bias._device)


def flash_cuda(
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    **options: Any,
) -> Any:
    """`_scaled_dot_product_flash_attention` on CUDA."""
    if q._device.type == "cpu" or return_debug_mask:
        return NotImplemented
    _check(q, k, v)
    batch, heads, length, _ = q._sizes
    return (
        _like_transposed(q),
        fresh((batch, heads, length), torch.float32, q._device),
        None,
        None,
        length,
        k._sizes[2],
        fresh((2,), torch.uint64, q._device),
        fresh((), torch.uint64, q._device),
        fresh((0,), q._dtype, q._device),
    )


def flash_cuda_backward(
    grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, *rest: Any, **options: Any
) -> Any:
    """Gradients of queries, keys, values."""
    return _like_transposed(q), _like_transposed(k), _like_transposed(v)


def cudnn(
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    attn_bias: FakeTensor | None,
    compute_log_sumexp: bool,
    *rest: Any,
    **options: Any,
) -> Any:
    """`_scaled_dot_product_cudnn_attention`: the output's dimensions lie as the query's do."""
    _check(q, k, v)
    batch, heads, length, _ = q._sizes
    width = v._sizes[3]
    sizes = (batch, heads, length, width)
    # Innermost to outermost by the query's strides; the first of equal ones is inside.
    order = sorted(range(3), key=lambda d: q._strides[d])
    strides = _strides(sizes, order, width)
    logsumexp = None
    if compute_log_sumexp:
        logsumexp = fresh((batch, heads, length, 1), torch.float32, q._device)
    return (
        make(sizes, strides, q._dtype, q._device),
        logsumexp,
        None,
        None,
        length,
        k._sizes[2],
        fresh((), torch.int64, q._device),
        fresh((), torch.int64, q._device),
        None,
    )


def cudnn_backward(
    grad: FakeTensor, q: FakeTensor, k: FakeTensor, v: FakeTensor, *rest: Any, **options: Any
) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
    """Gradients of queries, keys, values."""

    def like(t: FakeTensor) -> FakeTensor:
        return make(t._sizes, empty_like_strides(t), t._dtype, t._device)

    return like(q), like(k), like(v)


def fused_choice(
    q: FakeTensor,
    k: FakeTensor,
    v: FakeTensor,
    attn_mask: FakeTensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """`_fused_sdp_choice`: the number of the backend that eager would take."""
    needs_grad = any(t.requires_grad for t in (q, k, v))
    return sdpa.backend_number(q, k, v, attn_mask, dropout_p, is_causal, needs_grad, enable_gqa)


def native_multi_head(
    query: FakeTensor,
    key: FakeTensor,
    value: FakeTensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: FakeTensor,
    qkv_bias: FakeTensor,
    proj_weight: FakeTensor,
    proj_bias: FakeTensor,
    mask: FakeTensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[FakeTensor, FakeTensor | None]:
    """`_native_multi_head_attention`, what nn.MultiheadAttention computes without gradients:
    (batch, length, width), and the weights, of each head or their mean, if they are asked for."""
    _check_sequences(query, key, value)
    batch, length, width = query._sizes
    out = fresh((batch, length, width), query._dtype, query._device)
    if not need_weights:
        return out, None
    heads = () if average_attn_weights else (num_head,)
    return out, fresh((batch, *heads, length, key._sizes[1]), query._dtype, query._device)


def encoder_layer(src: FakeTensor, embed_dim: int, num_heads: int, *rest: Any) -> FakeTensor:
    """`_transformer_encoder_layer_fwd`, nn.TransformerEncoderLayer without gradients."""
    _check_sequences(src)
    return fresh(src._sizes, src._dtype, src._device)


def _check_sequences(*tensors: FakeTensor) -> None:
    if any(len(t._sizes) != 3 for t in tensors):
        raise RuntimeError("multi-head attention expects (batch, length, width)")


# --- cards --------------------------------------------------------------------------------------

CARDS = (
    composed("_fused_sdp_choice", fused_choice),
    composed("_native_multi_head_attention", native_multi_head),
    composed("_transformer_encoder_layer_fwd", encoder_layer),
    library("_scaled_dot_product_flash_attention_for_cpu", flash_cpu),
    library("_scaled_dot_product_flash_attention_for_cpu_backward", flash_cpu_backward),
    library("_scaled_dot_product_efficient_attention", efficient),
    library("_scaled_dot_product_efficient_attention_backward", efficient_backward),
    library("_scaled_dot_product_flash_attention", flash_cuda),
    library("_scaled_dot_product_flash_attention_backward", flash_cuda_backward),
    library("_scaled_dot_product_cudnn_attention", cudnn),
    library("_scaled_dot_product_cudnn_attention_backward", cudnn_backward),
)
