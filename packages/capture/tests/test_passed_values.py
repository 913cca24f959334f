"""Values that a program only passes on are not guarded: one graph for all of them. What looks at
one guards it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import passed_values
import pytest
import torch
from dovetail_capture import export, optimize
from torch import Tensor
from torch.fx import GraphModule


@pytest.mark.parametrize("seed", range(7000, 7080))
def test_random_programs(seed: int) -> None:
    passed_values.check(seed)


def compiled_with(fn: Callable[..., Any]) -> tuple[Any, list[GraphModule]]:
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        graphs.append(gm)
        return gm.forward

    return optimize(fn, backend, fullgraph=True), graphs


def returned(x: Tensor, tag: Any) -> Any:
    return x + 1, tag


def is_given(x: Tensor, tag: Any) -> Any:
    return x + 1 if tag is not None else x


def of_a_kind(x: Tensor, tag: Any) -> Any:
    return (x + 1, [tag]) if isinstance(tag, (str, int, float)) and not callable(tag) else x - 1


def unpacked(x: Tensor, tag: Any) -> Any:
    a, b = tag, 1
    return x * b, {"label": a}


VALUES: dict[str, list[Any]] = {
    "str": ["a", "b", "c"], "int": [3, 4, 0, -7], "float": [0.5, 1.5, float("nan"), -0.0],
    "bool": [True, False], "bytes": [b"a", b"b"], "complex": [1j, 2j],
    "dtype": [torch.float32, torch.int8], "device": [torch.device("cpu"), torch.device("meta")],
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("fn", [returned, is_given, of_a_kind, unpacked])
def test_one_graph_for_values_that_are_passed_on(fn: Callable[..., Any], kind: str) -> None:
    run, graphs = compiled_with(fn)
    for value in VALUES[kind]:
        wanted, got = fn(torch.ones(2), value), run(torch.ones(2), value)
        assert repr(got) == repr(wanted)
        if fn is returned:
            assert got[1] is value
    assert len(graphs) == 1


def test_labels_beside_tensors() -> None:
    def total(pairs: list[tuple[str, Tensor]]) -> Any:
        names = []
        whole = torch.zeros(2)
        for name, value in pairs:
            names.append(name)
            whole = whole + value
        return whole, names

    run, graphs = compiled_with(total)
    for number in range(4):
        pairs = [(f"n{number}", torch.ones(2)), (f"m{number}", torch.ones(2))]
        assert run(pairs)[1] == [f"n{number}", f"m{number}"]
    assert len(graphs) == 1


def test_another_type_is_another_case() -> None:
    run, graphs = compiled_with(returned)
    for value in (1, 2, True, 2.0, "a", None, 3):
        got = run(torch.ones(2), value)[1]
        assert (got, type(got)) == (value, type(value))
    assert len(graphs) == 5


def test_what_looks_at_a_value_guards_it() -> None:
    def scaled(x: Tensor, mode: str, label: str) -> Any:
        return (x * 2 if mode == "twice" else x * 3), label

    run, graphs = compiled_with(scaled)
    for mode, label, count in (
        ("twice", "a", 1), ("twice", "b", 1), ("other", "b", 2), ("third", "c", 3), ("twice", "", 3)
    ):  # fmt: skip
        wanted, got = scaled(torch.ones(2), mode, label), run(torch.ones(2), mode, label)
        assert torch.equal(got[0], wanted[0]) and got[1] == label
        assert len(graphs) == count


def test_a_value_that_is_read_before_its_place_is_written() -> None:
    class Holder:
        def __init__(self, label: str) -> None:
            self.label = label

    def exchange(x: Tensor, holder: Holder, label: str) -> Any:
        before = holder.label
        holder.label = label
        return x + 1, before

    run, graphs = compiled_with(exchange)
    holder, before = Holder("a"), "a"
    for label in ("b", "c", "d"):
        assert run(torch.ones(2), holder, label)[1] == before
        assert holder.label == label
        before = label
    assert len(graphs) == 1


def test_a_number_becomes_symbolic_once_it_is_used() -> None:
    def fn(x: Tensor, n: int, other: int) -> Any:
        return x * n, other

    run, graphs = compiled_with(fn)
    for n in range(3, 8):
        got = run(torch.ones(2), n, n + 1)
        assert got[0][0] == n and got[1] == n + 1
    assert len(graphs) == 2


def test_what_is_exported_keeps_its_constants() -> None:
    exported = export(returned, (torch.ones(2), "a"))
    assert exported(torch.ones(2), "a")[1] == "a"
    with pytest.raises(Exception, match="exported for the constant"):
        exported(torch.ones(2), "b")


def test_no_code_of_the_program_runs_to_pass_a_value() -> None:
    class Counted:
        reads = 0

        def __init__(self, label: str) -> None:
            self.label = label

        def __getattribute__(self, name: str) -> Any:
            Counted.reads += name == "label"
            return object.__getattribute__(self, name)

    def fn(x: Tensor, holder: Any) -> Any:
        return x + 1, holder.label

    run, _ = compiled_with(fn)
    for label in ("a", "b", "b", "c"):
        holder = Counted(label)
        Counted.reads = 0
        assert run(torch.ones(2), holder)[1] == label
        assert Counted.reads == 1


def test_not_implemented_is_known_where_it_is_returned() -> None:
    class Left:
        def __add__(self, other: Any) -> Any:
            return NotImplemented

        def __eq__(self, other: object) -> Any:
            return NotImplemented

        __hash__ = None  # type: ignore[assignment]

    def fn(x: Tensor) -> Any:
        try:
            return Left() + 1
        except TypeError as error:
            return x + 1, str(error), Left() == Left()

    run, _ = compiled_with(fn)
    assert run(torch.ones(2))[1:] == fn(torch.ones(2))[1:]
