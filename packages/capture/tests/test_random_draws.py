"""Python's `random` in captured code: fresh numbers in each call, the same ones and the same state
of the generator as without capture, and one graph wherever no number is asked for."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from construct_cases import CountingBackend, same
from dovetail_capture import CaptureError, GraphBreakError, export, optimize

OWN = random.Random(3)


class Augment(torch.nn.Module):
    """Has a generator of its own, and keeps what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(4)
        self.last = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.generator.uniform(0.5, 1.5)
        return x * self.last + self.generator.gauss(0, 1)


def states(arguments: tuple[Any, ...]) -> list[Any]:
    held = [a.generator for a in arguments if isinstance(a, Augment)]
    held += [a for a in arguments if isinstance(a, random.Random)]
    return [random.getstate(), OWN.getstate(), *(generator.getstate() for generator in held)]


def observe(call: Callable[..., Any], make: Callable[[], tuple[Any, ...]], times: int) -> Any:
    """What each call gives or raises, and the generators' states after it."""
    random.seed(0)
    OWN.seed(1)
    arguments, seen = make(), []
    for _ in range(times):
        try:
            result = call(*arguments)
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            result = type(error).__name__, str(error)
        kept = [a.last for a in arguments if isinstance(a, Augment)]
        seen.append((result, kept, states(arguments)))
    return seen


def check(
    function: Callable[..., Any],
    *,
    graphs: int,
    breaks: int,
    make: Callable[[], tuple[Any, ...]] = lambda: (torch.arange(12.0).reshape(3, 4),),
    times: int = 4,
) -> Any:
    """Captured as eager, over several calls; returns what was captured."""
    wanted = observe(function, make, times)
    backend = CountingBackend()
    captured = optimize(function, backend)
    got = observe(captured, make, times)
    log = captured.capture_context.log
    assert same(wanted, got), log.as_text()
    assert (len(backend.graphs), len(log.breaks)) == (graphs, breaks), log.as_text()
    return captured


# --- one graph -----------------------------------------------------------------------------------


def scaled(x):
    return x * random.random() + random.uniform(-1, 2)


def returned(x):
    r = random.randint(1, 10)
    return x + r, r, random.random()


def computed(x):
    r = random.random()
    return x * (r * 2 - 1), r * 2 - 1, -random.randrange(5) + 3


def in_a_loop(x):
    return [x + random.random() for _ in range(3)], random.gauss(0, 1), random.gauss(0, 1)


def own_generator(x):
    return x * OWN.random(), OWN.randrange(5), OWN.getrandbits(7)


def given_generator(x, generator):
    return x * generator.random() - generator.triangular(0, 1, 0.25)


def seeded(x):
    random.seed(3)
    return x * random.random()


def put_back(x):
    state = random.getstate()
    random.seed("own")
    a = random.random()
    random.setstate(state)
    return x * a, random.random()


def state_returned(x):
    random.seed(2, version=2)
    return x + 1, random.getstate()


def lists_of_numbers(x):
    items = [1, 2, 3, 4]
    random.shuffle(items)
    some = random.sample(range(10), 3)
    return x + items[0] * some[1], items, some, random.choices([0.5, 1.5], k=2)


def chosen_number(x):
    return x * random.choice([0.5, 1.0, 2.0]) + random.choice(range(3, 9, 2))


def cropped(x):
    start = random.randrange(x.shape[1] - 2)
    return x[:, start : start + 2]


def row(x):
    return x[random.randrange(3)] + x.select(1, random.randint(0, 3))[0]


def drawn_size(x):
    return torch.full((random.randint(2, 4), 2), random.random())


def draw_of_a_draw(x):
    low = random.randint(0, 3)
    high = random.randint(low, 5)
    return x + low + high * random.uniform(low, high)


def root(x):
    return x * math.sqrt(random.random())


def kept_elsewhere(x, log):
    log.append(random.random())
    log[0]["last"] = random.randint(0, 9)
    return x + log[-1]


def kinds(x):
    return x + sum([
        random.random(), random.uniform(1, 2), random.triangular(0.0, 1.0, 0.5), random.gauss(0, 1),
        random.normalvariate(0, 1), random.betavariate(1, 2), random.gammavariate(2.0, 1.0),
        random.expovariate(1.5), random.vonmisesvariate(0.0, 1.0), random.randint(-2, 3),
        random.randrange(2, 9, 3), random.getrandbits(5),
    ])  # fmt: skip


def by_keywords(x):
    return x + random.choices(weights=[0.5, 0.5, 1.0], population=[1, 2, 3], k=1)[0]


def step_seeded(x, step):
    random.seed(step)
    return x * random.random() + step


