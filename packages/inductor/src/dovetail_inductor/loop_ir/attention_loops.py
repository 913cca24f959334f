"""The loops of attention with a function of its scores: what kernels compute for each score."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_inductor.loop_ir.bounds import Seen
from dovetail_inductor.loop_ir.expr import Expr
from dovetail_inductor.loop_ir.handlers import Printer, interpret
from dovetail_inductor.loop_ir.index import Var

# The least side of a tile.
LEAST_SIDE = 32


@dataclass(frozen=True)
class AttentionTiles:
    """A program works on `queries` x `keys` scores at a time."""

    queries: int
    keys: int
    warps: int
    stages: int

    def as_text(self) -> str:
        """Short: `128x64 4 warps 3 stages`."""
        return f"{self.queries}x{self.keys} {self.warps} warps {self.stages} stages"


@dataclass(frozen=True)
class ScoreBody:
    """What is made of a score; and, for a backward, the score's gradient, made of that."""

    score: Expr
    gradient: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """Both, or what there is."""
        return (self.score,) if self.gradient is None else (self.score, self.gradient)


@dataclass(frozen=True)
class AttentionLoops:
    """What is computed at `vars` (the batch, the head, the query, the key): `body`, and `inside`
    the bounds that are `seen`, where parts of masks are known.

    The score is loaded from `scores`, a name and no memory, and the gradient of what is made of it
    from `slopes`. `tiles` has one entry for each of the call's kernels. Where masks tell more than
    the bounds, `mask` is what must hold (whatever the head) for a score to be seen: a kernel finds
    out before each other one in which tiles it does, and leaves that in the last results of the
    call, one for each kernel.
    """

    vars: tuple[Var, Var, Var, Var]
    body: ScoreBody
    inside: ScoreBody
    seen: Seen
    mask: Expr | None
    scores: str
    slopes: str
    tiles: tuple[AttentionTiles, ...]

    def as_text(self) -> str:
        """Readable form."""
        printer = Printer()
        names = interpret(self.body.roots, printer)
        return "\n".join([*printer.lines, f"gives {', '.join(names)}"])


__all__ = ["LEAST_SIDE", "AttentionLoops", "AttentionTiles", "ScoreBody"]
