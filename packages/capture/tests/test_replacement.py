"""Replacement code from hand-made captured frames: sources, recipes, effects, graph calls."""

from __future__ import annotations

import functools
import math
from collections import OrderedDict, deque
from types import CellType, FunctionType

import pytest
import torch
from dovetail_capture import recipe as r
from dovetail_capture._frame_hook import SKIP, Context, Switched
from dovetail_capture.captured_frame import AfterGraph, CapturedFrame, GraphInput
from dovetail_capture.replacement.replacement_code import build_replacement
from dovetail_guards import source as s
from dovetail_guards.guard_set import GuardSet
from torch import fx

VALUE = {"k": [1, 2]}


def run(function, args, returns, effects=(), graph=None, inputs=(), compiled=None, kwargs=None):
    """Call `function` with its frame replaced."""
    after = AfterGraph(tuple(effects), r.FrameEnd(returns=returns))
    frame = CapturedFrame(function.__code__, graph, inputs, GuardSet(), after)
    replacement = build_replacement(frame, compiled)

    def miss(code, func, raw):
        return (lambda a, f: True, replacement.code) if code is function.__code__ else SKIP

    return Switched(function, Context(miss))(*args, **(kwargs or {}))


def local(name):
    return r.Fetch(s.LocalSource(name))


def build(kind, *items):
    return r.Build(kind, tuple(items))


class Box:
    __slots__ = ("__dict__", "slotted")

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, ("set", value))


def test_sources():
    free = ["in the cell"]

    def function(box, pair, /, *rest, cell, **more):
        return free

    box = Box(attr=5, **{"odd name": 6, "inner": Box(deep=7)})
    sources = [
        s.AttrSource(s.LocalSource("box"), "attr"),
        s.InstanceAttrSource(s.LocalSource("box"), "odd name"),
        s.AttrSource(s.LocalSource("box"), "odd name"),
        s.AttrSource(s.AttrSource(s.LocalSource("box"), "inner"), "deep"),
        s.ItemSource(s.LocalSource("pair"), 1),
        s.ItemSource(s.LocalSource("rest"), 0),
        s.ItemSource(s.LocalSource("more"), "key"),
        s.DictKeySource(s.LocalSource("more"), 1),
        s.TypeSource(s.LocalSource("box")),
        s.CellContentsSource(s.LocalSource("cell")),
        s.ClosureSource("free"),
        s.CellContentsSource(s.ClosureCellSource("free")),
        s.GlobalSource("VALUE"),
        s.ItemSource(s.ItemSource(s.GlobalSource("VALUE"), "k"), 0),
        s.BuiltinSource("len"),
        s.ObjectSource(box, "the box"),
        s.SizeSource(s.LocalSource("pair"), 0),
    ]
    tensor_pair = torch.zeros(3, 2)
    expected = [5, 6, 6, 7, "second", 1, 2, "other", Box, "c", free, free, VALUE, 1, len, box]
    for source, value in zip(sources[:-1], expected, strict=True):
        got = run(
            function,
            (box, ("first", "second"), 1),
            r.Fetch(source),
            kwargs={"cell": CellType("c"), "key": 2, "other": 3},
        )
        assert got is value or got == value, source
    size = run(function, (box, tensor_pair), r.Fetch(sources[-1]), kwargs={"cell": None})
    assert size == 3

    class Unknown(s.Source):
        pass

    with pytest.raises(TypeError, match="cannot fetch a Unknown"):
        run(function, (1, 2), r.Fetch(Unknown()), kwargs={"cell": None})


