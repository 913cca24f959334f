"""What ATen's operators that move or make values, and compute nothing, are in ONNX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from dovetail.backends.onnx_writer import ModelWriter, Rule, Unsupported

_LARGEST = np.iinfo(np.int64).max


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a call by name, with the schema's defaults."""
    schema = node.target._schema  # type: ignore[union-attr]
    found = {a.name: a.default_value for a in schema.arguments}
    found.update(zip(found, node.args, strict=False))
    return {**found, **node.kwargs}


def shape_of(node: Node) -> list[int]:
    """The sizes of what a node gives."""
    return list(node.meta["val"].shape)


def ints(w: ModelWriter, values: Sequence[int]) -> str:
    """A constant of int64 numbers."""
    return w.constant(list(values), np.int64)


def named(names: str, rule: Rule) -> dict[str, Rule]:
    """One rule for several ATen operators, by their names."""
    return {f"aten.{name}": rule for name in names.split()}


def only_floats(node: Node) -> None:
    """Refuse a call that gives anything but floats."""
    if node.meta["val"].dtype != torch.float32:
        raise Unsupported("arithmetic that is not on floats")


def _reshaped(w: ModelWriter, node: Node) -> str:
    first = node.args[0]
    assert isinstance(first, Node)
    return w.emit("Reshape", w.of(first, first.meta["val"].dtype), ints(w, shape_of(node)))


def _same(w: ModelWriter, node: Node) -> str:
    first = node.args[0]
    assert isinstance(first, Node)
    return w.emit("Identity", w.of(first, first.meta["val"].dtype))


def _kept(w: ModelWriter, node: Node) -> tuple[str, list[int]]:
    """The name and shape of the first argument, in its own dtype."""
    first = node.args[0]
    assert isinstance(first, Node)
    return w.of(first, first.meta["val"].dtype), shape_of(first)


def _permuted(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    order = [d % len(shape) for d in arguments_of(node)["dims"]]
    return w.emit("Transpose", x, perm=order)


def _sliced(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    a = arguments_of(node)
    start, end = a["start"] or 0, _LARGEST if a["end"] is None else a["end"]
    dim = a["dim"] % len(shape)
    return w.emit("Slice", x, *(ints(w, [v]) for v in (start, end, dim, a["step"])))


def _selected(w: ModelWriter, node: Node) -> str:
    x, shape = _kept(w, node)
    a = arguments_of(node)
    dim = a["dim"] % len(shape)
    place = a["index"] % shape[dim]
    row = w.emit("Slice", x, *(ints(w, [v]) for v in (place, place + 1, dim, 1)))
    return w.emit("Reshape", row, ints(w, shape_of(node)))


def _concatenated(w: ModelWriter, node: Node) -> str:
    a = arguments_of(node)
    parts = a["tensors"]
    dtype = node.meta["val"].dtype
    return w.emit("Concat", *(w.of(p, dtype) for p in parts), axis=a["dim"] % len(shape_of(node)))


def _padded(w: ModelWriter, node: Node) -> str:
    a = arguments_of(node)
    pads, rank = a["pad"], len(shape_of(node))
    if any(p < 0 for p in pads):
        raise Unsupported("padding that cuts off")
    only_floats(node)
    before, after = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return w.emit("Pad", w.of(a["self"]), ints(w, [*before, *after]), w.constant(a["value"]))


def _filled(value: float | None = None) -> Rule:
    def rule(w: ModelWriter, node: Node) -> str:
        a = arguments_of(node)
        given = next((a[k] for k in ("fill_value", "s") if k in a), None)
        dtype = np.bool_ if node.meta["val"].dtype == torch.bool else np.float32
        one = w.constant(given if value is None else value, dtype)
        return w.emit("Expand", one, ints(w, shape_of(node)))

    return rule


# Alone they are no reason for a region.
MOVING: Mapping[str, Rule] = {
    **named(
        "view.default _unsafe_view.default reshape.default unsqueeze.default squeeze.dim "
        "squeeze.dims squeeze.default",
        _reshaped,
    ),
    **named("clone.default alias.default detach.default lift_fresh_copy.default", _same),
    **named(
        "_to_copy.default",
        lambda w, node: w.emit("Identity", w.of(node.args[0], node.meta["val"].dtype)),
    ),
    **named("permute.default", _permuted),
    **named(
        "expand.default",
        lambda w, node: w.emit("Expand", _kept(w, node)[0], ints(w, shape_of(node))),
    ),
    **named("slice.Tensor", _sliced),
    **named("select.int", _selected),
    **named("cat.default", _concatenated),
    **named("constant_pad_nd.default", _padded),
    **named("full.default scalar_tensor.default full_like.default", _filled()),
    **named("zeros.default zeros_like.default", _filled(0)),
    **named("ones.default ones_like.default", _filled(1)),
}
