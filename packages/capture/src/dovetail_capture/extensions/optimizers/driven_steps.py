"""Which functions of `torch.optim` run as they are written in this package."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, cast

from torch.optim import LBFGS, _functional

from dovetail_capture.extensions.optimizers.lbfgs import can_drive, lbfgs_step
from dovetail_capture.extensions.optimizers.sparse_adam import sparse_adam
from dovetail_capture.interpreter.machine.handler_types import Substitute


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
