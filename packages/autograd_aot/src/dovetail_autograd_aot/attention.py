"""Which kernel `scaled_dot_product_attention` calls.

A mask that is made of constants and hides nothing (models build one where eager skips it) is
dropped; for one that hides what comes later there are kernels that need none. What `rewrites` lists
comes next (attention on a GPU is there).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.symbolic_forms import call_form
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dovetail_autograd_aot.constants import constant_value, untraced
from dovetail_autograd_aot.rewrites import REWRITES


class AttentionMode(TorchFunctionMode):
    """Intercepts attention, and what `rewrites` lists; everything else passes through."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named = dict(zip(names, args, strict=False)) | kwargs
            if hides_nothing(named.get("attn_mask")):
                named["attn_mask"] = None
            elif not named.get("is_causal") and hides_the_future(named.get("attn_mask")):
                named |= {"attn_mask": None, "is_causal": True}
            args, kwargs = (named.pop("query"),), named
        rewrite = REWRITES.get(func)
        if rewrite is not None:
            result = call_form(rewrite, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def hides_nothing(mask: Tensor | None) -> bool:
    """True for a boolean mask known to be all True, or one to be added known to be all zero."""
    value = None if mask is None else constant_value(mask)
    if value is None:
        return False
    with untraced():
        return bool(value.all() if value.dtype is torch.bool else (value == 0).all())


def hides_the_future(mask: Tensor | None) -> bool:
    """True for a square mask known to show each query the keys up to its own place, and no other:
    a boolean one, or one of 0 and -inf to be added."""
    if mask is None or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return False
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        return False
    value = constant_value(mask)
    if value is None:
        return False
    with untraced():
        past = torch.ones(value.shape[-2:], dtype=torch.bool).tril()
        if value.dtype is torch.bool:
            return bool((value == past).all())
        return bool((value == torch.where(past, 0.0, -torch.inf)).all())
