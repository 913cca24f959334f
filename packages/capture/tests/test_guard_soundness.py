"""Whatever is changed between two calls, a compiled function gives eager's answer; and where
nothing is changed it does not compile again. DOVETAIL_FUZZ_SEED and DOVETAIL_FUZZ_ROUNDS say
which random functions; `guard_fuzz.py` runs many."""

from __future__ import annotations

import collections
import copy
import inspect
import os
import sys
import types

import guard_fuzz
import pytest
import torch
from dovetail_capture import optimize, run_graph
from guard_pieces import PIECES

SEED = int(os.environ.get("DOVETAIL_FUZZ_SEED", "500"))
ROUNDS = int(os.environ.get("DOVETAIL_FUZZ_ROUNDS", "14"))


def test_random_changes():
    tally = guard_fuzz.run_seeds(range(SEED, SEED + ROUNDS))
    print(f"seeds from {SEED}: {tally}")
    assert not tally.wrong, "\n".join(tally.wrong)
    assert tally.plain == 0  # else the calls prove nothing
    assert tally.compiles > 10 * ROUNDS and tally.changes > 20 * ROUNDS


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.name)
def test_each_change_of_a_piece(piece):
    """Every listed change alone, on what a fresh function has read."""
    for number, change in enumerate(piece.placed(0).changes):
        tally = guard_fuzz.Tally()
        run = guard_fuzz.Run(0, tally, pieces=[piece.placed(0)])
        for _ in range(4):  # so that the guards have settled
            assert run.compare(), tally.wrong
        compiled = run.compiles()
        assert compiled == 1
        run.execute(change)
        threads = torch.get_num_threads()
        try:
            assert run.compare(), (number, tally.wrong)
        finally:
            torch.set_num_threads(1 if "num_threads" in change else threads)


class Base:
    def scale(self, t):
        return t * 2


class Derived(Base):
    __slots__ = ("held",)

    def scale(self, t):
        return super().scale(t) + 1


def check(function, *args, change):
    compiled = optimize(function, run_graph, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(*args), function(*args))
    change()
    assert torch.equal(compiled(*args), function(*args))


def test_other_bases_are_noticed():
    class Other(Base):
        def scale(self, t):
            return t * 5

    class Mine(Base):
        pass

    class Middle(Base):
        def scale(self, t):
            return super().scale(t) + 1

    it = Middle()
    check(it.scale, torch.ones(2), change=lambda: setattr(Middle, "__bases__", (Other,)))
    mine = Mine()

    def program(t):
        return t + 1 if isinstance(mine, Middle) else t

    check(program, torch.ones(2), change=lambda: setattr(Mine, "__bases__", (Middle,)))


def test_a_slot_that_is_filled_is_noticed():
    it = Derived()

    def program(t):
        return t * 2 if hasattr(it, "held") else t

    check(program, torch.ones(2), change=lambda: setattr(it, "held", 1))


def test_tensors_that_become_one_are_noticed():
    pair = [torch.ones(2), torch.ones(2)]

    def program(t):
        return t * 2 if pair[0] is pair[1] else t

    check(program, torch.ones(2), change=lambda: pair.__setitem__(1, pair[0]))


def test_the_order_of_an_ordered_dict_is_its_own():
    table = collections.OrderedDict(a=1, b=2, c=3)
    table.move_to_end("a")

    def program(t):
        for value in table.values():
            t = t * 10 + value
        return t

    check(program, torch.ones(2), change=lambda: table.move_to_end("b"))


def test_a_setting_that_is_read_is_guarded():
    before = torch.get_float32_matmul_precision()

    def program(t):
        return t + len(torch.get_float32_matmul_precision())

    try:
        change = lambda: torch.set_float32_matmul_precision("medium")  # noqa: E731
        check(program, torch.ones(2), change=change)
    finally:
        torch.set_float32_matmul_precision(before)


class OwnSet(set):
    pass


class OwnFrozenSet(frozenset):
    pass


class Member:
    pass


def test_the_members_of_sets():
    """Of classes of the program, too; and 1 is another member than True."""

    def program(t, held):
        return t * len(held), 2 in held, [type(item).__name__ for item in held]

    one, two = Member(), Member()
    kinds = (set, frozenset, OwnSet, OwnFrozenSet)
    sets = [kind(items) for kind in kinds for items in ((1,), (True,), (1, 2), (one,), (one, two))]
    run = optimize(program, run_graph, recompile_limit=100)
    t = torch.ones(2)
    for held in (*sets, *reversed(sets)):
        assert str(run(t, held)) == str(program(t, held)), held
    changing = OwnSet([1])
    for item in (2, "a", one):
        changing.add(item)
        assert sorted(run(t, changing)[2]) == sorted(program(t, changing)[2])


