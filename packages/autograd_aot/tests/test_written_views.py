"""Inputs that are views, and are written to: what autograd says of them, and of their bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_testing import as_graph, run_fx, same_answers
from dovetail_autograd_aot import AotLog, TraceError, aot_compile
from dovetail_prims.node_facts import blamed
from torch import Tensor
from torch.fx import symbolic_trace

Run = Callable[..., tuple[Any, ...]]

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda base: base,
    "row": lambda base: base[0],
    "transposed": lambda base: base.t(),
    "all": lambda base: base.view_as(base),
    "chunk": lambda base: base.chunk(3)[1],
    "view of a view": lambda base: base[1:].t()[0],
    "under no_grad": torch.no_grad()(lambda base: base[1:]),
}
BASES: dict[str, Callable[[Tensor], Tensor]] = {
    "nonleaf": lambda leaf: leaf * 1.5,
    "leaf": lambda leaf: leaf,
    "plain": lambda leaf: leaf.detach() * 1.5,
}


def _times(x: Tensor, w: Tensor) -> None:
    x.mul_(w.sum())


def _plus(x: Tensor, w: Tensor) -> None:
    x.add_(w.sum())


def _part(x: Tensor, w: Tensor) -> None:
    x[..., :1] = w.sum()


def _zero(x: Tensor, w: Tensor) -> None:
    x.zero_()


def _twice(x: Tensor, w: Tensor) -> None:
    x.add_(1)
    x[..., :1] += w.sum()


@torch.no_grad()
def _under_no_grad(x: Tensor, w: Tensor) -> None:
    x.add_(2)


def _behind_detach(x: Tensor, w: Tensor) -> None:
    x.detach().add_(2)


def _nothing(x: Tensor, w: Tensor) -> None:
    pass


WRITES = (_times, _plus, _part, _zero, _twice, _under_no_grad, _behind_detach, _nothing)


def _programs(write: Callable[[Tensor, Tensor], None]) -> dict[str, Run]:
    def used_after(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        write(x, w)
        return x * w.sum(), x.sum() * 2

    def used_before(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        y = x * 3
        write(x, w)
        return y, w.exp()

    def used_twice(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        y = x * 3
        write(x, w)
        return y, x * w.sum(), x

    def viewed(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        v = x[..., :1]
        write(x, w)
        return v, v * 3, x * 2

    def unused(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        write(x, w)
        return w * 2, w.sum()

    return {f.__name__: f for f in (used_after, used_before, used_twice, viewed, unused)}


ASKS = ("at it", "at its base", "at other views", "hooks", "retained", "backward", "again")


def _asked(run: Run, base_of: str, view: str, ask: str) -> list[Any]:
    leaf = torch.linspace(-1, 2, 12).view(3, 4).clone().requires_grad_()
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    base = BASES[base_of](leaf)
    x = VIEWS[view](base)
    older = base.view(-1)[2:5]
    answers: list[Any] = []
    for place in (x, base):
        if ask == "hooks" and place.requires_grad:
            place.register_hook(lambda g: answers.append(g.clone()))
        if ask == "retained" and place.requires_grad and place.grad_fn is not None:
            place.retain_grad()
    outputs = run(x, w)
    newer = base.view(-1)[2:5]
    answers += [x._version, base._version, x.detach().clone(), base.detach().clone()]
    answers += [(t.is_leaf, t.requires_grad, t.grad_fn is None) for t in (x, base)]
    terms = [t * torch.arange(1.0, 1 + t.numel()).view(t.shape) for t in outputs if t.requires_grad]
    loss = torch.stack([term.sum() for term in terms]).sum()
    wanted = {
        "at it": [x], "at its base": [x, base], "at other views": [older, newer, base],
    }.get(ask)  # fmt: skip
    if wanted is not None:
        wanted = [t for t in (*wanted, leaf, w) if t.requires_grad]
        return [*answers, *torch.autograd.grad(loss, wanted, allow_unused=True)]
    if ask == "again":
        loss = loss + x.square().sum() + newer.square().sum()
    loss.backward()
    return [*answers, leaf.grad, w.grad, *([x.grad, base.grad] if ask == "retained" else [])]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("write", WRITES, ids=lambda w: w.__name__)
@pytest.mark.parametrize("base_of", BASES)
def test_what_autograd_says_is_eagers(
    write: Callable[[Tensor, Tensor], None], base_of: str
) -> None:
    """Of a graph that was made for inputs that are no views."""
    asked = 0
    for name, program in _programs(write).items():
        log = AotLog()
        known: dict[Any, Run] = {}

        def compiled(x: Tensor, w: Tensor) -> tuple[Any, ...]:
            key = x.shape, x.stride()
            if key not in known:  # noqa: B023 (called in this turn alone)
                example = torch.empty_strided(*key, requires_grad=base_of != "plain")
                if base_of != "plain":
                    example = example.clone(memory_format=torch.preserve_format)
                graph = as_graph(program, 2)  # noqa: B023
                known[key] = aot_compile(graph, [example, w], forward_compiler=run_fx, log=log)  # noqa: B023
            return known[key](x, w)  # noqa: B023

        for view in VIEWS:
            for ask in ASKS:
                try:
                    eager = _asked(program, base_of, view, ask)
                except RuntimeError:
                    continue
                try:
                    ours = _asked(compiled, base_of, view, ask)
                except RuntimeError as error:
                    assert "overwrites an input" in str(error), (name, view, ask)
                    continue
                same_answers(ours, eager)
                asked += 1
        if write is _nothing:
            assert not log.eager_calls
    assert asked > 50 or base_of == "leaf"  # (autograd lets nobody write to leaves)


def test_the_error_names_the_write() -> None:
    def fn(x: Tensor, w: Tensor) -> tuple[Any, ...]:
        y = x.sin()
        x.mul_(w)
        return y, x.cos()

    base = torch.ones(3, 4, requires_grad=True) * 1
    w = torch.ones(4, requires_grad=True)
    with pytest.raises(TraceError, match="takes anew of its base") as caught:
        aot_compile(symbolic_trace(fn), [base[0], w], forward_compiler=run_fx)
    assert blamed(caught.value) == "mul_"


def test_later_calls_with_views_run_by_eager_and_are_counted() -> None:
    log = AotLog()
    fn = _programs(_times)["used_twice"]
    w = torch.ones(2, requires_grad=True)
    examples = [torch.ones(4, requires_grad=True) * 1, w]
    run = aot_compile(as_graph(fn, 2), examples, forward_compiler=run_fx, log=log)
    for calls in (1, 2):
        run(torch.ones(3, 4, requires_grad=True).exp()[0], w)
        run(torch.ones(4, requires_grad=True).exp(), w)
        assert sum(log.eager_calls.values()) == calls and log.placements == 0


@pytest.mark.parametrize("needs_grad", [False, True])
def test_what_autograd_has_no_place_for_stays_compiled(needs_grad: bool) -> None:
    """A part of a cache, and statistics: written under no_grad, or with no history at all."""

    def fn(cache: Tensor, key: Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            cache[1:2] = key
        return key * 2, (cache.detach() * key).sum()

    cache = torch.zeros(2, 3, 4, requires_grad=needs_grad)
    key = torch.ones(4, requires_grad=True)
    log = AotLog()
    graph = as_graph(fn, 2)
    run = aot_compile(graph, [cache.clone()[0], key], forward_compiler=run_fx, log=log)
    found = []
    for call in (fn, run):
        key.grad = None
        part = cache.clone()[0]
        outputs = call(part, key)
        sum(o.sum() for o in outputs).backward()
        found.append([*outputs, key.grad, part])
    same_answers(found[1], found[0])
    assert not log.eager_calls and not log.placements


def _view_beside_a_write(b: Tensor, y: Tensor) -> tuple[Any, ...]:
    v = b[:2]
    before = v * 3
    y.zero_()
    return v, before, b * 2


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_view_is_taken_anew_where_another_input_with_its_counter_is_written_to(
    overlaps: bool,
) -> None:
    """What was computed from the view before has its old place."""

    def inputs(detached: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        whole = torch.linspace(1, 2, 6)
        b = whole[:3].detach().requires_grad_()
        return b, detached(whole)[1 if overlaps else 4 :]

    def asked(run: Run, detached: Callable[[Tensor], Tensor]) -> list[Any]:
        b, y = inputs(detached)
        v, before, other = run(b, y)
        found = torch.autograd.grad(before.sum() + other.sum(), [v, b], allow_unused=True)
        return [v._version, b._version, y._version, v, before, *found]

    log = AotLog()
    graph = as_graph(_view_beside_a_write, 2)
    run = aot_compile(graph, inputs(Tensor.detach), forward_compiler=run_fx, log=log)
    assert asked(_view_beside_a_write, Tensor.detach)[-2] is None
    for calls in range(2):
        same_answers(asked(run, Tensor.detach), asked(_view_beside_a_write, Tensor.detach))
        eager = asked(_view_beside_a_write, lambda whole: whole.data)  # (has its own counter)
        if overlaps:
            with pytest.raises(RuntimeError, match="inputs share memory"):
                asked(run, lambda whole: whole.data)
        else:
            same_answers(asked(run, lambda whole: whole.data), eager)
        assert log.placements == 1, calls


def test_an_input_that_shares_its_counter_with_one_that_is_a_view() -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Any, ...]:
        before = x * 3
        y.zero_()
        return before, x * 5

    base = torch.ones(6, requires_grad=True) * 2
    with pytest.raises(TraceError, match="takes anew of its base") as caught:
        aot_compile(symbolic_trace(fn), [base[:2], base.detach()[4:]], forward_compiler=run_fx)
    assert blamed(caught.value) == "zero_"
    # (`.data` has a counter of its own.)
    aot_compile(symbolic_trace(fn), [base[:2], base.data[4:]], forward_compiler=run_fx)