def test_shared_recipes_are_one_object_and_constants_keep_identity():
    def function(x):
        return x

    shared, nan, marker = build("list", local("x")), float("nan"), object()
    text = "".join(["a string", "!"])
    result = run(
        function,
        (1,),
        build(
            "tuple",
            shared,
            shared,
            build("dict", r.Const("k"), shared),
            r.Const(nan),
            r.Const(-0.0),
            r.Const(marker),
            r.Const(text),
            r.Const((1, marker)),
            r.Const(10**30),
            build("set"),
            build("frozenset", r.Const(1)),
            build("slice", r.Const(1), r.Const(None), r.Const(-3)),
            build("tuple"),
            r.Const(Ellipsis),
            build("frozenset"),
        ),
    )
    assert result[0] is result[1] is result[2]["k"] and result[0] == [1]
    assert result[3] is nan and math.copysign(1, result[4]) == -1
    assert result[5] is marker and result[6] is text and result[7][1] is marker
    assert result[8:] == (10**30, set(), {1}, slice(1, None, -3), (), Ellipsis, frozenset())


def test_cycles_and_new_objects():
    def function(x):
        return x

    cycle = r.NewEmpty("list")
    new = r.NewObject(Box, object)
    pair = r.NewObject(Pair, tuple, (build("tuple", r.Const(1), r.Const(2)),))
    cell = r.NewCell()
    effects = [
        r.ReplaceContents(cycle, "list", (cycle, local("x"))),
        r.SetAttr(new, "raw", r.Const(1), raw=True),
        r.SetAttr(new, "slotted", r.Const(2), raw=True),
        r.SetAttr(new, "cooked", r.Const(3)),
        r.SetCell(cell, new),
    ]
    first, box, second, third, empty = run(
        function,
        (5,),
        build("tuple", cycle, new, pair, cell, r.NewCell()),
        effects,
    )
    assert first[0] is first and first[1] == 5
    assert (box.raw, box.slotted, box.cooked) == (1, 2, ("set", 3))
    assert type(second) is Pair and second == (1, 2)
    assert third.cell_contents is box
    with pytest.raises(ValueError):
        empty.cell_contents  # noqa: B018


class Pair(tuple):
    def __new__(cls, *args):
        raise AssertionError("the recipe names the base's __new__")


class LoudDict(dict):
    def __setitem__(self, key, value):
        raise AssertionError("overrides must not run")

    clear = update = __getitem__ = __setitem__


def test_contents_are_replaced_in_place_by_the_base_class():
    def function(a, b, c, d, e):
        return a

    a, b, c = [1, 2], LoudDict(x=1), {1, 2}
    d, e = deque([1]), OrderedDict(x=1, y=2)
    effects = [
        r.ReplaceContents(local("a"), "list", (r.Const(7), r.Const(8), r.Const(9))),
        r.ReplaceContents(local("b"), "dict", (r.Const("y"), r.Const(2), r.Const("x"), local("a"))),
        r.ReplaceContents(local("c"), "set", (r.Const(5),)),
        r.ReplaceContents(local("d"), "deque", (r.Const(6), local("a"))),
        r.ReplaceContents(local("e"), "dict", (r.Const("z"), r.Const(1))),
    ]
    assert run(function, (a, b, c, d, e), local("a"), effects) is a
    assert a == [7, 8, 9] and list(b.items()) == [("y", 2), ("x", a)] and c == {5}
    assert list(d) == [6, a] and list(e.items()) == [("z", 1)]


def test_values_read_before_effects_stay_and_late_reads_see_them():
    def function(box):
        return box

    old = r.Fetch(s.AttrSource(s.LocalSource("box"), "attr"))
    late = r.GetAttr(local("box"), "attr")
    effects = [r.SetAttr(local("box"), "attr", r.Const("new"), raw=True)]
    box = Box(attr="old")
    assert run(function, (box,), build("tuple", old, late), effects) == ("old", "new")
    effects = [r.DelAttr(local("box"), "attr", raw=True)]
    assert run(function, (box,), old, effects) == "new" and not hasattr(box, "attr")
    box.__dict__["attr"] = 1
    run(function, (box,), r.Const(None), [r.DelAttr(local("box"), "attr")])
    assert not hasattr(box, "attr")