def bound_method(x):
    draw = random.random
    return x * draw() + (lambda: draw())()


@pytest.mark.parametrize(
    "function",
    [scaled, returned, computed, in_a_loop, own_generator, seeded, put_back, state_returned,
     lists_of_numbers, chosen_number, cropped, row, drawn_size, draw_of_a_draw, root, kinds,
     bound_method, by_keywords],
)  # fmt: skip
def test_one_graph(function: Callable[..., Any]) -> None:
    captured = check(function, graphs=1, breaks=0)
    assert captured.capture_context.recompiles() == ()


def test_a_generator_that_is_given() -> None:
    check(given_generator, graphs=1, breaks=0, make=lambda: (torch.ones(3), random.Random(9)))


def test_a_module_with_a_generator() -> None:
    module = Augment()
    make = lambda: (module, torch.ones(3))  # noqa: E731
    module.generator.seed(4)
    wanted = observe(lambda m, x: m(x), make, 3)
    module.generator.seed(4)
    captured = optimize(module, backend := CountingBackend())
    got = observe(lambda m, x: captured(x), make, 3)
    assert same(wanted, got) and len(backend.graphs) == 1
    assert len({last for _, [last], _ in got}) == 3


def test_what_is_kept_in_objects() -> None:
    check(kept_elsewhere, graphs=2, breaks=0, make=lambda: (torch.ones(2), [{}]), times=2)


def test_numbers_are_fresh_in_each_call() -> None:
    captured = optimize(lambda x: x * random.random(), CountingBackend(), fullgraph=True)
    assert len({captured(torch.ones(1)).item() for _ in range(20)}) == 20


def test_a_whole_graph() -> None:
    backend = CountingBackend()
    for function in (scaled, lists_of_numbers, put_back, row, drawn_size):
        captured = optimize(function, backend, fullgraph=True)
        make = lambda: (torch.arange(12.0).reshape(3, 4),)  # noqa: E731
        assert same(observe(function, make, 3), observe(captured, make, 3))
    assert len(backend.graphs) == 5


def test_gradients() -> None:
    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x @ w) * random.uniform(0.5, 1)).sum() * random.randint(2, 5)

    def gradients(call: Callable[..., Any]) -> list[Any]:
        random.seed(1)
        torch.manual_seed(0)
        parts = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
        return [torch.autograd.grad(call(*parts), parts) for _ in range(3)]

    captured = optimize(loss, backend := CountingBackend())
    assert same(gradients(loss), gradients(captured))
    assert len(backend.graphs) == 1


def test_limits_that_change_with_sizes() -> None:
    def function(x: torch.Tensor) -> Any:
        return x * random.randint(0, x.shape[0] - 1), random.uniform(0, x.shape[0])

    sizes = (3, 5, 9, 17)
    random.seed(0)
    wanted = [function(torch.ones(size)) for size in sizes]
    state = random.getstate()
    captured = optimize(function, backend := CountingBackend(), dynamic=True)
    random.seed(0)
    assert same(wanted, [captured(torch.ones(size)) for size in sizes])
    assert random.getstate() == state and len(backend.graphs) == 1


def test_a_seed_that_changes() -> None:
    captured = optimize(step_seeded, backend := CountingBackend())
    for step in (3, 8, 5, 2, 9, 11):
        wanted, state = step_seeded(torch.ones(2), step), random.getstate()
        random.seed(0)
        assert same(wanted, captured(torch.ones(2), step)) and random.getstate() == state
    assert len(backend.graphs) == 2  # one for the first step, one for all others
    assert not captured.capture_context.log.breaks


def test_a_replaced_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = optimize(lambda x: x * random.random(), CountingBackend())
    captured(torch.ones(2))
    monkeypatch.setattr(random, "random", lambda: 3.0)
    assert captured(torch.ones(2)).tolist() == [3.0, 3.0]


# --- breaks: where Python needs the number -------------------------------------------------------


def branch(x):
    y = x + 1
    if random.random() < 0.5:
        y = y * 2
    return y + random.gauss(0, 1)


def layer(x):
    return random.choice([torch.sin, torch.cos, torch.tanh])(x + 1)


def order_of_layers(x):
    layers = [torch.sin, torch.cos, torch.exp]
    random.shuffle(layers)
    return layers[0](x), random.random()


def list_item(x):
    return [x + 1, x + 2, x + 3][random.randrange(3)]


def rounded(x):
    return x + round(random.random(), 2)


def truncated(x):
    return x + int(random.random() * 10)


def as_key(x):
    return {0: x + 1, 1: x - 1}[random.randint(0, 1)]


