"""`Reduction`: how a loop nest makes one value of many, and the reductions there are.

A reduction, a scan (which writes every partial result) and a scatter (which combines what meets at
one place) are told by the same values. Passes and code generators ask their properties, never
their names. A new one that combines values needs its line here, a lowering rule, and how to fold a
vector (C++) or a block (Triton) by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

# The value that a reduction begins with: a number, or the least or greatest one of the dtype.
Identity = Literal["zero", "one", "least", "greatest"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction over the points of some loops.

    combine: the scalar op that makes one of two partial results (`logaddexp` is none: what a scan
        by it computes is written out).
    begin: its neutral element, as `identity` spells it for a dtype.
    with_index: the result is the int64 position of the first extreme element along the flattened
        reduction variables, in place of the element (NaN is extreme in both).
    over_bool: the name of the reduction that means the same on truth values; None is its own.
    of_products: its elements are products, which may join the sum without being rounded first.
    """

    name: str
    combine: str
    begin: Identity
    with_index: bool = False
    over_bool: str | None = None
    of_products: bool = False

    def __str__(self) -> str:
        return self.name

    def identity(self, dtype: torch.dtype) -> float | int | bool:
        """The element of a dtype that leaves a partial result as it is."""
        if self.begin in ("zero", "one"):
            one = self.begin == "one"
            return one if dtype is torch.bool else int(one)
        least = self.begin == "least"
        if dtype is torch.bool:
            return not least
        if dtype.is_floating_point:
            return float("-inf") if least else float("inf")
        limits = torch.iinfo(dtype)
        return int(limits.min if least else limits.max)

    @property
    def is_sum(self) -> bool:
        """Whether partial results are added: linear in its elements, so that factors and shifts
        can be moved in and out."""
        return self.combine == "add"

    @property
    def is_extreme(self) -> bool:
        """Whether the result is one of the elements: nothing is rounded."""
        return self.combine in ("maximum", "minimum")

    @property
    def adds_logarithms(self) -> bool:
        """Whether elements are logarithms of what is added up."""
        return self.combine == "logaddexp"

    @property
    def finds_largest(self) -> bool:
        """Whether the largest element wins."""
        return self.combine == "maximum"

    @property
    def is_true_if_any(self) -> bool:
        """Of truth values: whether one true element makes the result true."""
        return self.combine in ("bitwise_or", "maximum")

    @property
    def of_values(self) -> Reduction:
        """The reduction that gives the extreme element itself."""
        return MAX if self.finds_largest else MIN

    @property
    def in_order(self) -> bool:
        """Whether the order in which the elements are counted decides the result."""
        return self.with_index

    def accumulates_error(self, dtype: torch.dtype) -> bool:
        """Whether the rounding error of one accumulator of this dtype grows with the number of
        elements so much that it must be wider, or made of several."""
        return self.is_sum and dtype is torch.float32

    def on(self, dtype: torch.dtype) -> Reduction:
        """The reduction that computes this one's results for elements of a dtype."""
        return REDUCTIONS[self.over_bool] if dtype is torch.bool and self.over_bool else self


SUM = Reduction("sum", "add", "zero", over_bool="any")
SUM_OF_PRODUCTS = replace(SUM, of_products=True)
PROD = Reduction("prod", "mul", "one", over_bool="all")
MAX = Reduction("max", "maximum", "least", over_bool="any")
MIN = Reduction("min", "minimum", "greatest", over_bool="all")
ANY = Reduction("any", "bitwise_or", "zero")
ALL = Reduction("all", "bitwise_and", "one")
XOR = Reduction("xor", "bitwise_xor", "zero")
LOGSUMEXP = Reduction("logsumexp", "logaddexp", "least")
ARGMAX = Reduction("argmax", "maximum", "least", with_index=True)
ARGMIN = Reduction("argmin", "minimum", "greatest", with_index=True)

REDUCTIONS = {r.name: r for r in (SUM, PROD, MAX, MIN, ANY, ALL, XOR, ARGMAX, ARGMIN)}
# What running totals are of: `cumsum`, `cumprod` and so on.
SCANS = (SUM, PROD, MAX, MIN, LOGSUMEXP)
