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

from dovetail_autograd_aot.trace.constants import kind_of_constant
from dovetail_autograd_aot.trace.rewrites import REWRITES


class AttentionMode(TorchFunctionMode):
    """Intercepts attention, and what `rewrites` lists; everything else passes through."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named = dict(zip(names, args, strict=False)) | kwargs
            mask = named.get("attn_mask")
            hidden = "" if mask is None else kind_of_constant(mask, what_is_hidden)
            if hidden == "nothing":
                named["attn_mask"] = None
            elif hidden == "the future" and not named.get("is_causal"):
                named |= {"attn_mask": None, "is_causal": True}
            args, kwargs = (named.pop("query"),), named
        rewrite = REWRITES.get(func)
        if rewrite is not None:
            result = call_form(rewrite, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def what_is_hidden(mask: Tensor) -> str:
    """What a mask hides: "nothing"; "the future", if it is square and each query sees the keys up
    to its own place; or "" for anything else. It is boolean, or added: then it is 0 or -inf."""
    if mask.dtype is torch.bool:
        seen = mask
    elif mask.is_floating_point():
        seen = mask == 0
        if not bool((seen | (mask == -torch.inf)).all()):
            return ""
    else:
        return ""
    if bool(seen.all()):
        return "nothing"
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return ""
    past = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "the future" if bool((seen == past).all()) else ""