def test_a_set_of_objects_breaks_the_graph_where_it_is_used():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.seen = {self.linear}

        def forward(self, t):
            t = t.sin()
            return self.linear(t) if self.linear in self.seen else t

    graphs = []
    layers = Layers()
    run = optimize(layers, lambda gm, inputs: graphs.append(gm) or gm.forward)
    assert torch.equal(run(torch.ones(2)), layers(torch.ones(2))) and len(graphs) == 2
    layers.seen.clear()
    assert torch.equal(run(torch.ones(2)), torch.ones(2).sin())


def test_the_classes_that_are_derived_from_one():
    class Base:
        pass

    def program(t):
        return t * len([cls.__name__ for cls in Base.__subclasses__()])

    run = optimize(program, run_graph, fullgraph=True)
    derived = []
    for _ in range(3):
        assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))
        derived.append(type("Derived", (Base,), {}))


def test_modules_that_are_imported_by_the_function(monkeypatch):
    def program(t):
        import dovetail_test_module
        from dovetail_test_module import inner, scale

        return t * scale * dovetail_test_module.scale * inner.scale

    run = optimize(program, run_graph, fullgraph=True)
    for number in (2, 3, 5):
        for name in ("dovetail_test_module", "dovetail_test_module.inner"):
            module = types.ModuleType(name)
            module.scale = number
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules["dovetail_test_module"].inner = module
        for _ in range(2):
            assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))


def test_methods_that_copy():
    class Copied:
        scale = 2

    def named(**attributes):
        return lambda *_: types.SimpleNamespace(**attributes)

    def program(t):
        held.number = 1
        return t * copy.copy(held).scale * copy.deepcopy(held).scale

    held, run = Copied(), optimize(program, run_graph)
    for change in (
        lambda: setattr(Copied, "__copy__", named(scale=3)),
        lambda: setattr(Copied, "__deepcopy__", named(scale=4)),
        lambda: delattr(Copied, "__copy__"),
        lambda: delattr(Copied, "__deepcopy__"),
        lambda: setattr(Copied, "__reduce_ex__", lambda self, version: (named(scale=7), ())),
    ):
        assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))
        change()
        assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))


def test_functions_that_are_unwrapped():
    def double(t):
        return t * 2

    def wrapper(t):
        return double(t)

    def program(t):
        return inspect.unwrap(wrapper)(t), inspect.unwrap(outer, stop=lambda fn: fn is wrapper)(t)

    def outer(t):
        return t * 100

    wrapper.__wrapped__, outer.__wrapped__ = double, wrapper
    run = optimize(program, run_graph, fullgraph=True)
    for _ in range(2):
        for ours, expected in zip(run(torch.ones(2)), program(torch.ones(2)), strict=True):
            assert torch.equal(ours, expected)
        wrapper.__wrapped__ = lambda t: t * 5


Place = collections.namedtuple("Place", "name at")
_KEYS = [
    [("a", 0), ("b", 1), ("b", 2)],
    [Place("a", 0), Place("b", 1), Place("a", 1)],
    [(1, True), (2, True), (2, False)],
    [("a", ("x", 1.5)), ("a", ("y", 1.5)), ("a", ("y", 2.5))],
    [(torch.float32, None), (torch.float64, None), (torch.float64, int)],
]


@pytest.mark.parametrize("keys", _KEYS, ids=str)
@pytest.mark.parametrize(
    "program",
    [
        lambda t, table, key: t * (table[key] if len(key) == 2 and key in table else 9),
        lambda t, table, key: t * (2 if key in table else 3),
        lambda t, table, key: (t + 1, table.setdefault(key, 5), table.update({key: 7})),
        lambda t, table, key: t + len({key, ("b", 1), (2, True)}),
        lambda t, table, key: t * {("a", 0): 2, key: 3}[key],
    ],
    ids=["read", "contains", "written", "set", "made"],
)
def test_a_tuple_that_is_passed_as_a_key(program, keys):
    compiled, t = optimize(program, run_graph), torch.ones(2)
    for key in (*keys, *keys):
        mine, theirs = ({k: float(n) for n, k in enumerate(keys[:2])} for _ in range(2))
        assert str(compiled(t, mine, key)) == str(program(t, theirs, key))
        assert mine == theirs
