"""Which kernel `scaled_dot_product_attention` calls.

A mask that is made of constants and hides nothing (models build one where eager skips it) is
dropped. What `rewrites` lists comes next (attention on a GPU is there).
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
