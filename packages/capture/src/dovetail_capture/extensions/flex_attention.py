"""`torch.nn.attention.flex_attention` said in operators that a graph holds.

The interpreter runs these bodies in place of PyTorch's, which hands the program's functions of a
score to an operator of its own compiler. A function of one score and its place is mapped over all
places by `vmap`, as there. Without a function of scores, and where nobody asks for their sums,
attention with a mask is what is left: `scaled_dot_product_attention`, which needs no scores in
memory.
"""

from __future__ import annotations

import inspect
import math
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.values.base import NONE, Constant, Value, is_none
from dovetail_capture.interpreter.values.tensors import TensorValue

# PyTorch's module, which takes seconds to import: who calls its functions has done so.
_MODULE = "torch.nn.attention.flex_attention"
# A block mask of one block, whose sizes are not those of the sequences.
_ANY_LENGTH = 1 << 30


class _PlacesAreIndices(TorchFunctionMode):
    """Takes an element of a tensor at a place by the place's tensors: their numbers, which Python's
    rules for an index of no dimension would ask for, no function that is mapped knows."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(place, torch.Tensor) for place in places):
                return torch.ops.aten.index(args[0], list(places))
        return func(*args, **(kwargs or {}))


def _mapped(function: Any, scores: tuple[Any, ...], batch: Any, heads: Any, m: Any, n: Any,
            device: Any) -> Any:  # fmt: skip
    """A function of (a score and) a batch, a head, a query and a key at all of them, [batch, heads,
    m, n]; `scores` is empty for a function of the place alone."""
    first = (0,) * len(scores)
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None),
                 (0, None, None, None)):  # fmt: skip
        function = torch.vmap(function, in_dims=first + dims)
    places = [torch.arange(0, size, device=device) for size in (batch, heads, m, n)]
    with _PlacesAreIndices():
        return function(*scores, *places)


def create_mask(
    kind_of: Any, of_scores: Any, mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any,
    device: Any = None,
) -> Any:  # fmt: skip
    """`create_mask`: where a function of places holds, or one of scores does not hide. (`kind_of`
    and `of_scores`: what tells such functions apart.)"""
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    batch, heads = 1 if B is None else B, 1 if H is None else H
    if kind_of(mod_fn) is of_scores:
        zeros = torch.zeros(batch, heads, Q_LEN, KV_LEN, device=device)
        return ~torch.isneginf(_mapped(mod_fn, (zeros,), batch, heads, Q_LEN, KV_LEN, device))
    return _mapped(mod_fn, (), batch, heads, Q_LEN, KV_LEN, device)


def _laid_out_like(out: Any, query: Any) -> Any:
    """The values of `out` with its dimensions in memory in the order of the query's, but its last
    one innermost."""
    strides = query.stride()
    inwards = sorted(range(4), key=lambda d: strides[d], reverse=True)
    if inwards[-1] != 3:
        inwards.remove(3)
        inwards.append(3)
    made = [1, 1, 1, 1]
    step = 1
    for d in reversed(inwards):
        made[d] = step
        step = step * out.size(d)
    return out.new_empty_strided(out.shape, made).copy_(out)


def _check_mask(query: Any, key: Any, block_mask: Any) -> None:
    """Raises ValueError or RuntimeError if a mask was made for other batches or sequences, or lies
    on another device."""
    if query.device != block_mask.kv_num_blocks.device:
        raise RuntimeError(
            f"Expect q/k/v and block_mask to be on the same device but got {query.device} and "
            f"{block_mask.kv_num_blocks.device}."
        )
    batches = block_mask.kv_num_blocks.size(0)
    if query.size(0) not in (key.size(0), batches):
        raise ValueError(
            f"query of {query.size(0)} batches, keys of {key.size(0)}, block_mask of {batches}"
        )
    if block_mask.BLOCK_SIZE[0] == _ANY_LENGTH and block_mask.BLOCK_SIZE[1] == _ANY_LENGTH:
        return
    m, n = query.size(-2), key.size(-2)
    made_for = block_mask.shape
    if m != made_for[-2] or n != made_for[-1]:
        raise ValueError(
            f"block_mask was created for {made_for[-2]} queries and {made_for[-1]} keys, not for "
            f"{m} and {n}: make one of these sizes, or adjust it by block_mask._adjust({m}, {n})"
        )


def flex_attention(
    noop_mask: Any,
    aux_output: Any,
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: Any = False,
    return_lse: Any = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """`flex_attention` of query [batch, heads, m, d], key [batch, key heads, n, d] and value
    [batch, key heads, n, e]. (`noop_mask` and `aux_output` are PyTorch's.)"""
    device = query.device
    kind = device.type
    if torch.is_autocast_enabled(kind):
        narrow = torch.get_autocast_dtype(kind)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    if kind == "cpu" and return_aux is not None and return_aux.max_scores:
        raise NotImplementedError("Returning max scores is not supported on CPU.")
    batch, heads, m, n = query.size(0), query.size(1), query.size(2), key.size(2)
    scale = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    seen = None
    if block_mask is not None:
        _check_mask(query, key, block_mask)
        if block_mask.mask_mod is not noop_mask:
            seen = _mapped(block_mask.mask_mod, (), batch, heads, m, n, device)
            # Once for what it is the same for.
            seen = seen[:1] if seen.stride(0) == 0 else seen
            seen = seen[:, :1] if seen.stride(1) == 0 else seen
    with torch.autocast(kind, enabled=False):
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
        if score_mod is None and not return_lse and return_aux is None:
            return _laid_out_like(
                _attend(query, key, value, seen, scale, key.size(1) != heads), query
            )
        groups = heads // key.size(1)
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
        if score_mod is not None:
            scores = _mapped(score_mod, (scores,), batch, heads, m, n, device)
        if seen is not None:
            scores = torch.where(seen, scores, -math.inf)
        sums = torch.logsumexp(scores, -1)
        # A row of which nothing is seen has no share of anything.
        shares = torch.exp(scores - torch.where(sums.isneginf(), 0.0, sums).unsqueeze(-1))
        out = _laid_out_like(shares.to(query.dtype) @ value.to(query.dtype), query)
        if return_aux is not None:
            greatest = scores.amax(-1) if return_aux.max_scores else None
            return out, aux_output(lse=sums if return_aux.lse else None, max_scores=greatest)
        return (out, sums) if return_lse else out


def _attend(query: Any, key: Any, value: Any, seen: Any, scale: Any, grouped: Any) -> Any:
    if seen is None:
        return F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=grouped)
    # Kernels of attention leave rows of which nothing is seen undefined, and gradients with them.
    some = seen.any(-1, keepdim=True)
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=seen | ~some, scale=scale, enable_gqa=grouped
    )
    return torch.where(some, out, 0.0)


