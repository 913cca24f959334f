"""Which function of torch, or of `numpy_on_tensors`, computes each of NumPy's."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dovetail_capture.extensions.numpy import numpy_on_tensors as twins

UFUNCS = {
    "+": "add", "-": "subtract", "*": "multiply", "/": "true_divide", "//": "floor_divide",
    "%": "remainder", "**": "power", "@": "matmul", "&": "bitwise_and", "|": "bitwise_or",
    "^": "bitwise_xor", "<<": "left_shift", ">>": "right_shift", "<": "less", "<=": "less_equal",
    "==": "equal", "!=": "not_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "@": operator.matmul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
# name -> (twin, does it compute in the result's dtype); None: the same as the function of the name.
FUNCTIONS: dict[str, tuple[Any, bool]] = {
    "sum": (twins.sum_, True), "mean": (twins.mean, True), "std": (twins.std, True),
    "var": (twins.var, True), "prod": (twins.prod, True), "max": (twins.max_, True),
    "min": (twins.min_, True), "argmax": (twins.argmax, False), "argmin": (twins.argmin, False),
    "all": (twins.all_, False), "any": (twins.any_, False), "cumsum": (twins.cumsum, True),
    "cumprod": (twins.cumprod, True), "transpose": (twins.transpose, False),
    "reshape": (twins.reshape, False), "ravel": (twins.ravel, False), "copy": (twins.copy, False),
    "squeeze": (twins.squeeze, False), "expand_dims": (twins.expand_dims, False),
    "swapaxes": (twins.swapaxes, False), "moveaxis": (twins.moveaxis, False),
    "concatenate": (twins.concatenate, True), "stack": (twins.stack, True),
    "vstack": (twins.vstack, True), "hstack": (twins.hstack, True), "clip": (twins.clip, True),
    "dot": (twins.dot, True), "outer": (twins.outer, True), "einsum": (twins.einsum, True),
    "tile": (twins.tile, False), "flip": (twins.flip, False), "roll": (twins.roll, False),
    "tril": (twins.tril, False), "triu": (twins.triu, False), "sort": (twins.sort, False),
    "broadcast_to": (twins.broadcast_to, False), "zeros_like": (twins.zeros_like, False),
    "empty_like": (twins.zeros_like, False),
    "ones_like": (twins.ones_like, False), "full_like": (twins.full_like, True),
    "trace": (twins.trace, True), "diff": (twins.diff, True), "amax": (twins.max_, True),
    "amin": (twins.min_, True), "meshgrid": (twins.meshgrid, False),
    "take_along_axis": (twins.take_along_axis, False), "repeat": (twins.repeat, False),
    "split": (twins.split, False), "fliplr": (twins.fliplr, False),
    "flipud": (twins.flipud, False), "rot90": (twins.rot90, False), "diag": (twins.diag, False),
    "atleast_1d": (twins.atleast_1d, False), "atleast_2d": (twins.atleast_2d, False),
    "column_stack": (twins.column_stack, True), "dstack": (twins.dstack, True),
    "nan_to_num": (twins.nan_to_num, True), "kron": (twins.kron, True),
    "count_nonzero": (twins.count_nonzero, False), "inner": (twins.inner, True),
    "ptp": (twins.ptp, True), "round": (twins.round_, True), "around": (twins.round_, True),
}  # fmt: skip
# Functions of a sequence of arrays, or of what becomes an array.
OF_SEQUENCES = ("concatenate", "stack", "vstack", "hstack", "dstack", "column_stack")
OF_SEVERAL = ("meshgrid", "einsum")  # arguments, as many as there are
OF_TWO = ("dot", "outer", "kron", "inner", "take_along_axis")
METHODS: dict[str, tuple[Any, bool]] = {
    **{name: FUNCTIONS[name] for name in (
        "sum", "mean", "std", "var", "prod", "max", "min", "argmax", "argmin", "all", "any",
        "cumsum", "cumprod", "ravel", "copy", "squeeze", "swapaxes", "dot", "trace", "round",
    )},
    "transpose": (twins.transpose_method, False), "reshape": (twins.reshape_method, False),
    "repeat": (twins.repeat, False),
    "clip": (twins.clip_method, True), "flatten": (twins.flatten, False),
}  # fmt: skip
