"""Pure C functions that ask objects of the program for an index, a number, a text."""

from __future__ import annotations

import math
import operator
import os
import posixpath
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import optimize


class Index:
    def __index__(self) -> int:
        return 2


class Float:
    def __float__(self) -> float:
        return 2.5


class Number:
    def __init__(self, n: Any) -> None:
        self.n = n

    def __round__(self, *places: Any) -> Any:
        return Number((self.n, places))

    def __trunc__(self) -> Any:
        return self.n

    def __ceil__(self) -> Any:
        return [self.n]

    def __floor__(self) -> Any:
        return Index()

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        return ("pow", other, modulus)

    def __complex__(self) -> complex:
        return 2j

    def __bytes__(self) -> bytes:
        return b"ab"

    def __fspath__(self) -> str:
        return "/a/b.c"

    def __length_hint__(self) -> int:
        return 4

    def __format__(self, spec: str) -> str:
        return f"<{spec}>"

    def __str__(self) -> str:
        return "text"

    def __repr__(self) -> str:
        return "told"


class Wrong:
    """Its methods give what they must not, or raise."""

    def __index__(self) -> Any:
        return "x"

    def __float__(self) -> Any:
        return "x"

    def __complex__(self) -> Any:
        return 1

    def __fspath__(self) -> Any:
        return 3

    def __round__(self) -> Any:
        raise ValueError("no number")

    def __length_hint__(self) -> Any:
        raise TypeError("C code takes this for none")


class Letters:
    def __iter__(self) -> Any:
        return iter([65, 66])


class Plain:
    """Has nothing of all this."""


CALLS = (
    "round({})", "round({}, 1)", "round({}, None)", "math.trunc({})", "math.ceil({})",
    "math.floor({})", "math.sqrt({})", "math.gcd({}, 4)", "math.hypot({}, 1)", "math.fsum([{}])",
    "math.comb(5, {})", "complex({})", "complex(1, {})", "bytes({})", "os.fspath({})", "hex({})",
    "chr({})", "operator.length_hint({}, 7)", "pow({}, 2, 3)", "pow({}, 2)", "float({})",
    "int({})", "list(range({}))", "'a'.center({})", "'%d' % {}", "'ab' * {}", "'ab' + {}",
    "[1, 2, 3][{}:]", "(1, 2, 3)[:{}]", "'abc'[{}:]", "range(5)[::{}]", "[1, 2, 3][{}]",
    "list(enumerate('ab', {}))", "posixpath.join({}, 'd')",
)  # fmt: skip
OBJECTS = ("Index()", "Float()", "Number(3)", "Wrong()", "Plain()", "2.5", "None", "[1]")
OTHERS = (
    "'{:x} {!s} {!r}'.format(*[Number(1)] * 3)", "'%s %r' % (Number(1), Number(2))",
    "'%s' % Number(1)", "bytes(Letters())", "ascii(Number(1))", "'a'.replace(Plain(), 'b')",
    "','.join([Plain()])",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_what_c_functions_ask_of_objects(call: str) -> None:
    for given in OBJECTS:
        _check(call.format(given))


@pytest.mark.parametrize("call", OTHERS)
def test_texts_and_bytes_of_objects(call: str) -> None:
    _check(call)


def _check(call: str) -> None:
    evaluated = eval(f"lambda: {call}", {**globals(), "math": math, "operator": operator, "os": os,
                                         "posixpath": posixpath})  # fmt: skip

    def program(x: torch.Tensor) -> Any:
        try:
            result = evaluated()
        except Exception as error:
            result = type(error), str(error)
        return x + 1, result

    backend = CountingBackend()
    x = torch.arange(2.0)
    got = optimize(program, backend, fullgraph=True)(x)
    assert same(got, program(x)), (call, got, program(x))
    assert len(backend.graphs) == 1


def test_an_answer_that_changes_is_noticed() -> None:
    class Scale:
        def __init__(self) -> None:
            self.factor = 2.0

        def __float__(self) -> float:
            return self.factor

    scale = Scale()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * math.sqrt(scale)

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x), program(x))
    scale.factor = 9.0
    assert torch.equal(compiled(x), program(x))
    Scale.__float__ = lambda self: 16.0  # type: ignore[method-assign]
    assert torch.equal(compiled(x), program(x))


def test_a_method_that_comes_later_is_noticed() -> None:
    class Late:
        def __index__(self) -> int:
            return 4

    late = Late()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * math.sqrt(late)

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(compiled(x), program(x))
    Late.__float__ = lambda self: 25.0  # type: ignore[attr-defined]
    assert torch.equal(compiled(x), program(x))


def test_what_an_asked_method_changes_is_changed() -> None:
    class Counts:
        asked = 0

        def __index__(self) -> int:
            self.asked += 1
            return self.asked

    counts = Counts()

    def program(x: torch.Tensor) -> Any:
        return x + 1, hex(counts), bin(counts)

    compiled = optimize(program, CountingBackend(), fullgraph=True)
    assert compiled(torch.ones(2))[1:] == ("0x1", "0b10")
    assert counts.asked == 2
    assert compiled(torch.ones(2))[1:] == ("0x3", "0b100")
