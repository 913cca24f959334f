"""The extensions that there are: what each adds to the tables of library functions."""

from __future__ import annotations

from dovetail_capture.extensions import checkpointing, differentiation, flex_attention
from dovetail_capture.extensions.autograd_functions import autograd_functions
from dovetail_capture.extensions.higher_order import higher_order
from dovetail_capture.extensions.numpy import array_operators, numpy_functions
from dovetail_capture.extensions.optimizers import driven_steps, optimizers
from dovetail_capture.extensions.transforms import derivatives, transforms
from dovetail_capture.extensions.triton import triton_launches
from dovetail_capture.interpreter.machine.machine import Extension

EXTENSIONS = (
    Extension("autograd.Function", autograd_functions.HANDLERS),
    Extension("checkpointing", checkpointing.HANDLERS),
    Extension("differentiation", differentiation.HANDLERS),
    Extension("flex attention", named_handlers=flex_attention.BY_NAME),
    Extension("higher-order operators", higher_order.HANDLERS),
    Extension("NumPy", numpy_functions.HANDLERS, arrays=array_operators),
    Extension(
        "optimizers", optimizers.HANDLERS, optimizers.CODE_HANDLERS, substitutes=driven_steps.DRIVEN
    ),
    Extension(
        "transforms",
        {**transforms.HANDLERS, **derivatives.HANDLERS},
        transforms.CODE_HANDLERS,
        without_frame=transforms.CODE_HANDLERS,
    ),
    Extension("Triton", named_handlers=triton_launches.BY_NAME),
)
