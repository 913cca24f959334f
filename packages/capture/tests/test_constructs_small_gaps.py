"""Parts of numbers that follow from sizes, attributes of an OrderedDict, substitution by functions,
and other corners of the standard library."""

from __future__ import annotations

import collections
import inspect
import operator
import re
import string
from typing import Any

import pytest
import torch
from construct_cases import Case, CountingBackend, Table, run_case, same
from dovetail_capture import optimize

table = Table()
DIGITS = re.compile(r"(\d+)")
MODEL = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))


def _signed(a, b=2, *rest, c, **named):
    """Has parameters of every kind."""


@table()
def substitutions_by_functions(x):
    text = "ab_12_3"
    return (
        x + 1, DIGITS.sub(lambda m: str(int(m.group(1)) + 1), text),
        re.sub("a|_", lambda m: None, text),
        DIGITS.subn(lambda m: "#", text, count=1), re.subn("x*", lambda m: "-", "abxd"),
        re.sub("B", lambda m: f"<{m[0]}>", text, flags=re.IGNORECASE), DIGITS.sub("0", text),
        re.sub("a", repl=lambda m: "z", string="aa", count=1), DIGITS.sub(r"<\1>", string=text),
    )  # fmt: skip


@table()
def a_substitution_that_gives_no_text(x):
    try:
        DIGITS.sub(lambda m: 5, "a1")
    except TypeError as error:
        return x + 1, str(error)


@table()
def templates(x):
    return x + 1, string.Template("$a ${b}").substitute(a=1, b="c"), string.Template("$a").template


@table()
def called_by_operator(x):
    return (
        operator.call(torch.sin, x),
        operator.call(lambda a, b=2: a * b, 3),
        operator.call(dict, a=1),
    )


@table()
def signatures(x):
    found = inspect.getfullargspec(_signed)
    return (
        x + 1,
        found.args,
        found.varargs,
        found.kwonlyargs,
        list(inspect.signature(_signed).parameters),
    )


@table()
def an_ordered_dict_with_attributes(x):
    made = collections.OrderedDict(a=x + 1)
    made.label, made.tensor = "name", x * 2
    made["b"] = made.tensor
    return (
        made,
        made.label,
        hasattr(made, "label"),
        getattr(made, "other", 3),
    )


@table()
def a_state_dict(x):
    state = MODEL.state_dict()
    return list(state), state["0.weight"] + x.sum(), state._metadata["0"]


@pytest.mark.parametrize("case", table.cases, ids=table.names)
def test_construct(case: Case) -> None:
    run_case(case)


def test_attributes_of_an_ordered_dict_leave_with_it() -> None:
    def program(x: torch.Tensor) -> Any:
        made = collections.OrderedDict(a=x + 1)
        made.label = [x * 2, made]
        return made

    made = optimize(program, CountingBackend(), fullgraph=True)(torch.ones(2))
    assert list(made) == ["a"] and torch.equal(made.label[0], torch.full((2,), 2.0))
    assert made.label[1] is made


PARTS = ("n.real", "n.imag", "n.numerator", "n.denominator", "n.real + n.imag")


@pytest.mark.parametrize("part", [*PARTS, "float(n).real", "(n / 2).real", "(n / 2).imag"])
def test_parts_of_numbers_that_follow_from_sizes(part: str) -> None:
    program = eval(f"lambda x, n: (x + n, {part}, {part.replace('n', 'x.shape[0]', 1)})"
                   if part in PARTS else f"lambda x, n: (x + n, {part})")  # fmt: skip
    backend = CountingBackend()
    compiled = optimize(program, backend, fullgraph=True)
    for number in (4, 5, 6, 7):
        x = torch.ones(number)
        assert same(compiled(x, number), program(x, number))
    assert len(backend.graphs) == 2
