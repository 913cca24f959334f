"""Attention that a program calls, in a captured graph; and what is known of attention once it is
found there.

`scaled_dot_product_attention` is left to the library, but for a mask that is a function of places,
and for few queries, as in generating text: these read keys and values faster in kernels of ours,
each head of keys once, whatever heads of queries there are, and what a mask hides not at all.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from math import prod

import torch
import torch.nn.functional as F
from torch.fx import Node

from dovetail_autograd_aot.patterns.attention_steps import fake_of, is_pure, unrepeated

# Rows of one head of keys, each a query of a head that it serves, that a kernel of few queries has.
MOST_FEW = 16
WIDEST_OF_FEW = 128  # numbers of a head for which there is such a kernel
_ARGUMENTS = (
    "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"
)  # fmt: skip


@dataclass(frozen=True)
class Operands:
    """Queries, keys (`transposed`: as they are, not turned) and values, [b, h, n, d]."""

    query: Node
    key: Node
    value: Node
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of scores."""
        q, k = self.query.meta["val"]._sizes, self.key.meta["val"]._sizes
        return (*q[:3], k[2] if self.transposed else k[3])

    @property
    def key_heads(self) -> int:
        """How many heads of keys there are."""
        found: int = self.key.meta["val"]._sizes[1]
        return found

    @property
    def device(self) -> torch.device:
        """Where all is computed."""
        found: torch.device = self.query.meta["val"]._device
        return found


@dataclass
class ScoreFunction:
    """The nodes between the first product and the scores that shares are made of: `path` leads from
    the one to the other; `sunk` is computed with it, `captured` read by it. Once it is traced:
    the function as `text`, `derived` if that has its derivative."""

    path: list[Node] = field(default_factory=list)
    sunk: list[Node] = field(default_factory=list)
    captured: list[Node] = field(default_factory=list)
    text: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Found:
    """Attention in a graph: `last` is the product that ends it, `sums` what gives the logarithms of
    the sums of exponentials, if something does; a row of no scores gives `empty`.

    Where attention is what the program calls, there is neither product nor path: scores are `scale`
    times the products, where `mask` holds, or plus `mask` if that is no boolean one.
    """

    last: Node
    operands: Operands
    empty: float
    product: Node | None = None
    scores: Node | None = None
    sums: Node | None = None
    mask: Node | None = None
    scale: float = 1.0
    function: ScoreFunction = field(default_factory=ScoreFunction)

    @property
    def reads(self) -> int:
        """Elements of keys and values."""
        keys, values = (n.meta["val"]._sizes for n in (self.operands.key, self.operands.value))
        return int(prod(keys) + prod(values))

    @property
    def of_few_queries(self) -> bool:
        """Whether all queries that read a head of keys fit in one tile, as in generating text."""
        _, heads, m, _ = self.operands.shape
        kept = (self.operands.query, self.operands.value)
        narrow = all(n.meta["val"]._sizes[3] <= WIDEST_OF_FEW for n in kept)
        return narrow and heads // self.operands.key_heads * m <= MOST_FEW


def call_with_a_mask(last: Node) -> Found | None:
    """Attention with a boolean mask, and 0 where a row of the mask holds nowhere."""
    if last.target is not torch.where or len(last.args) != 3 or last.args[2] != 0.0:
        return None
    some, call, _ = last.args
    if not isinstance(some, Node) or not isinstance(call, Node) or len(call.users) != 1:
        return None
    if call.target is not F.scaled_dot_product_attention or len(call.args) != 3:
        return None
    hidden = call.kwargs.get("attn_mask")
    if some.target != "any" or some.args[1:] != (-1,) or some.kwargs != {"keepdim": True}:
        return None
    seen = some.args[0]
    if not isinstance(hidden, Node) or hidden.target is not operator.or_:
        return None
    other = hidden.args[1]
    inverted = isinstance(other, Node) and other.target in (operator.invert, operator.inv)
    if hidden.args[0] is not seen or not inverted or other.args != (some,):  # type: ignore[union-attr]
        return None
    scale = call.kwargs.get("scale")
    if call.kwargs.keys() - {"attn_mask", "scale", "enable_gqa"} or not isinstance(scale, float):
        return None
    operands = [a for a in call.args if isinstance(a, Node)]
    if len(operands) != 3 or not isinstance(seen, Node) or fake_of(seen) is None:
        return None
    query, key, value = operands
    return Found(last, Operands(query, key, value, True), 0.0, mask=seen, scale=scale)


def called_by_program(last: Node, order: dict[Node, int]) -> Found | None:
    """Attention that the program calls, maybe with a mask, which is read: as it is, or added."""
    if last.target is not F.scaled_dot_product_attention:
        return None
    named = dict(zip(_ARGUMENTS, last.args, strict=False)) | last.kwargs
    query, key, value, mask = (named.get(name) for name in _ARGUMENTS[:4])
    if not (isinstance(query, Node) and isinstance(key, Node) and isinstance(value, Node)):
        return None
    sizes = [fake_of(n) for n in (query, key, value)]
    if any(fake is None or len(fake._sizes) != 4 for fake in sizes):
        return None
    if named.get("dropout_p", 0.0) != 0.0 or named.get("is_causal", False) is not False:
        return None
    scale = named.get("scale")
    width = query.meta["val"]._sizes[3]
    scale = width**-0.5 if scale is None and type(width) is int else scale
    masked = mask is None or (isinstance(mask, Node) and fake_of(mask) is not None)
    if type(scale) is not float or not masked:
        return None
    first = min(order[key], order[value])
    if all(is_pure(n) for n, at in order.items() if first < at < order[last]):
        key, value = unrepeated(key), unrepeated(value)
    function = ScoreFunction(captured=[mask] if isinstance(mask, Node) else [])
    operands = Operands(query, key, value, True)
    return Found(last, operands, 0.0, mask=mask, scale=scale, function=function)  # type: ignore[arg-type]