def test_calls_run_once_in_order():
    log = []

    def note(name, **kwargs):
        log.append((name, kwargs))
        return name

    def function(x):
        return x

    first = r.CallFunction(r.Const(note), (r.Const("first"),), (("k", local("x")),))
    second = r.CallFunction(r.Const(note), (first,), (("odd name", first), ("if", r.Const(1))))
    third = r.CallFunction(r.Const(functools.partial), (r.Const(note), r.Const("p")))
    effects = [r.RunCall(second)]
    one, two, partial, again = run(
        function, (3,), build("tuple", first, second, third, second), effects
    )
    assert (one, two, again) == ("first", "first", "first") and partial.args == ("p",)
    assert log == [("first", {"k": 3}), ("first", {"odd name": "first", "if": 1})]


def test_globals_cells_and_functions():
    counter = 1

    def function(x):
        return counter

    def template(a, b=1, *, c=2):
        return a, b, c, counter, x

    x = None
    namespace = {"gone": 1}
    cell = r.Fetch(s.ClosureCellSource("counter"))
    made = r.NewFunction(
        template.__code__,
        r.Const(globals()),
        "made",
        build("tuple", r.Const(10)),
        build("dict", r.Const("c"), local("x")),
        (cell, r.NewCell(local("x"))),
        build("tuple", r.Const("a"), r.Const(int)),
    )
    effects = [
        r.SetGlobal(r.Const(namespace), "here", local("x")),
        r.SetGlobal(r.Const(namespace), "gone", None),
        r.SetCell(cell, r.Const(5)),
    ]
    result = run(function, (3,), made, effects)
    assert isinstance(result, FunctionType) and result.__name__ == "made"
    assert result(1) == (1, 10, 3, 5, 3) and counter == 5
    assert result.__annotations__ == {"a": int} and namespace == {"here": 3}
    assert x is None


def graph_of(count):
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(3)]
    graph.output(tuple(nodes[:count]))
    return fx.GraphModule({}, graph)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_graph_gets_its_inputs_in_order_static_ones_bound(count):
    def function(a, b):
        return a

    calls = []

    def compiled(*args):
        calls.append(args)
        return [f"out{i}" for i in range(count)]

    inputs = (
        GraphInput("x0", s.LocalSource("b"), None, False),
        GraphInput("x1", s.ObjectSource("w", "w"), "bound", True),
        GraphInput("x2", s.LocalSource("a"), None, False),
    )
    outputs = [r.GraphOutput(i) for i in range(count)]
    result = run(
        function,
        ("A", "B"),
        build("tuple", *outputs),
        graph=graph_of(count),
        inputs=inputs,
        compiled=compiled,
    )
    assert calls == [("B", "bound", "A")]
    assert result == tuple(f"out{i}" for i in range(count))


def test_odd_argument_names_and_a_global_hidden_by_an_argument():
    def function(_dt_k1, VALUE):
        return _dt_k1

    marker = object()
    result = run(
        function,
        (1, 2),
        build(
            "tuple",
            local("_dt_k1"),
            local("VALUE"),
            r.Fetch(s.GlobalSource("VALUE")),
            r.Const(marker),
        ),
    )
    assert result == (1, 2, VALUE, marker)
    comprehension = (lambda rows: (row for row in rows)).__code__
    odd = next(c for c in comprehension.co_consts if hasattr(c, "co_code"))
    after = AfterGraph((), r.FrameEnd(returns=local(".0")))
    frame = CapturedFrame(odd, None, (), GuardSet(), after)
    assert "def _dt_frame(_dt_arg0):" in build_replacement(frame, None).text


def test_errors_point_at_the_user_s_function():
    def function(x):
        return x

    with pytest.raises(ZeroDivisionError) as info:
        run(function, (0,), r.CallFunction(r.Const(lambda v: 1 / v), (local("x"),)))
    entry = info.traceback[-2]
    assert entry.name == "function" and str(entry.path) == __file__
    assert entry.lineno + 1 == function.__code__.co_firstlineno


@pytest.mark.timeout(30)
def test_parts_of_a_long_container_are_walked_in_linear_time() -> None:
    parts = tuple(r.Const(i) for i in range(800_000))
    assert tuple(r.parts_of(r.Build("list", parts))) == parts
