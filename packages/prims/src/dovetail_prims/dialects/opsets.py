"""The op sets of the dialects, as plain tables: the contract between whoever makes graphs and
whoever compiles them. All are read off the cards.

Names are `<aten op>.<overload>`. In CORE_ATEN a binary pointwise op takes a tensor or a Python
number on either side (`aten.add.Tensor(x, 2.0)`), so the `.Scalar` overloads are not in the set.
Pointwise ops broadcast and promote types as ATen does; PRIMS narrows that (see `dialect.py`).
"""

from __future__ import annotations

from dovetail_prims.ops import catalog
from dovetail_prims.ops.card import Kind

POINTWISE_UNARY = catalog.in_core(1)
POINTWISE_BINARY = catalog.in_core(2)

# The dispatcher refuses a number in a `.Tensor` slot of these ops, so a graph that is to run as it
# stands calls the number's own overload (a comparison with 0, a mask with &). Same operands in the
# same order: a consumer that knows the right-hand op reads the left-hand one through this table.
SCALAR_FORMS = catalog.scalar_forms()

# where.self takes numbers for its branches too; _to_copy carries dtype only (a change of device
# stays an extern call), with a layout where its rounding may be left out; clone carries
# memory_format.
POINTWISE_OTHER = (*catalog.in_core(3), *catalog.in_core_of_kind(Kind.MOVED))

REDUCTION = catalog.in_core_of_kind(Kind.REDUCTION)
SCAN = catalog.in_core_of_kind(Kind.SCAN)

VIEW = catalog.in_core_of_kind(Kind.VIEW)

INDEXING = catalog.in_core_of_kind(Kind.INDEXING)
CREATION = catalog.in_core_of_kind(Kind.CREATION)

# Never decomposed: library kernels, and samplers that draw eager's very numbers.
EXTERN = catalog.in_core_of_kind(Kind.LIBRARY)

CORE_ATEN = (
    POINTWISE_UNARY + POINTWISE_BINARY + tuple(SCALAR_FORMS) + POINTWISE_OTHER + REDUCTION + SCAN
    + VIEW + INDEXING + CREATION + EXTERN
)  # fmt: skip

# PRIMS: operands of one shape and one dtype, all of them tensors, no alpha; integer inputs of
# float functions, of sums and of scans converted first; a reduction names its dimensions; a
# creation names its dtype. What is left out below is written in terms of the rest.
_NOT_PRIMS = frozenset(catalog.only_in_core())
PRIMS = tuple(name for name in CORE_ATEN if name not in _NOT_PRIMS)
