"""Tensors that a frame makes in blocks of `torch.inference_mode` of its own.

The graph computes them as tensors without gradient, whatever compiles it. What leaves the frame is
made an inference tensor there, and operations outside of the block are first tried on inference
tensors, so that autograd refuses what it refuses in eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from dovetail_prims.dispatch_mode import DispatchMode
from dovetail_prims.fake_tensor import FakeTensor, make
from torch.utils import _pytree as pytree

from dovetail_capture.interpreter.signals import GraphBreakSignal


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor over the same memory."""
    with torch.inference_mode(), torch._C.DisableTorchFunctionSubclass():
        if tensor.is_inference():
            return tensor
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        torch._C._set_conj(made, tensor.is_conj())
        torch._C._set_neg(made, tensor.is_neg())
        return made


class ViewsOfInferenceTensors(DispatchMode):  # type: ignore[no-untyped-call]
    """Makes views of inference tensors such tensors, as the dispatcher does of real ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        base = args[0] if args else None
        infers = isinstance(base, torch.Tensor) and base.is_inference()
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        with torch.inference_mode(infers) if is_view else contextlib.nullcontext():
            return func(*args, **(kwargs or {}))


def check_as_autograd_does(
    run: Callable[[list[Any], dict[str, Any]], Any],
    args: list[Any],
    kwargs: dict[str, Any],
    is_inference: Callable[[FakeTensor], bool],
) -> None:
    """Break the graph where eager raises: at a write to an inference tensor outside of the mode, at
    saving one for the backward.

    `run` runs the operation, within `ViewsOfInferenceTensors`; it is given copies, so that nothing
    of it lasts.
    """
    copies: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if type(value) is not FakeTensor:
            return value
        if id(value) not in copies:
            with torch.inference_mode(is_inference(value)), torch.no_grad():
                parts = (value._sizes, value._strides, value._dtype, value._device, value._offset)
                made = make(*parts)
            # (No leaf, which may not be written to.)
            copies[id(value)] = made.requires_grad_().clone() if value.requires_grad else made
        return copies[id(value)]

    given = pytree.tree_map(copy, (args, kwargs))
    try:
        run(*given)
    except RuntimeError as error:
        if "nference" in str(error):
            raise GraphBreakSignal(
                f"a use of an inference tensor that raises: {error}",
                "use it within torch.inference_mode(), or clone it",
                RuntimeError(str(error)),
            ) from error
    except Exception:
        return  # what else is wrong the operation itself tells
