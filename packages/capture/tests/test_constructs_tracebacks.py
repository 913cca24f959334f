"""Constructs: where exceptions passed, behind graph breaks and in inlined calls. `run_case` compares
every entry of their tracebacks (name, file, line, columns), their causes and their contexts."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import contextlib
import functools
import itertools
import traceback

import pytest
from construct_cases import Case, Manager, OwnError, Table, fails, loud, run_case

construct = Table()


def places(error):
    """What a traceback says, from the frame that asks on."""
    return [place[1:3] for place in traceback.extract_tb(error.__traceback__)]


def quiet_then_fails(x):
    y = x + 1
    return fails(y, "inner")


def breaks_then_fails(x):
    y = x + 1
    print("inner")
    return fails(y * 2, "behind")


def fails_twice(x):
    try:
        return breaks_then_fails(x)
    except OwnError as error:
        raise KeyError("second") from error


def items_then_failure(x):
    yield x + 1
    print("in generator")
    yield fails(x)


class Failing:
    def __call__(self, x):
        print("called")
        return self.inner(x)

    def inner(self, x):
        return fails(x) + 1


@construct(graphs=None, breaks=None)
def raised_behind_a_break(x):
    y = x + 1
    print("break")
    z = y * 2
    raise OwnError("after")


@construct(graphs=None, breaks=None)
def inlined_call_raises_behind_a_break(x):
    y = x + 1
    print("break")
    return quiet_then_fails(y)


@construct(graphs=None, breaks=None)
def breaks_at_every_level(x):
    y = loud(x)
    return breaks_then_fails(y)


@construct(graphs=None, breaks=None)
def breaks_at_three_levels(x):
    print("top")
    return fails_twice(x) * 2


@construct(graphs=None, breaks=None)
def raised_by_an_operator(x):
    print("break")
    return x @ x


@construct(graphs=None, breaks=None)
def raised_by_a_c_function_that_calls_back(x):
    try:
        x = x * 2
        functools.reduce(lambda a, b: a + b, [1, 2, print])
    finally:
        x = x + 1
        print("finally")


@construct(graphs=None, breaks=None)
def raised_by_a_c_function(x):
    try:
        x = x * 2
        list(itertools.accumulate([1, 2, print]))
    finally:
        x = x + 1
        print("finally")


@construct(graphs=None, breaks=None)
def raised_in_a_loop(x):
    for i in range(4):
        x = x + i
        print(i)
        if i == 2:
            fails(x)
    return x


@construct(graphs=None, breaks=None)
def raised_in_a_with_block(x):
    log = []
    with Manager(log):
        print("inside")
        x = x + 1
        fails(x)
    return x


@construct(graphs=None, breaks=None)
def raised_while_handling(x):
    try:
        print("before")
        fails(x)
    except OwnError:
        print("handling")
        raise ValueError("new")


@construct(graphs=None, breaks=None)
def raised_again(x):
    try:
        print("before")
        breaks_then_fails(x)
    except OwnError:
        print("handling")
        raise


@construct(graphs=None, breaks=None)
def raised_again_by_name(x):
    try:
        print("before")
        fails(x)
    except OwnError as error:
        print("handling")
        raise error


@construct(graphs=None, breaks=None)
def raised_in_finally(x):
    try:
        print("before")
        x = x + 1
        fails(x)
    finally:
        print("cleaning up")
        x = x * 2
        {}["missing"]


@construct(graphs=None, breaks=None)
def kept_and_raised_later(x):
    kept = None
    try:
        fails(x)
    except OwnError as error:
        kept = error
    print("between")
    raise kept


@construct(graphs=None, breaks=None)
def raised_by_a_generator(x):
    print("top")
    for item in items_then_failure(x):
        x = x + item
    return x


@construct(graphs=None, breaks=None)
def raised_by_an_object(x):
    print("top")
    return Failing()(x)


@construct(graphs=None, breaks=None)
def raised_in_a_comprehension(x):
    print("top")
    return [fails(x, str(i)) for i in range(3)]


@construct(graphs=None, breaks=None)
def raised_in_a_local_function(x):
    print("top")

    def inner(y):
        print("inner")
        return fails(y) + x

    return inner(x)


@construct(graphs=None, breaks=None)
def looked_at_where_caught(x):
    seen = []
    try:
        y = x + 1
        print("break")
        breaks_then_fails(y)
    except OwnError as error:
        seen = places(error)
    return x + 1, seen


@construct(graphs=None, breaks=None)
def looked_at_in_the_caller(x):
    try:
        print("break")
        fails_twice(x)
    except KeyError as error:
        return places(error), places(error.__cause__), places(error.__context__)


@construct(graphs=None, breaks=None)
def raised_twice_by_name(x):
    try:
        try:
            quiet_then_fails(x)
        except OwnError as error:
            x = x + 1
            raise error
    except OwnError as error:
        print("caught")
        seen = places(error)
        raise error
    return x, seen


@construct(graphs=None, breaks=None)
def without_its_traceback(x):
    try:
        quiet_then_fails(x)
    except OwnError as error:
        print("caught")
        raise error.with_traceback(None) from None


@construct(graphs=None, breaks=None)
def suppressed_and_raised(x):
    with contextlib.suppress(OwnError):
        print("first")
        fails(x)
    print("second")
    return fails(x * 2)


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case):
    run_case(case)