def _is_usual(query: Value, key: Value, value: Value, grouped: bool, masked: bool) -> bool:
    """Whether these are tensors that eager's function takes, and has a backward for. (One batch of
    keys serves several of queries only with a mask.)"""
    if not all(isinstance(t, TensorValue) for t in (query, key, value)):
        return False
    q, k, v = (t.fake for t in (query, key, value))  # type: ignore[attr-defined]
    if any(t.dim() != 4 or t.dtype is not q.dtype or t.device != q.device for t in (k, v)):
        return False
    if q.dim() != 4 or not q.is_floating_point() or q.element_size() == 1:
        return False
    if q.device.type == "cpu" and any(t.requires_grad for t in (q, k, v)):
        return False
    if q.size(-1) != k.size(-1) or k.size(-2) != v.size(-2) or k.size(1) != v.size(1):
        return False
    if (q.size(1) % k.size(1) if grouped else q.size(1) != k.size(1)) or q.size(0) == 0:
        return False
    return bool(k.size(0) == v.size(0) and k.size(0) in (q.size(0), *((1,) if masked else ())))


_NAMES = tuple(inspect.signature(flex_attention).parameters)[2:]


def _flex(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """What is refused there, and the choice of a kernel by name, are left to PyTorch's body."""
    given = dict(zip(_NAMES, args, strict=False)) | kwargs
    if len(args) > len(_NAMES) or not {"query", "key", "value"} <= given.keys():
        return PASS
    flags = [given.get(name) for name in ("enable_gqa", "return_lse")]
    if any(flag is not None and not isinstance(flag, Constant) for flag in flags):
        return PASS
    both = isinstance(flags[1], Constant) and flags[1].value and "return_aux" in given
    options = given.get("kernel_options")
    if both or (options is not None and not is_none(options)):
        return PASS
    grouped = isinstance(flags[0], Constant) and bool(flags[0].value)
    masked = not is_none(given.get("block_mask", NONE))
    if not _is_usual(given["query"], given["key"], given["value"], grouped, masked):
        return PASS
    module = sys.modules[_MODULE]
    own: Args = [Constant(module.noop_mask), Constant(module.AuxOutput)]
    return inlining.inline(vm, flex_attention, [*own, *args], kwargs)


def _mask(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    module = sys.modules[_MODULE]
    own: Args = [Constant(module._get_mod_type), Constant(module._ModificationType.SCORE_MOD)]
    return inlining.inline(vm, create_mask, [*own, *args], kwargs)


BY_NAME: dict[tuple[str, str], Handler] = {
    (_MODULE, "flex_attention"): _flex,
    (_MODULE, "create_mask"): _mask,
}
