"""Ints that a compiled frame both reads and writes: counters on modules, classes and in containers.

What a call writes, the next one reads: that must not be another version of the frame.
"""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.hooks import RemovableHandle

CALLS = 6


class Counting:
    """A backend that counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


def step_count() -> tuple[Any, Any]:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Tensor) -> Tensor:
            self.step += 1
            return x * 0.5**self.step

    layer = Layer()
    return layer, lambda: layer.step


def bias_correction() -> tuple[Any, Any]:
    state = {"step": 0, "betas": (0.9, 0.999)}

    def fn(x: Tensor) -> Tensor:
        state["step"] += 1
        first, second = (1 - beta ** state["step"] for beta in state["betas"])
        return x / first * second**0.5

    return fn, lambda: dict(state)


def list_item() -> tuple[Any, Any]:
    counts = [3, 0]

    def fn(x: Tensor) -> Tensor:
        counts[1] += 2
        return x + counts[1] - counts[0]

    return fn, lambda: list(counts)


def closure() -> tuple[Any, Any]:
    count = 0

    def fn(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x + count

    return fn, lambda: count


GLOBAL = 0


def module_global() -> tuple[Any, Any]:
    global GLOBAL
    GLOBAL = 0

    def fn(x: Tensor) -> Tensor:
        global GLOBAL
        GLOBAL += 1
        return x * GLOBAL

    return fn, lambda: GLOBAL


def slot() -> tuple[Any, Any]:
    class State:
        __slots__ = ("count",)

    state = State()
    state.count = 1

    def fn(x: Tensor) -> Tensor:
        state.count += 1
        return x + state.count

    return fn, lambda: state.count


def two_in_a_chain() -> tuple[Any, Any]:
    class State:
        now, before = 5, 4

    state = State()
    state.now, state.before = 5, 3

    def fn(x: Tensor) -> Tensor:
        gap = state.now - state.before
        state.before = state.now
        state.now += 1
        return x + gap

    return fn, lambda: (state.now, state.before)


def downwards() -> tuple[Any, Any]:
    state = {"left": 100}

    def fn(x: Tensor) -> Tensor:
        state["left"] -= 1
        return x + 1 if state["left"] > 0 else x

    return fn, lambda: dict(state)


CASES = [
    step_count, bias_correction, list_item, closure, module_global, slot, two_in_a_chain, downwards,
]  # fmt: skip


def check(case: Callable[[], tuple[Any, Any]], graphs: int = 1, **options: Any) -> None:
    """Compare values, what is left and errors of each call with those of eager."""
    backend = Counting()
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

    def run(compiled: bool) -> list[Any]:
        fn, left = case()
        call = optimize(fn, backend, **options) if compiled else fn
        found = []
        for _ in range(CALLS):
            found.append((call(x), left()))
        return found

    eager, ours = run(False), run(True)
    for (wanted, left), (given, ours_left) in zip(eager, ours, strict=True):
        torch.testing.assert_close(given, wanted)
        assert ours_left == left
    assert backend.graphs <= graphs, backend.graphs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_counter_is_one_graph(case: Callable[[], tuple[Any, Any]]) -> None:
    check(case, fullgraph=True)


def class_attribute() -> tuple[Any, Any]:
    class Base:
        made = 0

    class Layer(Base):
        def number(self) -> int:
            Base.made += 1
            return self.made if Base.made < 0 else 7

    layer = Layer()

    def fn(x: Tensor) -> Tensor:
        number = Layer.made
        Base.made += 1
        return x + number + 1

    return fn, lambda: (Base.made, layer.made)


def dict_key() -> tuple[Any, Any]:
    seen: dict[Any, Any] = {"first": 0}
    state = {"step": 0}

    def fn(x: Tensor) -> Tensor:
        state["step"] += 1
        seen[state["step"]] = state["step"] * 2
        seen["last"] = state["step"]
        return x + seen[state["step"]]

    return fn, lambda: list(seen.items())


def dict_key_that_is_there() -> tuple[Any, Any]:
    state = {"step": 0}

    def fn(x: Tensor) -> Tensor:
        state["step"] += 1
        table = {0: "a", 3: "b", "c": 4, 2.5: "d", None: "e"}
        table[state["step"]] = "new"
        return x + len(table)

    return fn, lambda: dict(state)


def dict_key_that_goes() -> tuple[Any, Any]:
    state, table = {"step": 0}, {1: "a", 5: "b"}

    def fn(x: Tensor) -> Tensor:
        state["step"] += 1
        table[state["step"]] = "new"
        there = state["step"] in table
        del table[state["step"]]
        gone = state["step"] not in table
        return x + there + 2 * gone + (table.pop(state["step"] + 10, "none") == "none")

    return fn, lambda: (state["step"], list(table.items()))


def dict_keys_of_one_expression() -> tuple[Any, Any]:
    state = {"step": 0}

    def fn(x: Tensor) -> tuple[Tensor, Any]:
        state["step"] += 1
        step = state["step"]
        table = {step: 1, step + 1: 2, step + 1 - 1: 3, 2 * step: 4, True: 5}
        table.setdefault(step, 6)
        return x + len(table), table

    return fn, lambda: dict(state)


@pytest.mark.parametrize("case", [class_attribute, dict_key], ids=lambda case: case.__name__)
def test_counter_elsewhere_is_one_graph(case: Callable[[], tuple[Any, Any]]) -> None:
    check(case, fullgraph=True)


@pytest.mark.parametrize(
    ("case", "graphs"),
    [(dict_key_that_is_there, 2), (dict_key_that_goes, 4), (dict_keys_of_one_expression, 2)],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_key_that_may_be_another(case: Callable[[], tuple[Any, Any]], graphs: int) -> None:
    """A version for each number among the keys that the symbolic one may be."""
    check(case, graphs, fullgraph=True)


def hooked(use: Callable[[nn.Module, Tensor], Any]) -> Callable[[], tuple[Any, Any]]:
    """A program that registers hooks on a module which has one; what is left of them."""

    def case() -> tuple[Any, Any]:
        torch.manual_seed(0)
        layer = nn.Linear(2, 2)
        layer.register_forward_hook(lambda module, args, out: out + 1)
        start = RemovableHandle.next_id

        def left() -> Any:
            tables = (
                layer._forward_hooks,
                layer._forward_pre_hooks,
                layer._forward_hooks_with_kwargs,
            )
            return RemovableHandle.next_id - start, [len(table) for table in tables]

        return lambda x: use(layer, x), left

    case.__name__ = use.__name__
    return case


def removed(layer: nn.Module, x: Tensor) -> Any:
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, args, out: seen.append(out))
    y = layer(x)
    handle.remove()
    return layer(x), y, seen


def in_a_block(layer: nn.Module, x: Tensor) -> Any:
    with layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,)):
        y = layer(x)
    return y, layer(x)


def two_of_which_one_comes_first(layer: nn.Module, x: Tensor) -> Any:
    first = layer.register_forward_hook(lambda module, args, out: out * 2)
    second = layer.register_forward_hook(lambda module, args, out: out - 1, prepend=True)
    y = layer(x)
    first.remove()
    z = layer(x)
    second.remove()
    return y, z, second.id - first.id


def with_keywords(layer: nn.Module, x: Tensor) -> Any:
    def hook(module: Any, args: Any, kwargs: Any, out: Any) -> Any:
        return out + len(kwargs)

    handle = layer.register_forward_hook(hook, with_kwargs=True, always_call=True)
    y = layer(input=x)
    handle.remove()
    handle.remove()
    return y


def removed_in_the_end(layer: nn.Module, x: Tensor) -> Any:
    handles = [layer.register_forward_hook(lambda module, args, out: out * 3) for _ in range(2)]
    try:
        return layer(x)
    finally:
        for handle in handles:
            handle.remove()


HOOKS = [removed, in_a_block, two_of_which_one_comes_first, with_keywords, removed_in_the_end]


@pytest.mark.parametrize("use", HOOKS, ids=lambda use: use.__name__)
def test_hooks_of_a_call(use: Callable[[nn.Module, Tensor], Any]) -> None:
    check(hooked(use), fullgraph=True)


def test_handles_that_leave() -> None:
    """A handle that the frame returns removes its hook."""
    backend, x = Counting(), torch.ones(1, 2)
    layer = nn.Linear(2, 2)

    def fn(x: Tensor) -> Any:
        handle = layer.register_forward_hook(lambda module, args, out: out * 2)
        return layer(x), handle

    compiled, plain = optimize(fn, backend, fullgraph=True), layer(x)
    ids = []
    for _ in range(CALLS):
        y, handle = compiled(x)
        ids.append(handle.id)
        torch.testing.assert_close(y, plain * 2)
        torch.testing.assert_close(layer(x), plain * 2)
        assert list(layer._forward_hooks) == [handle.id]
        handle.remove()
        torch.testing.assert_close(layer(x), plain)
    assert ids == list(range(ids[0], ids[0] + CALLS))
    assert backend.graphs == 1


def test_reference_to_what_the_frame_lets_go() -> None:
    """The target of a weak reference is gone if nothing else has it."""

    class Owner:
        pass

    def fn(owner: Any, x: Tensor) -> Any:
        reference = weakref.ref(owner.part)
        before = reference() is owner.part
        del owner.part
        return x + 1, before, reference() is None

    compiled = optimize(fn, Counting())
    for call in (fn, compiled, compiled):
        owner = Owner()
        owner.part = Owner()
        assert call(owner, torch.ones(1))[1:] == (True, True)


def member_of_a_set() -> tuple[Any, Any]:
    state = {"step": 3}

    def fn(x: Tensor) -> Tensor:
        state["step"] += 1
        step = state["step"]
        seen = {"a"}
        seen.add(step)
        seen.add(step + 1)
        seen.discard(step + 1)
        return x + (step in seen) + 2 * (step + 1 in seen) + 4 * (2 in seen)

    return fn, lambda: dict(state)


def set_that_is_seen() -> tuple[Any, Any]:
    state = {"step": 0}

    def fn(x: Tensor) -> tuple[Tensor, Any]:
        state["step"] += 1
        seen = {state["step"] * 7, 3, 14}
        seen.add(state["step"])
        return x + len(seen), list(seen)

    return fn, lambda: dict(state)


def test_member_of_a_set() -> None:
    check(member_of_a_set, fullgraph=True)
    check(set_that_is_seen, CALLS, fullgraph=True)


def test_backend_without_symbols() -> None:
    """What only Python counts is symbolic for any backend; what the graph counts with is not."""
    for case, graphs in ((hooked(removed), 1), (step_count, CALLS)):
        seen: list[GraphModule] = []

        def backend(gm: GraphModule, examples: list[Any], seen: Any = seen) -> Any:
            if not all(isinstance(example, Tensor) for example in examples):
                raise ValueError("a graph that takes numbers")
            seen.append(gm)
            return lambda *args: gm.forward(*args)

        (plain, _), (fn, _) = case(), case()
        compiled, x = optimize(fn, backend, fullgraph=True), torch.ones(1, 2)
        for _ in range(CALLS):
            torch.testing.assert_close(compiled(x), plain(x))
        assert len(seen) == graphs


def count_of_itertools() -> tuple[Any, Any]:
    numbers = itertools.count(0, 2)

    def fn(x: Tensor) -> Tensor:
        first, second = next(numbers), next(numbers)
        return x * first + second

    return fn, lambda: repr(numbers)


def ids_of_a_class() -> tuple[Any, Any]:
    class Node:
        ids = itertools.count()

        def __init__(self) -> None:
            self.id = next(Node.ids)

    def fn(x: Tensor) -> tuple[Tensor, int]:
        nodes = {node.id: node for node in (Node(), Node())}
        return x + len(nodes), max(nodes)

    return fn, lambda: repr(Node.ids)


def zipped_count() -> tuple[Any, Any]:
    numbers = itertools.count(3)

    def fn(x: Tensor) -> Tensor:
        for number, part in zip(numbers, (x, x + 1), strict=False):
            x = x + number * part
        return x

    return fn, lambda: repr(numbers)


def read_through_an_instance() -> tuple[Any, Any]:
    class Base:
        made = 0

    class Layer(Base):
        def forward(self, x: Tensor) -> Tensor:
            Base.made += 1
            self.own = self.made
            return x + self.made + Layer.made

    layer = Layer()
    return layer.forward, lambda: (Base.made, layer.own)


@pytest.mark.parametrize(
    "case",
    [count_of_itertools, ids_of_a_class, zipped_count],
    ids=lambda case: case.__name__,
)
def test_count_of_itertools_is_one_graph(case: Callable[[], tuple[Any, Any]]) -> None:
    check(case, fullgraph=True)


def test_class_attribute_read_through_an_instance() -> None:
    check(read_through_an_instance, 2, fullgraph=True)  # the first call makes an attribute


def test_count_of_floats_breaks() -> None:
    numbers, plain = itertools.count(0.5), itertools.count(0.5)
    compiled = optimize(lambda x: x + next(numbers), Counting())
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(1)), torch.ones(1) + next(plain))


def keys_that_are_popped() -> tuple[Any, Any]:
    state: dict[str, Any] = {"step": 0}
    table: dict[Any, Any] = {1: "a", 2: "b", 5: "c"}

    def fn(x: Tensor) -> Tensor:
        step = state["step"]
        found = [table.pop(step, None), list(table.items())]
        if step - 1 in table:
            del table[step - 1]
        table.update({step: 1, step % 3: 2})
        found += [table.pop(step % 3), list(table)]
        state["step"] = step + 1
        state["found"] = repr(found)
        return x + len(table)

    return fn, lambda: (dict(state), list(table.items()))


def test_keys_that_are_popped() -> None:
    check(keys_that_are_popped, CALLS)


def test_random_programs_with_symbolic_keys() -> None:
    """Dictionaries and sets whose keys are counters do what Python's do, key by key."""
    for seed in range(40):
        rng = random.Random(seed)
        source = _random_program(rng)
        worlds = [_random_world(random.Random(seed), source) for _ in range(2)]
        compiled = optimize(worlds[1]["fn"], Counting())
        for _ in range(5):
            results = [
                repr(call(torch.ones(2, dtype=torch.float64)))
                for call in (worlds[0]["fn"], compiled)
            ]
            assert results[0] == results[1], f"seed {seed}\n{source}"
            left = [[list(world[name].items()) for name in ("s", "h", "g")] for world in worlds]
            assert repr(left[0]) == repr(left[1]), f"seed {seed}\n{source}"


