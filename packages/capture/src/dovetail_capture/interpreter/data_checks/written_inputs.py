"""The inputs that a graph writes to, and whether the frame can be run again once they are put back.

A check of data (`value_checks`) that does not hold runs the frame again, from its beginning. What
the graph has written to by then is put back from copies that are made before it runs, where these
are few and small: running statistics, counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from dovetail_prims.gradient_hooks import GradientHook

from dovetail_capture.interpreter.graph.aliasing import written_by
from dovetail_capture.interpreter.values.tensors import TensorValue

if TYPE_CHECKING:
    from dovetail_capture.interpreter.session.session import Session

_MOST_BYTES = 1 << 20  # of all copies
_MOST_COPIES = 32


def written_inputs(session: Session) -> list[TensorValue]:
    """The inputs that the graph may write to, or that share memory with one."""
    inputs = [value for _, value in session.inputs.entries if isinstance(value, TensorValue)]
    places = {_place(value.fake) for value in inputs}
    written = {_place(v.fake) for v in inputs if not v.fake.is_inference() and v.fake._version}
    for node in session.recorder.graph.nodes:
        parts = (part.meta.get("val") for part in written_by(node))
        written |= {_place(part) for part in parts} & places
    return [value for value in inputs if _place(value.fake) in written]


def can_run_again(session: Session) -> bool:
    """Does the graph leave nothing behind that cannot be put back?"""
    if any(isinstance(node.target, GradientHook) for node in session.recorder.graph.nodes):
        return False
    written = written_inputs(session)
    if not written:
        return True
    if not session.checks.holds or len(written) > _MOST_COPIES:
        return False
    if session.recorder.has_other_layouts() or not all(map(_can_be_saved, written)):
        return False
    return bool(sum(value.real.nbytes for value in written) <= _MOST_BYTES)


def _can_be_saved(value: TensorValue) -> bool:
    """Is the input, as it is in each call, all of its memory, and does no gradient flow into it?"""
    real, fake = value.real, value.fake
    if value.cls not in (torch.Tensor, torch.nn.Parameter) or type(real) is not value.cls:
        return False
    if fake.requires_grad or real.requires_grad or real.is_inference():
        return False
    if any(type(number) is not int for number in (*fake._sizes, *fake._strides)):
        return False
    return bool(real.untyped_storage().nbytes() == real.nbytes and real.is_contiguous())


def _place(fake: object) -> int:
    return id(getattr(fake, "_storage", fake))
