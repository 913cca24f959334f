"""Greenlets of one thread that are within compiled calls at the same time: what each captures is
its own, in its own context, and nothing else is captured."""

from __future__ import annotations

import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from dovetail_capture import _frame_hook, disable, optimize

greenlet = pytest.importorskip("greenlet")


@disable
def pause() -> None:
    """To whoever started this greenlet."""
    parent = greenlet.getcurrent().parent
    if parent is not None:
        parent.switch()


class Told:
    """A backend that notes under its name what the graphs that it gets hold."""

    def __init__(self, name: str, told: list[tuple[str, str]]) -> None:
        self.name, self.told = name, told

    def __call__(self, gm: Any, inputs: Any) -> Any:
        names = [str(n.target).rpartition(".")[2] for n in gm.graph.nodes if "call" in n.op]
        self.told += [(self.name, name) for name in names]
        return gm.forward


def first(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    pause()
    return y.exp()


def second(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    pause()
    return y.abs()


def uncompiled(x: torch.Tensor) -> torch.Tensor:
    return x.tan()


def test_two_that_take_turns() -> None:
    told: list[tuple[str, str]] = []
    calls = [optimize(f, Told(f.__name__, told)) for f in (first, second)]
    x = torch.ones(2)
    tasks = [greenlet.greenlet(call) for call in calls]
    for task in tasks:
        task.switch(x)
        uncompiled(x)
    assert torch.equal(tasks[0].switch(), x.sin().exp())
    del calls[0]
    gc.collect()
    uncompiled(x)
    assert torch.equal(tasks[1].switch(), x.cos().abs())
    assert sorted(told) == [
        ("first", "exp"),
        ("first", "sin"),
        ("second", "abs"),
        ("second", "cos"),
    ]
    assert _frame_hook.active() is None and not _frame_hook.installed()


def test_one_that_is_never_ended() -> None:
    """Its context goes with it, and nothing is left on."""
    told: list[tuple[str, str]] = []
    call = optimize(first, Told("first", told))
    task = greenlet.greenlet(call)
    task.switch(torch.ones(2))
    del task, call
    gc.collect()
    uncompiled(torch.ones(2))
    assert told == [("first", "sin")]
    assert _frame_hook.active() is None and not _frame_hook.installed()


def program(seed: int, told: list[tuple[str, str]], depth: int) -> Callable[..., Any]:
    """A function that pauses between steps; each is captured in the context of `seed`, another
    compiled function, or disabled."""
    draw = Random(seed)
    steps: list[Any] = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(["op", "op", "pause", "call", "disabled"])
        if kind == "call" and depth:
            steps.append(program(draw.randrange(1 << 30), told, depth - 1))
        elif kind == "disabled":
            steps.append(disable(paused_and_scaled))
        elif kind == "pause":
            steps.append(None)
        else:
            steps.append(draw.choice([torch.sin, torch.cos, torch.tanh]))

    def run(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            if step is None:
                pause()
            else:
                x = step(x)
        return x + 1

    return optimize(run, Told(str(seed), told)) if draw.random() < 0.8 else run


def paused_and_scaled(x: torch.Tensor) -> torch.Tensor:
    pause()
    return uncompiled(x) * 2


@pytest.mark.parametrize("seed", range(12))
def test_random_turns(seed: int) -> None:
    """Values are those of each program alone; nothing of the disabled part is in any graph."""
    draw = Random(seed)
    told: list[tuple[str, str]] = []
    x = torch.linspace(0, 1, 3)
    programs = [program(draw.randrange(1 << 30), told, 2) for _ in range(4)]
    wanted = []
    for each in programs:
        task = greenlet.greenlet(each)
        value = task.switch(x)
        while not task.dead:
            value = task.switch()
        wanted.append(value)
    for _ in range(3):
        tasks = {n: greenlet.greenlet(each) for n, each in enumerate(programs)}
        found = {n: task.switch(x) for n, task in tasks.items()}
        while running := [n for n, task in tasks.items() if not task.dead]:
            chosen = draw.choice(running)
            found[chosen] = tasks[chosen].switch()
            uncompiled(x)
        assert all(torch.equal(found[n], value) for n, value in enumerate(wanted)), f"seed {seed}"
        assert _frame_hook.active() is None and not _frame_hook.installed()
    assert "tan" not in {name for _, name in told}
