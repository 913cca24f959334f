"""What numbers and words among the arguments must be: fills that a dtype holds, options, modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail_prims.shape_rules.argument_checks.requirement import (
    Arguments,
    Requirement,
    fit_dtype_of_self,
    raising,
)
from dovetail_prims.shape_rules.layout import wrap_dim
from dovetail_prims.shape_rules.promotion import check_number


def _fills(number: str, sizes: Callable[[Arguments], Any]) -> Requirement:
    """The dtype that is asked for, or that of `self`, holds a number: on a CPU one number alone of
    a half type is taken by way of float64."""

    def check(given: Arguments) -> None:
        x, dtype, device = given["self"], given["dtype"], given["device"]
        if x is not None:
            dtype = x._dtype if dtype is None else dtype
            device = x._device if device is None else device
        if dtype is None:
            return
        on_cpu = torch.device("cpu" if device is None else device).type == "cpu"
        alone = on_cpu and all(type(n) is int and n == 1 for n in sizes(given))
        half = dtype in (torch.float16, torch.bfloat16)
        check_number(given[number], torch.float64 if alone and half else dtype)

    return raising(check)


def _own_sizes(given: Arguments) -> Any:
    return given.sizes("self")


def _asked_sizes(given: Arguments) -> Any:
    return given["size"]


def _is_scalar(given: Arguments) -> None:
    if given["dtype"] is not None:
        check_number(given["s"], given["dtype"])


def _starts(given: Arguments) -> None:
    """Of a range whose end is a tensor."""
    if given["dtype"] is not None and given["steps"] != 0:
        check_number(given["start"], given["dtype"])


def _pads(given: Arguments) -> None:
    if any(type(n) is not int or n > 0 for n in given["pad"]):
        check_number(given["value"], given["self"]._dtype)


def _dims_once(given: Arguments) -> None:
    wrapped = [wrap_dim(d, given.rank("self")) for d in given["dims"]]
    for d in wrapped:
        if wrapped.count(d) > 1:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")


_DIVISOR = Requirement(lambda given: given["divisor_override"] != 0, "divisor must be not zero")

TABLE: Mapping[str, tuple[Requirement, ...]] = {
    "fill.Scalar": (_fills("value", _own_sizes),),
    "full_like.default": (_fills("fill_value", _own_sizes),),
    "new_full.default": (_fills("fill_value", _asked_sizes),),
    "full.default": (_fills("fill_value", _asked_sizes),),
    "scalar_tensor.default": (raising(_is_scalar),),
    "constant_pad_nd.default": (raising(_pads),),
    "linspace.Scalar_Tensor": (raising(_starts),),
    "_unsafe_masked_index.default": (fit_dtype_of_self("fill"),),
    "avg_pool2d.default": (_DIVISOR,),
    "avg_pool3d.default": (_DIVISOR,),
    "flip.default": (raising(_dims_once),),
    "smooth_l1_loss.default": (
        Requirement(
            lambda given: given["beta"] >= 0,
            "smooth_l1_loss does not support negative values for beta.",
        ),
    ),
    "huber_loss.default": (
        Requirement(
            lambda given: given["delta"] > 0,
            "huber_loss does not support non-positive values for delta.",
        ),
    ),
}
"""Requirements by operator, as in `index_requirements`."""