_KEYS = ("n", "m", "n + 1", "n - 1", "2 * n", "n + m", "n // 2", "n % 3", "4", "True", "2.0", "'a'")
_STEPS = (
    "{d}[{k}] = {v}", "out.append({k} in {d})", "out.append({d}.get({k}))", "{d}[{k}] = n",
    "out.append({d}.pop({k}, 'gone'))", "{d}.setdefault({k}, {v})", "out.append(len({d}))",
    "out.append(list({d}.items()))", "n += 1", "m = n + {v}", "st.add({k})", "st.discard({k})",
    "out.append({k} in st)", "x = x * n + len(st)", "if {k} in {d}: {d}.pop({k}, None)",
    "{d}.update({{{k}: 1, {k}: 2}})",
)  # fmt: skip


def _random_program(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(4, 9)):
        step, parts = rng.choice(_STEPS), {"d": rng.choice("hgl"), "v": rng.randint(0, 9)}
        while "{k}" in step:
            step = step.replace("{k}", rng.choice(_KEYS), 1)
        lines.append(step.format(**parts))
    begin = "n, m, out, l, st = s['n'], s['m'], [], {1: 'l'}, {1}"
    end = ["s['n'], s['m'] = n + 1, m", "return x, out, l, sorted(map(str, st))"]
    return "def fn(x):\n" + "".join(f"    {line}\n" for line in (begin, *lines, *end))


def _random_world(rng: random.Random, source: str) -> dict[str, Any]:
    world: dict[str, Any] = {"s": {"n": rng.randint(0, 3), "m": rng.randint(0, 3)}}
    world["h"] = {key: key for key in rng.sample(range(9), rng.randint(0, 4))}
    world["g"] = {key: key for key in rng.sample(range(-2, 20), rng.randint(0, 15))}
    exec(source, world)
    return world


def test_capture_keeps_nothing() -> None:
    """What a capture has seen dies with the program's last reference to it, at once."""

    class Owner:
        count = 3

    def fn(owner: Any, given: Any, x: Tensor) -> Any:
        return x + owner.part.count, given[0]

    owner, compiled = Owner(), optimize(fn, Counting(), fullgraph=True)
    owner.part = Owner()
    gc.collect()
    gc.disable()
    try:
        compiled(owner, [7], torch.ones(1))
        alive = weakref.ref(owner.part)
        owner.part = None
        assert alive() is None
    finally:
        gc.enable()
