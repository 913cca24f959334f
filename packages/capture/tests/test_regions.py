"""Calls of `optimize` for the same code share what is compiled."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import dovetail_capture as dc
import pytest
import torch
from dovetail_capture.frames.regions import MOST_UNUSED_HERE
from torch import Tensor, nn


class Counting:
    """A backend that counts graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward

    def method(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return self(gm, inputs)


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def waves(x: Tensor) -> Tensor:
    return x.sin() + x.cos()


def test_a_function_compiled_in_a_loop() -> None:
    backend = Counting()
    for _ in range(100):
        torch.testing.assert_close(dc.optimize(waves, backend)(X), waves(X))
    assert backend.graphs == 1


def test_a_function_made_anew_in_a_loop() -> None:
    backend = Counting()
    for number in range(20):
        offset = torch.full((4,), float(number))
        step = dc.optimize(lambda x: x * 2 + offset, backend)  # noqa: B023
        torch.testing.assert_close(step(X), X * 2 + offset)
    assert backend.graphs == 1


def test_a_number_that_a_function_closes_over() -> None:
    backend = Counting()
    for number in range(20):
        scaled = dc.optimize(lambda x: x * number, backend)  # noqa: B023
        torch.testing.assert_close(scaled(X), X * number)
    assert backend.graphs <= 4


def test_functions_that_are_other_functions() -> None:
    """What closures hold is guarded, whichever order they are called in."""
    backend = Counting()

    def applied(f: Any) -> Any:
        return dc.optimize(lambda x: f(x) + 1, backend)

    fast = {f: applied(f) for f in (torch.sin, torch.cos, torch.tanh)}
    for f in [*fast, *reversed(list(fast))]:
        torch.testing.assert_close(fast[f](X), f(X) + 1)
    assert backend.graphs == 3


def test_decorated_within_a_function() -> None:
    backend = Counting()

    def step(x: Tensor) -> Tensor:
        @partial(dc.optimize, backend=backend)
        def inner(u: Tensor) -> Tensor:
            return u * 2 + 1

        return inner(x)

    for _ in range(5):
        torch.testing.assert_close(step(X), X * 2 + 1)
    assert backend.graphs == 1


def test_bound_methods() -> None:
    class Scaler:
        def __init__(self, scale: Tensor) -> None:
            self.scale = scale

        def call(self, x: Tensor) -> Tensor:
            return x * self.scale

    backend = Counting()
    for number in range(6):
        scaler = Scaler(torch.tensor(float(number)))
        torch.testing.assert_close(dc.optimize(scaler.call, backend)(X), X * number)
    assert backend.graphs == 1


class Block(nn.Module):
    def __init__(self, features: int = 4, hidden: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.up, self.down = nn.Linear(features, hidden), nn.Linear(hidden, features)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "module": dc.optimize,
    "forward": lambda m, b: dc.optimize(m.forward, b),
    "call": lambda m, b: dc.optimize(m._call_impl, b),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("train", [False, True])
def test_equal_modules(way: str, train: bool) -> None:
    backend = Counting()
    blocks = [Block() for _ in range(16)]
    fast = [WAYS[way](block, backend) for block in blocks]
    for turn in range(3):
        x, wanted = X, X
        with torch.set_grad_enabled(train):
            for block, compiled in zip(blocks, fast, strict=True):
                x, wanted = compiled(x), block(wanted)
        torch.testing.assert_close(x, wanted)
        if train:
            x.sum().backward()
            got = [p.grad for b in blocks for p in b.parameters()]
            for block in blocks:
                block.zero_grad()
            wanted.sum().backward()
            torch.testing.assert_close(got, [p.grad for b in blocks for p in b.parameters()])
        for block in blocks:
            block.zero_grad()
            with torch.no_grad():
                block.up.weight.mul_(1.5)
        assert backend.graphs == 2, turn  # the first block's, and the others'


def test_modules_of_other_structure() -> None:
    """Each of them counts, and is told of, by itself."""
    backend = Counting()
    modules = [Block(4, hidden) for hidden in range(1, 13)] * 2
    fast = [dc.optimize(module, backend, recompile_limit=2) for module in modules]
    for module, compiled in zip(modules, fast, strict=True):
        torch.testing.assert_close(compiled(X), module(X))
    assert backend.graphs == 12
    assert all(f.capture_context.log.graph_count == 1 for f in fast)


def test_modules_that_come_and_go() -> None:
    """Two versions serve all of them, and keep none alive."""
    backend = Counting()
    gc.collect()
    for _ in range(12):
        block = Block()
        alive = [weakref.ref(p) for p in block.parameters()]
        torch.testing.assert_close(dc.optimize(block, backend)(X), block(X))
        del block
        assert not any(ref() is not None for ref in alive)
    assert backend.graphs == 2


def test_replaced_parameters_are_let_go() -> None:
    """The version for any parameter takes the place of those for the first one."""
    backend, block = Counting(), nn.Linear(4, 4)
    fast = dc.optimize(block, backend)
    fast(X)
    with torch.no_grad():
        fast(X)
    graphs = backend.graphs
    for _ in range(3):
        old, first = weakref.ref(block.weight), block.weight
        block.weight = nn.Parameter(torch.randn(4, 4))
        torch.testing.assert_close(fast(X), block(X))
        block.weight, second = first, block.weight  # and back
        torch.testing.assert_close(fast(X), block(X))
        block.weight = second
        torch.testing.assert_close(fast(X), block(X))
        del first, second
        gc.collect()
        assert old() is None
    assert backend.graphs == graphs + 1
    buffers = nn.BatchNorm1d(4).eval()
    compiled = dc.optimize(buffers, backend)
    compiled(X)
    old_buffer = weakref.ref(buffers.running_mean)
    buffers.running_mean = torch.randn(4)
    torch.testing.assert_close(compiled(X), buffers(X))
    gc.collect()
    assert old_buffer() is None


def test_classes_of_modules() -> None:
    """A subclass shares the forward; what it does with it is guarded."""

    class Scaled(nn.Module):
        def scale(self, x: Tensor) -> Tensor:
            return x * 2

        def forward(self, x: Tensor) -> Tensor:
            return self.scale(x) + 1

    class More(Scaled):
        def scale(self, x: Tensor) -> Tensor:
            return x * 3

    backend = Counting()
    for module in (Scaled(), More(), Scaled(), More()):
        torch.testing.assert_close(dc.optimize(module, backend)(X), module(X))


def test_what_closures_hold_is_let_go() -> None:
    backend = Counting()
    gc.collect()
    for _ in range(4):
        module, weight = nn.Linear(4, 4), torch.randn(4)
        alive = [weakref.ref(t) for t in (module.weight, weight)]

        def call(x: Tensor, m: nn.Module, w: Tensor) -> Any:
            return dc.optimize(lambda x: m(x) * w, backend)(x)

        torch.testing.assert_close(call(X, module, weight), module(X) * weight)
        del module, weight
        assert not any(ref() is not None for ref in alive)


def test_backends_are_compared() -> None:
    for same in (Counting().method, Counting()):
        first, second = dc.optimize(waves, same), dc.optimize(waves, same)
        assert first.capture_context is second.capture_context
    counting = Counting()
    first, second = dc.optimize(waves, counting.method), dc.optimize(waves, counting.method)
    assert first.capture_context is second.capture_context  # equal, though not one object
    for settings in ({"dynamic": True}, {"fullgraph": True}, {"recompile_limit": 3}):
        other: Any = dc.optimize(waves, counting.method, **settings)
        assert other.capture_context is not first.capture_context
    runs = [dc.optimize(waves, lambda gm, inputs: gm.forward) for _ in range(2)]
    assert runs[0].capture_context is not runs[1].capture_context
    keyed = [dc.optimize(waves, Counting(), backend_key="same") for _ in range(2)]
    assert keyed[0].capture_context is keyed[1].capture_context


def test_backends_made_anew_are_let_go() -> None:
    backends = []
    for _ in range(2 * MOST_UNUSED_HERE):
        backend = Counting()
        backends.append(weakref.ref(backend))
        dc.optimize(waves, backend)(X)
        del backend
    gc.collect()
    assert sum(ref() is not None for ref in backends) <= MOST_UNUSED_HERE
    dc.reset()
    gc.collect()
    assert not any(ref() is not None for ref in backends)


def test_code_made_anew_is_let_go() -> None:
    def make() -> Any:
        module = types.ModuleType("made")
        exec("def f(x):\n    return x.sin() * 2", vars(module))
        return module.f

    backend, codes = Counting(), []
    for _ in range(5):
        f = make()
        codes.append(weakref.ref(f.__code__))
        torch.testing.assert_close(dc.optimize(f, backend)(X), X.sin() * 2)
        del f
    gc.collect()
    assert not any(ref() is not None for ref in codes)


def test_isolated() -> None:
    backend = Counting()
    for _ in range(3):
        dc.optimize(waves, backend, isolate_recompiles=True)(X)
    dc.optimize(waves, backend)(X)
    assert backend.graphs == 4


def test_the_limit_counts_for_all() -> None:
    backend = Counting()

    def named(name: str) -> Any:
        return dc.optimize(lambda x: x * len(name), backend, recompile_limit=3)

    with pytest.warns(RuntimeWarning, match="recompile limit"):
        for number in range(6):
            torch.testing.assert_close(named("a" * number)(X), X * number)
    assert backend.graphs == 3


def test_reset_compiles_anew() -> None:
    backend = Counting()
    kept = dc.optimize(waves, backend)
    for _ in range(2):
        kept(X)
        dc.optimize(waves, backend)(X)
        dc.reset()
    assert backend.graphs == 2
    assert dc.optimize(waves, backend).capture_context is kept.capture_context


def test_copies() -> None:
    backend = Counting()
    compiled = dc.optimize(Block(), backend)
    compiled(X)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        other.up.weight.mul_(2)
    torch.testing.assert_close(other(X), other._orig_mod(X))
    torch.testing.assert_close(compiled(X), compiled._orig_mod(X))
    loaded = pickle.loads(pickle.dumps(dc.optimize(Block(), dc.run_graph)))
    torch.testing.assert_close(loaded(X), loaded._orig_mod(X))


def test_threads() -> None:
    backend = Counting()
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work() -> None:
        try:
            start.wait()
            for _ in range(10):
                torch.testing.assert_close(dc.optimize(waves, backend)(X), waves(X))
                block = Block()
                torch.testing.assert_close(dc.optimize(block, backend)(X), block(X))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert backend.graphs <= 8


def test_partials_and_functions_in_c() -> None:
    backend = Counting()

    def scaled(x: Tensor, by: Tensor) -> Tensor:
        return x * by

    for number in range(6):
        by = torch.tensor(float(number))
        torch.testing.assert_close(dc.optimize(partial(scaled, by=by), backend)(X), X * by)
        torch.testing.assert_close(dc.optimize(torch.sin, backend)(X), X.sin())
        torch.testing.assert_close(dc.optimize(torch.cos, backend)(X), X.cos())
    assert backend.graphs <= 4
