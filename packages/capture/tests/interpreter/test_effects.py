"""Changes to what outlives the frame: made after the graph, never during capture."""

from __future__ import annotations

import collections
import copy
import threading
import warnings
from typing import Any

import pytest
import torch
from dovetail_capture.api import optimize
from dovetail_capture.interpreter import capture_frame

from . import programs

check = programs.check

COUNT = 0
TABLE: dict[str, Any] = {}


class Holder:
    total = 0

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.state = torch.zeros(2)
        self.gone = 1


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a


def x() -> torch.Tensor:
    return torch.arange(2.0)


def change_list(t: torch.Tensor, items: list[Any]) -> Any:
    items.append(t + 1)
    items[0] = len(items)
    return items


def change_dict(t: torch.Tensor, table: dict[str, Any]) -> Any:
    table["new"] = t * 2
    del table["old"]
    table["nested"]["deep"] = [t]
    return len(table)


def change_set_and_deque(t: torch.Tensor, seen: set[int], queue: Any) -> Any:
    seen.add(9)
    queue.append(t + 1)
    queue.popleft()
    return t * len(queue)


def change_object(t: torch.Tensor, holder: Holder) -> Any:
    holder.items.append(t + 1)
    holder.state = holder.state + t
    holder.fresh = t
    del holder.gone
    return holder.state * 2


def change_slots(t: torch.Tensor, slotted: Slotted) -> Any:
    slotted.b = slotted.a + t
    slotted.a = 5
    return slotted.b * slotted.a


def change_tensor(t: torch.Tensor, u: torch.Tensor) -> Any:
    t.add_(1)
    u[0] = 7
    v = t.view(-1)
    v.mul_(2)
    t += u
    return t, v


def aliases(t: torch.Tensor, items: list[Any]) -> Any:
    same = items
    same.append(t + 1)
    pair = [items, same, t]
    pair.append(pair[0] is same)
    return pair


def cyclic(t: torch.Tensor) -> Any:
    items: list[Any] = [t + 1]
    items.append(items)
    table = {"me": items}
    items.append(len(table))
    return items[0], len(items)


PROGRAMS = [
    (change_list, ([1, 2],)),
    (change_dict, ({"old": 1, "nested": {}, "kept": 2},)),
    (change_set_and_deque, ({1}, collections.deque([1, 2]))),
    (change_object, (Holder(),)),
    (change_slots, (Slotted(3),)),
    (change_tensor, (torch.ones(2),)),
    (aliases, ([3],)),
    (cyclic, ()),
]  # fmt: skip


