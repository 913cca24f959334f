"""What is read is guarded: a change is noticed, and what was not read may change freely."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_capture.api import optimize

from . import programs

FACTOR = 2


class Config:
    width = 3

    def __init__(self) -> None:
        self.depth = 1
        self.names = ["a"]
        self.unused = 0


def program(t: torch.Tensor, config: Config, table: dict[str, Any], flag: Any = None) -> Any:
    if flag is None:
        t = t + config.width * config.depth
    if "extra" in table:
        t = t * table["extra"]
    return t * FACTOR + len(config.names) + table.get("shift", 0)


def _run(change: Any) -> tuple[int, bool]:
    backend = programs.CountingBackend()
    captured = optimize(program, backend, fullgraph=True)
    config, table = Config(), {"unused": 1}
    t = torch.ones(2)
    assert torch.equal(captured(t, config, table), program(t, config, table))
    args = change(t, config, table) or (t, config, table)
    agree = torch.equal(captured(*args), program(*args))
    return len(backend.graphs), agree


def _set(name: str, value: Any) -> Any:
    def change(t: torch.Tensor, config: Config, table: dict[str, Any]) -> None:
        setattr(config, name, value)

    return change


CHANGES = {
    "attribute": _set("depth", 2),
    "attribute over a class attribute": _set("width", 7),
    "list grows": lambda t, config, table: config.names.append("b"),
    "key appears": lambda t, config, table: table.update(extra=3),
    "another key appears": lambda t, config, table: table.update(shift=3),
    "flag": lambda t, config, table: (t, config, table, 1),
    "shape": lambda t, config, table: (torch.ones(3), config, table),
    "dtype": lambda t, config, table: (t.double(), config, table),
    "type of the number": _set("depth", True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name: str) -> None:
    assert _run(CHANGES[name]) == (2, True)


def test_what_was_not_read_may_change() -> None:
    def change(t: torch.Tensor, config: Config, table: dict[str, Any]) -> None:
        config.unused = 5
        config.fresh = 1  # type: ignore[attr-defined]
        table["unused"] = 8
        table["fresh"] = 8

    assert _run(change) == (1, True)


def test_a_global_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(*args: Any) -> None:
        monkeypatch.setitem(program.__globals__, "FACTOR", 5)

    assert _run(change) == (2, True)


def test_class_attribute_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(lambda *args: monkeypatch.setattr(Config, "width", 11)) == (2, True)


def test_aliasing_of_arguments_is_guarded() -> None:
    def two(a: torch.Tensor, b: torch.Tensor) -> Any:
        a.add_(1)
        return a + b

    backend = programs.CountingBackend()
    captured = optimize(two, backend, fullgraph=True)
    captured(torch.ones(2), torch.ones(2))
    t, u = torch.ones(2), torch.ones(2)
    assert torch.equal(captured(t, t), two(u, u))
    assert torch.equal(captured(torch.ones(2), torch.ones(2)), torch.full((2,), 3.0))
    assert len(backend.graphs) == 2


def test_aliasing_of_lists_is_guarded() -> None:
    def two(t: torch.Tensor, a: list[Any], b: list[Any]) -> Any:
        a.append(t + 1)
        return t * len(b)

    captured = optimize(two, programs.CountingBackend(), fullgraph=True)
    assert torch.equal(captured(torch.ones(2), [1], [1]), torch.ones(2))
    shared = [1]
    assert torch.equal(captured(torch.ones(2), shared, shared), torch.full((2,), 2.0))


def test_grad_mode_is_guarded() -> None:
    weight = torch.ones(2, requires_grad=True)
    captured = optimize(lambda t: t * weight, programs.CountingBackend(), fullgraph=True)
    assert captured(torch.ones(2)).requires_grad
    with torch.no_grad():
        assert not captured(torch.ones(2)).requires_grad


def test_a_patched_method_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaler:
        def scale(self, t: torch.Tensor) -> torch.Tensor:
            return t * 2

        @staticmethod
        def shift(t: torch.Tensor) -> torch.Tensor:
            return t + 1

    scaler = Scaler()
    captured = optimize(
        lambda t: scaler.shift(scaler.scale(t)), programs.CountingBackend(), fullgraph=True
    )
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 3.0))
    monkeypatch.setattr(Scaler, "scale", lambda self, t: t * 5)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 6.0))
    monkeypatch.setattr(Scaler, "shift", staticmethod(lambda t: t))
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 5.0))