def as_text(x):
    return x + 1, f"{random.random():.3f}"


def iterations(x):
    for _ in range(random.randint(1, 3)):
        x = x + 1
    return x


def printed(x):
    r = random.random()
    y = x * r
    print(end="")
    return y + r * 2


def too_big(x):
    return x + 1, random.getrandbits(64), random.randrange(10**30), random.getrandbits(40) * 2**40


def very_many(x):
    return [x + random.random() for _ in range(70)]


def mixed(x):
    return x + random.choice([1, 2.5])


def looked_into(x):
    return x + random.random(), random.getstate()[1][0]


def made_here(x):
    generator = random.Random(5)
    return x * generator.random(), generator.randrange(3)


@pytest.mark.parametrize(
    ("function", "breaks"),
    [(branch, 1), (layer, 1), (order_of_layers, 1), (list_item, 1), (rounded, 1), (truncated, 1),
     (as_key, 1), (as_text, 1), (iterations, 1), (printed, 1), (too_big, 3), (mixed, 1),
     (looked_into, 1), (very_many, 1)],
)  # fmt: skip
def test_breaks(function: Callable[..., Any], breaks: int) -> None:
    wanted = observe(function, lambda: (torch.arange(12.0).reshape(3, 4),), 6)
    captured = optimize(function, CountingBackend())
    got = observe(captured, lambda: (torch.arange(12.0).reshape(3, 4),), 6)
    log = captured.capture_context.log
    assert same(wanted, got), log.as_text()
    places = {(b.lineno, b.line) for b in log.breaks}
    assert log.breaks and len(places) == 1, log.as_text()
    assert len(log.breaks) >= breaks


def test_what_was_captured_before_the_branch_stays() -> None:
    captured = check(branch, graphs=3, breaks=1, times=6)
    assert "random number" in captured.capture_context.log.breaks[0].reason


# --- wrong use, and what is left to Python -------------------------------------------------------


def empty_range(x):
    try:
        return x + random.randint(5, 1)
    except ValueError as error:
        return x + random.random(), str(error)


def not_a_number(x):
    random.random()
    return x * random.uniform("a", 1)


def from_nothing(x):
    return x + random.choice([]) + random.random()


def too_many(x):
    return x, random.sample([1, 2], 3)


def wrong_state(x):
    try:
        random.setstate((1, 2, 3))
    except ValueError:
        return x * random.random()


def too_many_arguments(x):
    return x + random.random(3)


class Noisy(torch.autograd.Function):
    """Draws where capture does not look."""

    @staticmethod
    def forward(ctx, x):
        ctx.by = random.random()
        return x * ctx.by

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.by


def own_function(x):
    return Noisy.apply(x + 1)


def half_open(x):
    return x + 1, random.randrange(5, None)


def known_state(x, state):
    random.setstate(state)
    return x + random.random()


@pytest.mark.parametrize(
    "function",
    [
        empty_range,
        not_a_number,
        from_nothing,
        too_many,
        wrong_state,
        too_many_arguments,
        half_open,
        own_function,
        made_here,
    ],
)
def test_wrong_use(function: Callable[..., Any]) -> None:
    make = lambda: (torch.ones(3),)  # noqa: E731
    captured = optimize(function, CountingBackend())
    assert same(observe(function, make, 3), observe(captured, make, 3))
    assert captured.capture_context.log.breaks


def test_a_state_from_outside() -> None:
    state = random.Random(8).getstate()
    check(known_state, graphs=1, breaks=1, make=lambda: (torch.ones(2), state))


class Loaded(random.Random):
    """Its numbers are its own."""

    def random(self) -> float:
        return super().random() / 2


def test_a_subclass_keeps_its_methods() -> None:
    def function(x: torch.Tensor, generator: Loaded) -> Any:
        return x * generator.random() + generator.uniform(1, 2)

    make = lambda: (torch.ones(3), Loaded(2))  # noqa: E731
    captured = optimize(function, CountingBackend())
    assert same(observe(function, make, 4), observe(captured, make, 4))


@pytest.mark.parametrize("place", ["vmap", "checkpoint", "lock"])
def test_regions_that_draw_in_their_own_time(place: str) -> None:
    lock = threading.Lock()

    def one(x: torch.Tensor) -> torch.Tensor:
        return (x * random.random()).sin()

    def function(x: torch.Tensor) -> torch.Tensor:
        if place == "vmap":
            return torch.vmap(one)(x)
        if place == "lock":
            with lock:
                return one(x)
        return torch.utils.checkpoint.checkpoint(one, x, use_reentrant=False)

    make = lambda: (torch.arange(12.0).reshape(3, 4),)  # noqa: E731
    captured = optimize(function, CountingBackend())
    assert same(observe(function, make, 3), observe(captured, make, 3))
    assert captured.capture_context.log.breaks


