"""Which functions of `torch.optim` run as they are written in this package: LBFGS's step
(`lbfgs.py`), and that of SparseAdam, where one graph a parameter updates the rows that a sparse
gradient tells of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import LBFGS, _functional

from dovetail_capture.extensions.optimizers import step_parts as parts
from dovetail_capture.extensions.optimizers.lbfgs import can_drive, lbfgs_step
from dovetail_capture.interpreter.machine.machine import Substitute


def _lbfgs(function: FunctionType) -> Callable[..., Any]:
    # Other code of the same text, in place of which nothing runs.
    code = function.__code__.replace()
    as_it_is = FunctionType(code, function.__globals__, closure=function.__closure__)

    def step(optimizer: LBFGS, closure: Callable[[], Any]) -> Any:
        run = lbfgs_step if can_drive(optimizer) else as_it_is
        return run(optimizer, closure)

    return step


def _calling(function: FunctionType, stands_in: Callable[..., Any]) -> CodeType:
    """Code with the signature of `function` that calls another."""
    code = function.__code__
    assert not code.co_freevars
    positional = code.co_varnames[: code.co_argcount]
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    takes = ", ".join([*positional, *(["*", *named] if named else [])])
    gives = ", ".join([*positional, *(f"{name}={name}" for name in named)])
    text = f"def call({takes}):\n    run = 'what stands in'\n    return run({gives})\n"
    module = compile(text, code.co_filename, "exec", dont_inherit=True)
    (made,) = (constant for constant in module.co_consts if isinstance(constant, CodeType))
    constants = tuple(stands_in if c == "what stands in" else c for c in made.co_consts)
    return made.replace(
        co_consts=constants,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_firstlineno=code.co_firstlineno,
    )


def sparse_adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[int],
    **rule: Any,
) -> None:
    """`torch.optim._functional.sparse_adam`: sparse gradients (COO), dense parameters and means.
    `rule` has its keywords."""
    beta1, beta2 = rule["beta1"], rule["beta2"]
    for param, grad, mean, square, count in zip(
        params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True
    ):
        if torch.are_deterministic_algorithms_enabled():
            grad = grad.coalesce()  # (which adds up in a fixed order)
        values = grad._values()
        if values.numel() == 0:
            continue
        if not grad.is_coalesced():
            sizes = tuple(grad.shape[: grad.sparse_dim()])
            values = parts.summed_in_place(grad._indices(), values, sizes)
        unbias = math.sqrt(1 - beta2**count) / (1 - beta1**count)
        parts.adam_of_rows(
            param,
            mean,
            square,
            grad._indices().unbind(),
            -values if rule["maximize"] else values,
            (beta1, beta2),
            rule["lr"] * unbias,
            rule["eps"],
        )


_LBFGS = cast(FunctionType, unwrap(LBFGS.step))
_SPARSE_ADAM = cast(FunctionType, _functional.sparse_adam)
_IN_PARTS = "its parts are captured one by one"

DRIVEN: dict[CodeType, Substitute] = {
    _LBFGS.__code__: Substitute(
        _calling(_LBFGS, _lbfgs(_LBFGS)), f"LBFGS decides by its losses at every turn: {_IN_PARTS}"
    ),
    _SPARSE_ADAM.__code__: Substitute(
        _calling(_SPARSE_ADAM, sparse_adam), f"SparseAdam has sparse gradients: {_IN_PARTS}"
    ),
}
