"""Whatever a program changes between two calls other than arguments is seen: everything that Python
and PyTorch look up, under any name. The table of programs and changes is
`changed_surroundings.txt`."""

from __future__ import annotations

import builtins
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from dovetail_capture import optimize

TABLE = Path(__file__).with_name("changed_surroundings.txt")


@dataclass(frozen=True)
class Change:
    """A program, and what changes its result without a change of its arguments."""

    name: str
    setup: str
    body: str
    change: str


def read_table() -> list[Change]:
    sections = TABLE.read_text().split("\n== ")[1:]
    rows = [section.partition("\n") for section in sections]
    return [Change(name, *text.split("--\n")) for name, _, text in rows]


def outcome(function, *args):
    """What a call gives, as text that tells dtypes and values; or the class of what it raises."""
    try:
        result = function(*args)
    except Exception as error:
        return type(error).__name__
    return f"{result.dtype} {'' if result.is_meta else result.detach().flatten().tolist()}"


def run(statements, names):
    """Run statements as a file of their own would be."""
    exec(compile(statements, "<row>", "exec", dont_inherit=True), names)


@pytest.mark.parametrize("row", read_table(), ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore")
def test_a_change(row):
    undo, graphs = [], []
    names = {"torch": torch, "undo": undo, "__name__": "program", "__builtins__": builtins}
    names["names"] = names
    state = torch.get_rng_state()

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    try:
        run(row.setup, names)
        run("def program(t):\n" + textwrap.indent(row.body, "    "), names)
        program, names["t"] = names["program"], torch.tensor([1.0, 2.0])
        compiled = optimize(program, backend)
        before = outcome(program, names["t"])
        assert outcome(compiled, names["t"]) == before
        count = len(graphs)
        assert outcome(compiled, names["t"]) == before and len(graphs) == count
        run(row.change, names)
        expected, found = outcome(program, names["t"]), outcome(compiled, names["t"])
    finally:
        for put_back in reversed(undo):
            put_back()
        torch.set_rng_state(state)
    assert expected != before, "the change changes nothing"
    assert found == expected


def test_a_builtin_that_capture_calls_is_replaced(monkeypatch):
    """Frames run uncaptured as long as it is, and captured again when it is back."""

    def program(t):
        return t * len([1, 2])

    graphs = []
    t = torch.ones(2)
    compiled = optimize(program, lambda gm, inputs: graphs.append(gm) or gm.forward)
    assert compiled(t).tolist() == [2, 2] and len(graphs) == 1
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "len", lambda items: 7)
        found = compiled(t)
    assert found.tolist() == [7, 7] and len(graphs) == 1
    assert compiled(t).tolist() == [2, 2] and len(graphs) == 1
    events = compiled.capture_context.log.events
    assert {event.kind for event in events if "`len`" in event.text} == {"plain"}