@pytest.mark.parametrize(("program", "extra"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_effect(program: Any, extra: tuple[Any, ...]) -> None:
    check(program, x(), *copy.deepcopy(extra), calls=1)


@pytest.mark.parametrize(("program", "extra"), PROGRAMS, ids=lambda p: getattr(p, "__name__", ""))
def test_capture_itself_changes_nothing(program: Any, extra: tuple[Any, ...]) -> None:
    args = (x(), *copy.deepcopy(extra))
    before = copy.deepcopy(args)
    frame = capture_frame(program.__code__, program, args)
    assert frame.break_ is None
    assert all(programs.same(a, b) for a, b in zip(args, before, strict=True))


def test_globals_are_written_after_the_graph() -> None:
    def program(t: torch.Tensor) -> Any:
        global COUNT
        COUNT += 2
        TABLE["t"] = t + COUNT
        return t * COUNT

    from dovetail_capture.api import optimize

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    assert torch.equal(captured(x()), x() * 2)
    assert COUNT == 2 and torch.equal(TABLE["t"], x() + 2)
    assert torch.equal(captured(x()), x() * 4)  # the global's new value is seen
    assert COUNT == 4


def test_nonlocal_cell_of_the_caller_is_written() -> None:
    from dovetail_capture.api import optimize

    total = 0

    def program(t: torch.Tensor) -> Any:
        nonlocal total
        total = total + 3
        return t + total

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    assert torch.equal(captured(x()), x() + 3) and total == 3
    assert torch.equal(captured(x()), x() + 6) and total == 6


def test_class_attributes_are_written() -> None:
    from dovetail_capture.api import optimize

    def program(t: torch.Tensor) -> Any:
        Holder.total = Holder.total + 1
        return t + Holder.total

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    assert torch.equal(captured(x()), x() + 1) and Holder.total == 1
    assert torch.equal(captured(x()), x() + 2) and Holder.total == 2


def test_made_objects_keep_their_identity() -> None:
    from dovetail_capture.api import optimize

    def program(t: torch.Tensor) -> Any:
        inner = [t + 1]
        holder = Holder()
        holder.items = inner
        return inner, holder, {"k": inner}, t

    argument = x()
    inner, holder, table, returned = optimize(program, programs.CountingBackend(), fullgraph=True)(
        argument
    )
    assert holder.items is inner and table["k"] is inner and returned is argument
    assert type(holder) is Holder and torch.equal(holder.state, torch.zeros(2))


def test_closures_are_rebuilt() -> None:
    from dovetail_capture.api import optimize

    def program(t: torch.Tensor) -> Any:
        count = 1
        shift = t + 1

        def bump(by: int = 2, *, more: int = 1) -> Any:
            nonlocal count
            count += by + more
            return shift * count

        def get() -> int:
            return count

        bump()
        return bump, get

    bump, get = optimize(program, programs.CountingBackend(), fullgraph=True)(x())
    assert get() == 4
    assert torch.equal(bump(1), (x() + 1) * 6) and get() == 6
    assert bump.__name__ == "bump" and bump.__defaults__ == (2,)


def test_messages_are_written_after_the_graph(caplog: pytest.LogCaptureFixture) -> None:
    import functools
    import logging
    import warnings

    from dovetail_capture.api import optimize

    logger = logging.getLogger("dovetail.test.messages")

    @functools.lru_cache(None)
    def once(target: logging.Logger, text: str) -> None:
        target.warning(text)

    def program(t: torch.Tensor) -> Any:
        logger.warning("value %d", 3)
        once(logger, "only once")
        warnings.warn("careful", stacklevel=1)
        return t + 1

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    with pytest.warns(UserWarning, match="careful"):
        captured(x())
        captured(x())
    texts = [record.getMessage() for record in caplog.records]
    assert texts == ["value 3", "only once", "value 3"]


def test_a_lock_is_released_when_a_replayed_effect_raises() -> None:
    lock = threading.Lock()
    items: dict[str, Any] = {}

    def program(t: torch.Tensor) -> torch.Tensor:
        with lock:
            items["t"] = t + 1
            warnings.warn("under the lock", stacklevel=1)
        return t * 2

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="under the lock"):
            captured(torch.ones(2))
    assert not lock.locked()
    with pytest.warns(UserWarning, match="under the lock"):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    assert torch.equal(items["t"], torch.full((2,), 2.0)) and not lock.locked()


def test_a_lock_that_is_taken_and_kept_is_kept() -> None:
    lock, items = threading.Lock(), []

    def program(t: torch.Tensor) -> torch.Tensor:
        y = t + 1
        lock.acquire()
        items.append(1)
        return y * 2

    backend = programs.CountingBackend()
    captured = optimize(program, backend)
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 4.0))
    assert lock.locked() and items == [1]
    lock.release()
    assert len(backend.graphs) == 2  # before the lock is taken, and behind


def test_a_lock_of_two_behind_one_protocol() -> None:
    class Both:
        def __init__(self) -> None:
            self.locks = [threading.RLock(), threading.RLock()]

        def __enter__(self) -> None:
            for lock in self.locks:
                lock.acquire()

        def __exit__(self, *exc: object) -> None:
            for lock in self.locks[::-1]:
                lock.release()

    both = Both()

    def program(t: torch.Tensor) -> torch.Tensor:
        with both:
            print(end="")
            return t + 1

    captured = optimize(program, programs.CountingBackend())
    for _ in range(2):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
        assert not any(lock._is_owned() for lock in both.locks)  # type: ignore[attr-defined]


def test_locks_are_taken_in_the_order_of_the_program() -> None:
    outer, inner = threading.Lock(), threading.Lock()
    seen: dict[str, Any] = {}

    def program(t: torch.Tensor) -> torch.Tensor:
        with outer, inner:
            seen["t"] = t + 1
        return t * 2

    captured = optimize(program, programs.CountingBackend(), fullgraph=True)
    captured(torch.ones(2))
    seen.clear()
    with outer:
        thread = threading.Thread(target=captured, args=(torch.ones(2),))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not inner.locked() and not seen
    thread.join()
    assert torch.equal(seen["t"], torch.full((2,), 2.0))


def test_locks_taken_one_after_another_are_not_held_together() -> None:
    first, second = threading.Lock(), threading.Lock()
    seen: dict[str, Any] = {}

    def program(t: torch.Tensor) -> torch.Tensor:
        with first:
            seen["a"] = t + 1
        with second:
            seen["b"] = t + 2
        return t * 2

    backend = programs.CountingBackend()
    captured = optimize(program, backend)
    captured(torch.ones(2))
    assert len(backend.graphs) > 1 and not first.locked() and not second.locked()
    assert sum(float(value.sum()) for value in seen.values()) == 10.0
