"""Which kernel `scaled_dot_product_attention` calls.

A mask that is made of constants and hides nothing (models build one where eager skips it) is
dropped. On CUDA C++ picks a kernel by looking at real tensors; for fakes on a GPU it falls back to
plain matrix products. So there the choice is asked for explicitly. (On CPU C++ chooses right by
itself.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.attention import attention
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
            if named["query"].device.type == "cuda":
                return attention(**named)
            return func(**named)
        rewrite = REWRITES.get(func)
        if rewrite is not None:
            result = rewrite(*args, **kwargs)
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
