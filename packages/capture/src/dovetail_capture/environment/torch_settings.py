"""Global settings of torch that a program changes while it runs, other than its modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One of torch's settings; `guards` name the readers of `torch_state` that tell of it, and of
    what a change of it changes besides.

    `obeyed_by_kernels`: what it means is decided where a kernel runs, not where it is recorded.
    `in_program` does what the program's own call does; `write`, which it is by default, only tells
    torch. `undone` by another `write`: if not, capture does not even try it.
    """

    guards: tuple[str, ...]
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    obeyed_by_kernels: bool = False
    in_program: Callable[[Any], Any] | None = None
    undone: bool = True

    @property
    def name(self) -> str:
        """The function that sets it, for people."""
        return (self.in_program or self.write).__name__.strip("_")


@dataclass(frozen=True)
class SettingOfGraph:
    """A setting that the kernels of a graph obey: made before the graph runs, and what it is
    `after` the frame's stretch, also where the graph raises."""

    setting: Setting
    value: Any
    after: Any

    @property
    def write(self) -> Callable[[Any], Any]:
        """What the program calls to make it."""
        return self.setting.in_program or self.setting.write


class KernelSettings:
    """What a frame does to settings that kernels obey: before its graph, and after it."""

    def __init__(self) -> None:
        self.before: dict[Setting, Any] = {}
        self.after: dict[Setting, Any] = {}

    def write(self, setting: Setting, value: Any, recorded: bool) -> None:
        """Note a change, the last so far; are operations `recorded` already, which are to run as
        it was before?"""
        made = self.after if recorded else self.before
        made.pop(setting, None)
        made[setting] = value

    def now(self) -> dict[Setting, Any]:
        """What was changed, and what it is at this point of the program."""
        return {**self.before, **self.after}

    def of_graph(self) -> tuple[SettingOfGraph, ...]:
        """Those that are made before the graph."""
        now = self.now()
        return tuple(SettingOfGraph(one, value, now[one]) for one, value in self.before.items())


@contextmanager
def under(settings: Sequence[SettingOfGraph]) -> Iterator[None]:
    """A block in which torch is set as it is while a graph runs."""
    undone = [one for one in settings if one.setting.undone]
    before = [one.setting.read() for one in undone]
    try:
        for one in undone:
            one.setting.write(one.value)
        yield
    finally:
        for one, value in zip(undone, before, strict=True):
            one.setting.write(value)
