"""Scalar functions that loop as long as their arguments say, each written once for every target.

A function is text in a small part of Python: assignments, `while some(...)`, `if some(...)`,
`for _ in range(4)` and one `return`, over float64 numbers (of one lane or of all of a block) and
truths. `some` is true where a truth holds in any lane, so that a loop runs until its last lane is
done; what a lane that is done computes is not kept (`where`). `like(x, c)` is the number c in the
shape of x; `horner(x, NAME)` the polynomial of the coefficients NAME, `nested(u, x, NAME)` the
polynomial in u whose coefficients are polynomials in x. `targets.cpu.cpp_functions` and
`targets.cuda.triton_functions` print it.

Numbers like (5.11.1) are equations of the NIST Digital Library of Mathematical Functions.
"""

from __future__ import annotations

from dovetail_inductor.loop_ir.functions.function import Function
from dovetail_inductor.loop_ir.functions.incomplete_gamma import GAMMA, incomplete
from dovetail_inductor.loop_ir.functions.orthogonal_polynomials import POLYNOMIALS, SHIFTED
from dovetail_inductor.loop_ir.functions.zeta import ZETA, ZETA_TERMS

FUNCTIONS = {
    f.name: f
    for f in (
        *POLYNOMIALS, *SHIFTED, ZETA_TERMS, ZETA, *GAMMA, incomplete("igamma", False),
        incomplete("igammac", True),
    )
}  # fmt: skip
"""All functions by name."""

LOOPING = ("zeta", "igamma", "igammac", *(f.name for f in (*POLYNOMIALS, *SHIFTED)))
"""Those that are scalar ops of loop bodies, of two operands."""


def with_callees(names: set[str]) -> list[Function]:
    """These functions and all that they call, callees first."""
    ordered: list[Function] = []

    def visit(name: str) -> None:
        if all(f.name != name for f in ordered):
            for callee in FUNCTIONS[name].callees:
                visit(callee)
            ordered.append(FUNCTIONS[name])

    for name in sorted(names):
        visit(name)
    return ordered
