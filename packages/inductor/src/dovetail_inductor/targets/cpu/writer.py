"""Writing statements into nested scopes: every value goes into the outermost scope where it can be
computed, so what does not change in a loop is computed before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from dovetail_inductor.loop_ir.expr import Apply, Expr, Load, Scalar, index_free
from dovetail_inductor.loop_ir.index import Index, Var
from dovetail_inductor.loop_ir.loops import Scatter
from dovetail_inductor.targets.cpu.narrow import int32_of, is_small
from dovetail_inductor.targets.cpu.syntax import ARITHMETIC, index_text, literal, op_text

# How a scatter combines what is there (a) with what comes (b).
_UPDATES = {
    "store": "[](auto, auto b) { return b; }",
    "add": "[](auto a, auto b) { return a + b; }",
    "mul": "[](auto a, auto b) { return a * b; }",
    "max": "[](auto a, auto b) { return vmax(a, b); }",
    "min": "[](auto a, auto b) { return vmin(a, b); }",
}


@dataclass(frozen=True)
class Name:
    """A C++ value: its text, whether it is a vector, and the depth of the scope it lives in."""

    text: str
    vector: bool
    depth: int


@dataclass
class Scope:
    """A block of statements in which the variables of the bit set `bound` have values."""

    bound: int
    lines: list[str] = field(default_factory=list)
    memo: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where a buffer's elements are: a C++ pointer, and, for a copy of a row kept aside, the index
    that takes the place of the buffer's own."""

    pointer: str
    index: Index | None = None


