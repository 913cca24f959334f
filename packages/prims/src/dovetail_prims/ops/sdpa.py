"""Which kernel `scaled_dot_product_attention` runs.

Eager's own decision is asked for, on fake tensors: it looks at shapes, strides, dtype, masks and
the user's `sdpa_kernel` settings, and never at data. So the answer follows the installed version.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch._C import DispatchKey

from dovetail_prims.fake_tensor import FakeTensor, hint_of, make, tensor_meta
from dovetail_prims.shape_rules.views import known_truth

Backend = Literal[
    "math", "flash_attention", "efficient_attention", "cudnn_attention", "overrideable",
    "flash_attention_for_cpu",
]  # fmt: skip

_NAMES: dict[int, Backend] = {
    0: "math",
    1: "flash_attention",
    2: "efficient_attention",
    3: "cudnn_attention",
    4: "overrideable",
}
_KEYS = {"cpu": DispatchKey.CPU, "cuda": DispatchKey.CUDA}


def choose_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    needs_grad: bool,
    enable_gqa: bool = False,
) -> Backend:
    """The kernel eager would run for these (fake or real) tensors.

    `needs_grad`: whether autograd will record the call. CUDA tensors on a machine without a GPU
    (compiling for another one) get flash for half precision without mask, else efficient.
    """
    number = backend_number(q, k, v, mask, dropout_p, is_causal, needs_grad, enable_gqa)
    if number not in _NAMES:
        raise RuntimeError("scaled_dot_product_attention: no enabled backend takes these inputs")
    name = _NAMES[number]
    if name == "flash_attention" and q.device.type == "cpu":
        return "flash_attention_for_cpu"
    return name


def backend_number(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    needs_grad: bool,
    enable_gqa: bool,
) -> int:
    """As `choose_backend`, but the number PyTorch uses (-1: none)."""
    device = tensor_meta(q).device.type
    key = _KEYS.get(device)
    if key is None:
        return 0
    if device == "cuda" and not torch.cuda.is_available():
        half = tensor_meta(q).dtype in (torch.float16, torch.bfloat16)
        return 1 if half and mask is None and len(tensor_meta(q).sizes) == 4 else 2
    # A function mode of the user's (a default device) would send the call on to the dispatch modes.
    with torch.set_grad_enabled(needs_grad), torch._C.DisableTorchFunction():
        inputs = [_probe(t, needs_grad) for t in (q, k, v)]
        probe_mask = None if mask is None else _probe(mask, mask.requires_grad and needs_grad)
        choice = torch.ops.aten._fused_sdp_choice.default._op_dk(
            key, *inputs, probe_mask, dropout_p, is_causal, enable_gqa=enable_gqa
        )
    if device == "cpu" and choice == 1 and any(_may_be_none(t) for t in (q, k)):
        return 0  # (the kernel divides by lengths, and eager asks whether there are any)
    return int(choice)


def _may_be_none(t: Tensor) -> bool:
    """Whether only data tells how many rows there are, and it may tell that there are none."""
    length = tensor_meta(t).sizes[-2]
    return type(length) is not int and known_truth(length > 0) is None


def _probe(t: Tensor, requires_grad: bool) -> FakeTensor:
    """A fake with the metadata of `t`: the decision reads nothing else.

    Symbolic sizes are those of the call that is compiled. Every kernel computes the same attention,
    so which of them is chosen need not be guarded.
    """
    m = tensor_meta(t)
    sizes, strides = ([hint_of(n) for n in numbers] for numbers in (m.sizes, m.strides))
    fake = make(tuple(sizes), tuple(strides), m.dtype, m.device, hint_of(m.offset))
    return fake.requires_grad_() if requires_grad else fake  # type: ignore[return-value]
