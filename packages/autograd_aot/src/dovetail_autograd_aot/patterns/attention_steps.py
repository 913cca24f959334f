"""Steps of attention as programs write them: products, softmax, dropout, casts; and what a node of
a captured graph does besides giving a value."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.fake_tensor import FakeTensor
from torch.fx import Node

HALVES = (torch.float16, torch.bfloat16)
_PRODUCTS: Collection[Any] = {operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"}
_SOFTMAX: Collection[Any] = {F.softmax, torch.softmax, "softmax"}
_DROPOUT: Collection[Any] = {F.dropout, torch.dropout}
_IN_PLACE = {
    "setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod",
    "imul", "ior", "ipow", "irshift", "isub", "itruediv", "ixor",
}  # fmt: skip
CASTS: Collection[Any] = {"float", "half", "bfloat16", "to", "type_as"}


@dataclass
class Written:
    """What was found from the second product back to the first."""

    scale: float = 1.0
    hidden: Node | None = None  # True where a score is filled
    transposed: bool = False  # the first product's right operand is the key as it is
    inverted: bool = False  # `hidden` is True where one is kept
    fill: float = 0.0
    added: Node | None = None  # what is added to the scores
    chain: list[Node] = field(default_factory=list)  # what nobody else may read


def fake_of(node: Any) -> FakeTensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, FakeTensor) else None


def read_once(node: Any) -> bool:
    """True for a node that is needed for one other alone."""
    return isinstance(node, Node) and len(node.users) == 1 and fake_of(node) is not None


def operands_of(node: Node, written: Written | None = None) -> tuple[Node, Node] | None:
    """The two factors of a product of matrices; with `written`, of the first one."""
    args: Sequence[Any] = node.args
    if node.target is torch.functional.einsum and args and isinstance(args[0], str):
        if not _is_product(args[0], written is not None):
            return None
        args = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        if written is not None:
            written.transposed = True
    elif node.target not in _PRODUCTS:
        return None
    if len(args) != 2 or node.kwargs:
        return None
    left, right = args
    return (left, right) if isinstance(left, Node) and isinstance(right, Node) else None


def _is_product(equation: str, of_keys: bool) -> bool:
    """True for `...id,...jd->...ij` (queries by keys) or `...ij,...jd->...id`."""
    left, comma, rest = equation.replace(" ", "").partition(",")
    right, arrow, out = rest.partition("->")
    letters = set(left + right)
    if not (comma and arrow and len(left) == len(right) == len(out) >= 3):
        return False
    batch = left[:-2]
    distinct = len(letters) == len(batch) + 3 and all(letter.isalpha() for letter in letters)
    same = right[:-2] == out[:-2] == batch and out[-2] == left[-2]
    if of_keys:
        return distinct and same and left[-1] == right[-1] and out[-1] == right[-2]
    return distinct and same and left[-1] == right[-2] and out[-1] == right[-1]


def dropped_nothing(node: Node, written: Written) -> Node | None:
    """What goes through a dropout that drops nothing."""
    if node.target not in _DROPOUT:
        return node
    named = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    source, idle = named.get("input"), named.get("training", True) is False or named.get("p") == 0
    if not idle or not read_once(node) or not isinstance(source, Node):
        return None
    written.chain.append(node)
    return source


def cast_source(node: Node, written: Written) -> Node:
    """What was converted from one floating type to another, if that is all."""
    while node.target in CASTS and node.op == "call_method" and read_once(node):
        source = node.args[0]
        before, after = fake_of(source), fake_of(node)
        if before is None or after is None or before._device != after._device:
            return node
        if not (before._dtype.is_floating_point and after._dtype.is_floating_point):
            return node
        assert isinstance(source, Node)
        written.chain.append(node)
        node = source
    return node


def softmax_of(node: Node, written: Written) -> Node | None:
    """A softmax over the last dimension."""
    if node.target not in _SOFTMAX or not read_once(node):
        return None
    named = dict(zip(("input", "dim"), node.args, strict=False)) | node.kwargs
    source, dim, own = named.get("input"), named.get("dim"), fake_of(node)
    if named.keys() - {"input", "dim", "dtype", "_stacklevel"} or own is None:
        return None
    if own._dtype not in (*HALVES, torch.float32) or dim not in (-1, len(own._sizes) - 1):
        return None
    written.chain.append(node)
    return source if isinstance(source, Node) else None


def writes(node: Node) -> bool:
    """True for an operation in place, and for what may be one."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if getattr(operator, name, None) is node.target:
        return name in _IN_PLACE
    return "out" in node.kwargs or (name.endswith("_") and not name.endswith("__"))


def is_pure(node: Node) -> bool:
    """False for what writes, or enters or leaves a mode, or does anything but give a value."""
    if node.op in ("placeholder", "get_attr", "output"):
        return node.op != "output"
    return not writes(node) and node.meta.get("val") is not None


def float_source(node: Node) -> Node:
    """What was converted between floating types, if that is all."""
    while node.target in CASTS and node.op == "call_method" and len(node.users) == 1:
        source = node.args[0]
        before, after = fake_of(source), fake_of(node)
        if before is None or after is None or not isinstance(source, Node):
            break
        if not (before._dtype.is_floating_point and after._dtype.is_floating_point):
            break
        node = source
    return node


def narrow_source(node: Node) -> Node:
    """What was converted to a wider floating type."""
    while node.target in CASTS and node.op == "call_method":
        source = node.args[0]
        before, after = fake_of(source), fake_of(node)
        if before is None or after is None or not isinstance(source, Node):
            break
        if before._dtype is not after._dtype and before._dtype not in HALVES:
            break
        node = source
    return node


def unrepeated(node: Node) -> Node:
    """What heads were repeated of, each in turn; `node` if none were."""
    node = narrow_source(node)
    if node.target in ("repeat_interleave", torch.repeat_interleave):
        source = node.args[0]
        if len(node.args) == 3 and node.args[2] == 1 and type(node.args[1]) is int:
            return narrow_source(source) if isinstance(source, Node) else node
    if node.target in ("reshape", "view"):  # [b, h, n, d] -> [b, h, 1, n, d] -> expanded -> here
        wide = node.args[0]
        if isinstance(wide, Node) and wide.target == "expand" and isinstance(wide.args[0], Node):
            source = _lifted_from(wide.args[0])
            before, between, after = (fake_of(n) for n in (wide.args[0], wide, node))
            if source is None or before is None or between is None or after is None:
                return node
            (b, h, _, n, d), times = before._sizes, between._sizes[2]
            grouped = tuple(between._sizes) == (b, h, times, n, d)
            if grouped and tuple(after._sizes) == (b, h * times, n, d):
                return narrow_source(source)
    return node


def _lifted_from(node: Node) -> Node | None:
    """x of `x[:, :, None, :, :]` or `x.unsqueeze(2)`, of four dimensions."""
    source = node.args[0] if node.args else None
    value = fake_of(source)
    if not isinstance(source, Node) or value is None or len(value._sizes) != 4:
        return None
    after = fake_of(node)
    if after is None or len(after._sizes) != 5 or after._sizes[2] != 1:
        return None
    whole = slice(None)
    if node.target is operator.getitem:
        parts = node.args[1]
        lifts = isinstance(parts, tuple) and parts in (
            (whole, whole, None), (whole, whole, None, whole), (whole, whole, None, whole, whole)
        )  # fmt: skip
        return source if lifts else None
    return source if node.target == "unsqueeze" and node.args[1] == 2 else None