class Writer:
    """The handler that emits C++ for the expressions of one kernel.

    `vector` is the variable along which values are vectors of `lanes`, beginning at `i<id>`;
    in the remainder of its loop `tail` is set and the variable `n` counts the lanes in use.
    """

    def __init__(self, vector: Var | None, lanes: int, place: Callable[[str], Place]) -> None:
        self.vector = vector
        self.lanes = lanes
        self.place = place
        self.scopes: list[Scope] = []
        self.memo: dict[int, Name] = {}
        self.forwarded: dict[str, Name] = {}
        self.defined: dict[str, Name] = {}  # by `shared`, by text
        self.tiles: dict[int, str] = {}  # loads that read a transposed tile: where
        self.tail = False
        self._count = 0

    # --- scopes -----------------------------------------------------------------------------------

    def open(self, variables: Sequence[Var]) -> None:
        """Begin a scope in which `variables` have values."""
        bound = self.scopes[-1].bound if self.scopes else 0
        for v in variables:
            bound |= 1 << v.id
        self.scopes.append(Scope(bound))

    def close(self) -> list[str]:
        """End the innermost scope; gives its statements and forgets its values."""
        scope = self.scopes.pop()
        for uid in [u for u, name in self.memo.items() if name.depth >= len(self.scopes)]:
            del self.memo[uid]
        for buffer in [b for b, n in self.forwarded.items() if n.depth >= len(self.scopes)]:
            del self.forwarded[buffer]
        for text in [t for t, name in self.defined.items() if name.depth >= len(self.scopes)]:
            del self.defined[text]
        return scope.lines

    def line(self, text: str) -> None:
        """A statement in the innermost scope."""
        self.scopes[-1].lines.append(text)

    def _depth(self, free: int) -> int:
        for depth, scope in enumerate(self.scopes):
            if free & ~scope.bound == 0:
                return depth
        raise AssertionError(f"a value of unbound variables {free:b}")

    def define(self, text: str, free: int, vector: bool, args: Sequence[Name] = ()) -> Name:
        """Name a value, in the outermost scope where its variables and operands exist."""
        depth = max([self._depth(free), *(a.depth for a in args)])
        name = f"t{self._count}"
        self._count += 1
        self.scopes[depth].lines.append(f"const auto {name} = {text};")
        return Name(name, vector, depth)

    def shared(self, text: str, free: int, args: Sequence[Name]) -> Name:
        """A scalar value that is named once while its scope lasts."""
        if text not in self.defined:
            self.defined[text] = self.define(text, free, False, args)
        return self.defined[text]

    def is_vector(self, free: int) -> bool:
        """True if a value of these variables differs between lanes."""
        return self.vector is not None and bool(free >> self.vector.id & 1)

    def as_vector(self, name: Name) -> str:
        """The value in every lane."""
        return name.text if name.vector else f"bc<{self.lanes}>({name.text})"

    # --- handler ----------------------------------------------------------------------------------

    def constant(self, value: Scalar, dtype: torch.dtype) -> Name:
        """A literal in place."""
        return Name(literal(value, dtype), False, 0)

    def index_value(self, index: Index, dtype: torch.dtype, read: Callable[[Expr], Name]) -> Name:
        """An index as an integer."""
        args = [read(a.value) for a in index.indirects()]
        free = index_free(index)
        vector = self.is_vector(free) or any(a.vector for a in args)
        if vector:
            wide = dtype is torch.int64
            text = f"cast<{ARITHMETIC[dtype]}>({self.vector_index(index, read, wide)})"
        else:
            text = f"({ARITHMETIC[dtype]})({self._scalar_index(index, read)})"
        return self.define(text, free, vector, args)

    def load(self, load: Load, mask: Name | None, read: Callable[[Expr], Name]) -> Name:
        """A read from memory, or of a value that this kernel has just computed."""
        if load.buffer in self.forwarded:
            return self.forwarded[load.buffer]
        if load.uid in self.tiles:
            return self.define(f"ld<{self.lanes}>({self.tiles[load.uid]})", load.free, True)
        args = [read(a.value) for a in load.index.indirects()]
        if mask is not None:
            args.append(mask)
        place = self.place(load.buffer)
        index = place.index or load.index
        text, vector = self.load_text(place, index, mask, read)
        # Of the index that the text names: a copied row's may have variables that the load's has
        # not.
        return self.define(text, load.free | index_free(index), vector, args)

    def apply(self, op: str, args: Sequence[Name], expr: Apply) -> Name:
        """A scalar op."""
        vector = any(a.vector for a in args)
        if op == "where" and vector:
            condition = args[0].text  # one truth for all lanes will do
            texts = [condition, *(self.as_vector(a) for a in args[1:])]
        else:
            texts = [self.as_vector(a) if vector else a.text for a in args]
        if op == "check_index" and vector and self.tail:  # lanes out of use may hold anything
            n = self.lanes
            texts[0] = f"sel(first_lanes<{n}>(n), {texts[0]}, bc<{n}>((int64_t)0))"
        source = expr.args[-1].dtype
        text = op_text(op, texts, expr.dtype, source, expr.check, vector)
        return self.define(text, expr.free, vector, args)

    # --- memory -----------------------------------------------------------------------------------

    def _scalar_index(self, index: Index, read: Callable[[Expr], Name]) -> str:
        return index_text(index, lambda v: f"i{v.id}", lambda e: read(e).text)

    def vector_index(self, index: Index, read: Callable[[Expr], Name], wide: bool = True) -> str:
        """An index lane by lane, as a vector of int64, or of int32 if not `wide`."""
        kind = "int64_t" if wide else "int32_t"

        def name(v: Var) -> str:
            if self.vector is not None and v.id == self.vector.id:
                return f"(iota<{kind}, {self.lanes}>() + ({kind})i{v.id})"
            return f"({kind})i{v.id}"

        text = index_text(index, name, lambda e: read(e if wide else int32_of(e) or e).text)
        return f"({text})"

    def _computed_place(
        self, place: Place, index: Index, read: Callable[[Expr], Name]
    ) -> tuple[str, str]:
        """Where a place is that each lane computes: a pointer to what all lanes add, and a vector
        of what each adds, of int32 if that is enough."""
        assert self.vector is not None
        own = []
        for term in index.terms:
            alone = Index(0, (term,))
            by_lane = any(read(a.value).vector for a in alone.indirects())
            own += [term] if by_lane or self.is_vector(index_free(alone)) else []
        common = Index(index.const, tuple(t for t in index.terms if t not in own))
        each = Index(0, tuple(own))
        wide = not is_small(each)
        pointer = f"{place.pointer} + {self._scalar_index(common, read)}"
        return pointer, self.vector_index(each, read, wide) if own else f"V<int, {self.lanes}>{{}}"

    def load_text(
        self, place: Place, index: Index, mask: Name | None, read: Callable[[Expr], Name]
    ) -> tuple[str, bool]:
        """C++ for a load, and whether it gives a vector."""
        n = self.lanes
        rest = ", n" if self.tail else ""
        lanewise = any(read(a.value).vector for a in index.indirects())
        stride = index.coefficient(self.vector) if self.vector is not None else 0
        masked = mask is not None and mask.vector
        if lanewise or stride is None or (masked and stride != 1):
            p, at = self._computed_place(place, index, read)
            if mask is not None:
                return f"ldim<{n}>({p}, {at}, {self.as_vector(mask)}{rest})", True
            return f"ldi<{n}>({p}, {at}{rest})", True
        address = f"{place.pointer} + {self._scalar_index(index, read)}"
        if mask is not None and mask.vector:
            bound = f"({mask.text}) & first_lanes<{n}>(n)" if self.tail else mask.text
            return f"ldm<{n}>({address}, {bound})", True
        if stride == 0:
            text, vector = f"ld1({address})", False
        elif stride == 1:
            text = f"ldn<{n}>({address}, n)" if self.tail else f"ld<{n}>({address})"
            vector = True
        elif stride == -1:
            text, vector = f"ldr<{n}>({address}{rest})", True
        else:
            text, vector = f"lds<{n}>({address}, {stride}{rest})", True
        if mask is not None:
            text = f"{mask.text} ? {text} : decltype({text}){{}}"
        return text, vector

    def scatter(self, place: Place, index: Index, how: Scatter, value: Name) -> None:
        """Combine a value with memory at a computed place, of vectors lane after lane."""

        def read(expr: Expr) -> Name:
            return self.memo[expr.uid]

        p = place.pointer
        update = _UPDATES[how.operation]
        if self.vector is None:
            self.line(f"up1({p} + {self._scalar_index(index, read)}, {value.text}, {update});")
            return
        n = "n" if self.tail else str(self.lanes)
        hidden = any(read(a.value).vector for a in index.indirects())
        stride = index.coefficient(self.vector)
        if stride == 1 and not hidden:  # no two lanes write to one place
            address = f"{p} + {self._scalar_index(index, read)}"
            self.line(f"up({address}, {self.as_vector(value)}, {n}, {update});")
            return
        if stride == 0 and not hidden:
            at = f"bc<{self.lanes}>((int64_t)({self._scalar_index(index, read)}))"
        else:
            at = self.vector_index(index, read)
        self.line(f"upi({p}, {self.as_vector(value)}, {at}, {n}, {update});")

    def store(self, place: Place, index: Index, value: Name) -> None:
        """Write a value to memory."""
        stride = index.coefficient(self.vector) if self.vector is not None else 0
        n = "n" if self.tail else str(self.lanes)

        def no_reads(expr: Expr) -> Name:
            raise AssertionError("a store at an indirect address")

        if stride is None:
            at = self.vector_index(index, no_reads)
            self.line(f"sti({place.pointer}, {self.as_vector(value)}, {at}, {n});")
            return
        address = f"{place.pointer} + {self._scalar_index(index, no_reads)}"
        if stride == 0:
            self.line(f"st1({address}, {value.text});")
        elif stride == 1:
            tail = ", n" if self.tail else ""
            self.line(f"st{'n' if self.tail else ''}({address}, {self.as_vector(value)}{tail});")
        elif stride == -1:
            tail = ", n" if self.tail else ""
            self.line(f"str({address}, {self.as_vector(value)}{tail});")
        else:
            self.line(f"sts({address}, {self.as_vector(value)}, {stride}, {n});")
