"""The slow evaluator, sorting and merging, and explanations."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from dovetail_guards import MISSING, FrameView, GuardSet, check, evaluate
from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.evaluate import constants_equal
from dovetail_guards.torch_state import READERS

X = s.LocalSource("x")


def f(x: Any, *rest: Any, flag: Any = None, **extra: Any) -> Any:
    return x


def view(x: Any, rest: tuple[Any, ...] = (), flag: Any = None, **extra: Any) -> FrameView:
    return FrameView((x, flag, rest, extra), f)


def tensor_clause(x: torch.Tensor, source: s.Source = X) -> c.TensorIs:
    return c.TensorIs(
        source, type(x), x.dtype, x.device, x.requires_grad, tuple(x.size()), tuple(x.stride())
    )


def test_arguments_are_found_by_slot() -> None:
    frame = view(1, (2, 3), flag=4, key=5)
    assert evaluate(s.LocalSource("rest"), frame) == (2, 3)
    assert evaluate(s.LocalSource("flag"), frame) == 4
    assert evaluate(s.ItemSource(s.LocalSource("extra"), "key"), frame) == 5
    assert evaluate(s.LocalSource("nothing"), frame) is MISSING


def test_a_source_that_is_not_there_fails_and_never_raises() -> None:
    class Slots:
        __slots__ = ()

    for value in (1, [], {}, (), Slots(), defaultdict(list), None):
        frame = view(value)
        for source in (
            s.AttrSource(X, "nope"),
            s.InstanceAttrSource(X, "nope"),
            s.ItemSource(X, 7),
            s.DictKeySource(X, 0),
            s.CellContentsSource(X),
            s.SizeSource(X, 0),
        ):
            assert evaluate(source, frame) is MISSING
            assert not check(c.TypeIs(source, int), frame)
    holder: dict[str, Any] = defaultdict(list)
    assert evaluate(s.ItemSource(X, "a"), view(holder)) is MISSING
    assert not holder  # __missing__ did not run


def test_a_tensor_where_a_container_was_is_not_asked_for_its_items() -> None:
    asked = []

    class Own(torch.Tensor):
        def __getitem__(self, key: Any) -> Any:
            asked.append(key)
            return 1

    assert evaluate(s.ItemSource(X, "a"), view(torch.ones(2).as_subclass(Own))) is MISSING
    assert not asked


def test_constants_compare_by_type_and_value() -> None:
    different = [1, True, 1.0, 0, False, 0.0, -0.0, None, "1", b"1", (1,), (True,), (1.0,), 1 + 0j]
    different += [frozenset({1}), frozenset({True}), slice(1), slice(True), torch.float32, "", ()]
    different += [{1}, {True}, {1.0, 2}, set()]
    for i, a in enumerate(different):
        for j, b in enumerate(different):
            assert constants_equal(a, b) == (i == j), (a, b)
    assert constants_equal(float("nan"), float("nan"))
    assert constants_equal(torch.device("cpu"), torch.device("cpu"))


def test_constants_that_compare_equal_stay_apart_in_a_set() -> None:
    guards = GuardSet([c.ConstantIs(X, v) for v in (1, True, 1.0, 1)])
    assert len(guards) == 3


def test_ordered_dicts_are_read_in_their_own_order() -> None:
    ordered = OrderedDict(a=1, b=2)
    guards = GuardSet([c.DictKeysAre(X, ("a", "b"))])
    assert guards.check_slow(view(ordered))
    ordered.move_to_end("a")
    assert not guards.check_slow(view(ordered))
    assert evaluate(s.DictKeySource(X, 0), view(ordered)) == "b"


def test_merge_is_order_free() -> None:
    first, second = GuardSet([c.TypeIs(X, int)]), GuardSet([c.ConstantIs(X, 3)])
    assert first + second == second + first == first.merge(second, first)
    assert hash(first + second) == hash(second + first)
    assert len(first + second) == 2


def test_torch_state_readers() -> None:
    for name, read in READERS.items():
        assert GuardSet([c.TorchState(name, read())]).check_slow(view(0)), name
    guards = GuardSet([c.TorchState("grad_mode", True), c.TorchState("autocast", ())])
    assert guards.check_slow(view(0))
    with torch.no_grad():
        assert not guards.check_slow(view(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not guards.check_slow(view(0))
        state = c.TorchState("autocast", READERS["autocast"]())
        assert check(state, view(0))
    with torch.autocast("cpu", dtype=torch.float16):
        assert not check(state, view(0))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda: torch.ones(5, 3), ("x.size(0) is 5", "mark_dynamic(x, 0)")),
        (lambda: torch.ones(3, 2).t(), ("x.stride() is (1, 2)", "contiguous()")),
        (lambda: torch.ones(2, 3, dtype=torch.int64), ("x.dtype is torch.int64", "")),
        (lambda: torch.ones(2, 3, requires_grad=True), ("x.requires_grad is True", "gradients")),
        (lambda: torch.ones(6), ("x.size() is (6,)", "rank")),
        (lambda: torch.ones(2, 3).to_sparse(), ("x.layout is torch.sparse_coo", "")),
        (
            lambda: torch.nn.Parameter(torch.ones(2, 3)),
            ("type(x) is torch.nn.parameter.Parameter", ""),
        ),
        (lambda: 3, ("type(x) is int", "")),
    ],
)
def test_a_failure_names_the_property_and_the_way_round(
    changed: Any, words: tuple[str, str]
) -> None:
    guards = GuardSet([tensor_clause(torch.ones(2, 3))])
    assert guards.explain_failure(view(torch.ones(2, 3))) is None
    failure = guards.explain_failure(view(changed()))
    assert failure is not None
    assert words[0] in failure.text and words[1] in failure.hint


def test_text_reads_like_python() -> None:
    weight = s.InstanceAttrSource(s.ItemSource(s.InstanceAttrSource(X, "layers"), 0), "weight")
    guards = GuardSet(
        [
            tensor_clause(torch.ones(2, 3), weight),
            c.HasInstanceAttr(X, "forward", False),
            c.SameObject((X, weight)),
        ]
    )
    text = guards.as_text()
    assert "x.layers[0].weight is a torch.Tensor: float32, cpu, sizes (2, 3)" in text
    assert "'forward' not in x.__dict__" in text
    assert "x, x.layers[0].weight are one object" in text


def test_a_pickled_source_does_not_carry_its_hash() -> None:
    source = s.ItemSource(s.InstanceAttrSource(X, "layers"), 0)
    hash(source)
    assert source.__getstate__() == {"base": s.InstanceAttrSource(X, "layers"), "key": 0}
    again = pickle.loads(pickle.dumps(source))
    assert again == source and hash(again) == hash(source)


def test_keys_are_not_asked_for_their_text() -> None:
    """A tensor's has its values, fetched from its device; and they change."""

    class Key:
        def __repr__(self) -> str:
            raise AssertionError("asked")

    one, other = Key(), Key()
    texts = [str(s.ItemSource(X, key)) for key in (one, other, (one, 1), "name", 2.5, Key)]
    assert texts[0] == f"x[<Key at {id(one):#x}>]" and texts[0] != texts[1]
    assert texts[2] == f"x[(<Key at {id(one):#x}>, 1,)]"
    assert texts[3:5] == ["x['name']", "x[2.5]"] and "Key" in texts[5]