# --- capture leaves the generators alone ---------------------------------------------------------


def test_nothing_is_drawn_at_capture() -> None:
    seen = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.append((random.getstate(), OWN.getstate()))
        return gm.forward

    random.seed(5)
    before = random.getstate(), OWN.getstate()

    def function(x: torch.Tensor) -> torch.Tensor:
        random.seed(1)
        items = [1, 2, 3]
        random.shuffle(items)
        return x * random.random() + OWN.gauss(0, 1) + items[0]

    optimize(function, backend)(torch.ones(2))
    assert seen == [before]


def test_a_capture_that_is_abandoned_draws_nothing() -> None:
    random.seed(5)
    before = random.getstate()
    with pytest.raises(GraphBreakError, match="random number"):
        optimize(branch, CountingBackend(), fullgraph=True)(torch.ones(2))
    with pytest.raises(CaptureError, match="random numbers"):
        export(scaled, (torch.ones(2),))
    assert random.getstate() == before


def test_a_backend_without_symbolic_numbers() -> None:
    taken = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        if not all(isinstance(example, torch.Tensor) for example in example_inputs):
            raise NotImplementedError("tensors only")
        taken.append(gm)
        return gm.forward

    make = lambda: (torch.ones(3),)  # noqa: E731
    captured = optimize(scaled, backend)
    assert same(observe(scaled, make, 3), observe(captured, make, 3))
    assert taken and captured.capture_context.log.breaks


def test_a_drawn_divisor_that_may_be_zero_breaks_the_graph() -> None:
    """Nothing in the graph would tell that it is zero, least of all if the quotient is not used."""

    def unused(x):
        n = random.randrange(9)
        n // (n % 2)
        return x + 1

    compiled = optimize(unused, CountingBackend())
    for seed in range(6):
        found = []
        for function in (unused, compiled):
            random.seed(seed)
            try:
                found.append(function(torch.ones(2)).tolist())
            except ZeroDivisionError as error:
                found.append(str(error))
        assert found[0] == found[1], seed


def test_a_drawn_divisor_that_is_not_zero_stays_in_the_graph() -> None:
    def inverse(x):
        return x * (100 // random.randint(1, 9))

    backend = CountingBackend()
    compiled = optimize(inverse, backend, fullgraph=True)
    for seed in range(4):
        random.seed(seed)
        expected = inverse(torch.ones(2))
        random.seed(seed)
        assert torch.equal(compiled(torch.ones(2)), expected)
    assert len(backend.graphs) == 1


def test_a_divisor_of_drawn_and_other_numbers_breaks_the_graph() -> None:
    """Nor is anything known of an expression that has a drawn number beside a size."""

    def program(x, n):
        n = random.choice([1, 2, n])
        c = (n + len(x)) % 30
        try:
            len(x) // (c % 2)
        except LookupError:
            return x
        return x + 1

    compiled = optimize(program, CountingBackend())
    for seed in range(8):
        found = []
        for function in (program, compiled):
            random.seed(seed)
            try:
                found.append(function(torch.ones(3), seed).tolist())
            except ZeroDivisionError as error:
                found.append(str(error))
        assert found[0] == found[1], seed


def test_the_number_that_gauss_keeps() -> None:
    """`gauss` makes two numbers and keeps one: known when the program has drawn."""

    def kept(x):
        y = OWN.gauss(0, 1)
        return x + y, OWN.gauss_next is None

    def handed_on(x):
        before = OWN.gauss_next
        return x + OWN.gauss(0, 1), before, OWN.gauss_next

    for function in (kept, handed_on):
        make = lambda: (torch.ones(2),)  # noqa: E731
        expected = observe(function, make, 3)
        assert same(observe(optimize(function, CountingBackend()), make, 3), expected)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * random.random()


def test_a_backward_that_draws_breaks_the_graph() -> None:
    backend = CountingBackend()
    compiled = optimize(lambda x: DrawsInBackward.apply(x + 1).sum(), backend)
    x = torch.ones(2, requires_grad=True)
    for seed in range(3):
        random.seed(seed)
        (found,) = torch.autograd.grad(compiled(x), x)
        random.seed(seed)
        assert torch.equal(found, torch.full((2,), random.random()))
    assert len(compiled.capture_context.log.breaks) == 1
    called = [n.name for gm in backend.graphs for n in gm.graph.nodes if n.op.startswith("call")]
    assert called == ["add", "mul", "sum_1"]
