"""Regions: the compiled code that all calls of `optimize` for the same code share.

A region is a capture context. It is found again by the code that is optimized, the backend and the
settings, also when no wrapper is left that uses it: a program may optimize a function in each step,
or each of a model's layers. It goes with the code; of regions without a wrapper, those used last
are kept.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from dovetail_capture.frames.context import CaptureContext

MOST_UNUSED_HERE = 8  # regions of one anchor that are kept though no wrapper uses them
MOST_ANCHORS = 256  # of those used last, regions without a wrapper are kept

_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl", "__call__")


def code_of(target: Any) -> CodeType | None:
    """The code that a call of `target` runs, if it is written in Python."""
    if isinstance(target, torch.nn.Module):
        target = target.forward
    if isinstance(target, MethodType):
        target = target.__func__
    code = getattr(target, "__code__", None)
    if code is None:
        code = getattr(inspect.getattr_static(target, "__call__", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def anchor_of(target: Any) -> Any:
    """What the regions of `target` live as long as, and are found by: its code. That of a module's
    own calling methods, which all modules have, tells nothing: there it is the code of its
    `forward`."""
    if isinstance(target, MethodType) and isinstance(target.__self__, torch.nn.Module):
        if target.__name__ in _MODULE_CALLS:
            target = target.__self__
    if isinstance(target, functools.partial):
        return anchor_of(target.func)
    return code_of(target) or target


@dataclass
class _Place:
    """The regions of one anchor; of those without a wrapper, `kept` are the ones used last."""

    anchor: weakref.ref[Any]
    known: list[tuple[Hashable, weakref.ref[CaptureContext]]] = field(default_factory=list)
    kept: list[CaptureContext] = field(default_factory=list)

    def use(self, region: CaptureContext) -> None:
        self.kept = [*(r for r in self.kept if r is not region), region][-MOST_UNUSED_HERE:]


def structure_of(target: Any) -> Hashable:
    """Of a module, or a method of one, what tells modules of equal structure, which the same code
    may serve: the classes of its parts, the kinds and sizes of its parameters and buffers."""
    module = target.__self__ if isinstance(target, MethodType) else target
    if not isinstance(module, torch.nn.Module):
        return None
    try:
        parts: list[Any] = [(n, type(part)) for n, part in torch.nn.Module.named_modules(module)]
    except AttributeError:  # it, or a part of it, is a copy that is being made: like no other
        return object()
    for members in (torch.nn.Module.named_parameters, torch.nn.Module.named_buffers):
        for name, tensor in members(module):
            sizes = None if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)
            layout = (tensor.dtype, tensor.device, tensor.requires_grad, tensor.layout)
            parts.append((name, type(tensor), *layout, sizes))
    return hash(tuple(parts))


class Regions:
    """The regions that there are. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._places: dict[int, _Place] = {}  # by the id of the anchor, used last at the end

    def find(
        self,
        target: Any,
        fits: Callable[[CaptureContext], bool],
        make: Callable[[], CaptureContext],
    ) -> CaptureContext:
        """The region of `target` that fits, or a new one."""
        structure = structure_of(target)
        with self._lock:
            place = self._place(anchor_of(target))
            if place is None:
                return make()
            known = [(key, r) for key, ref in place.known if (r := ref()) is not None]
            region = next((r for key, r in known if key == structure and fits(r)), None)
            if region is None:
                region = make()
                known.append((structure, region))
            place.known = [(key, weakref.ref(r)) for key, r in known]
            place.use(region)
            return region

    def forget_unused(self) -> None:
        """Let go of regions that no wrapper uses."""
        with self._lock:
            for place in list(self._places.values()):
                place.kept = []

    def _place(self, anchor: Any) -> _Place | None:
        key = id(anchor)
        place = self._places.pop(key, None)
        if place is None:
            table = weakref.ref(self)

            def forget(_: Any) -> None:  # (in any thread, at any time: one step, and no lock)
                regions = table()
                if regions is not None:
                    regions._places.pop(key, None)

            try:
                place = _Place(weakref.ref(anchor, forget))
            except TypeError:  # nothing tells when another object gets its id
                return None
            self._let_go()
        self._places[key] = place
        return place

    def _let_go(self) -> None:
        """Forget the regions of anchors that were used long ago, but for those with a wrapper."""
        # (A copy is one step; a list of pairs is not: anchors may be collected while it is made.)
        for key, place in list(self._places.copy().items())[:-MOST_ANCHORS]:
            place.kept = []
            if all(ref() is None for _, ref in place.known):
                self._places.pop(key, None)


def same_backend(one: Any, other: Any) -> bool:
    """Are two backends one: the same object, or equal values?"""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, FunctionType) or type(one).__hash__ is None:
        return False
    return bool(one == other)
