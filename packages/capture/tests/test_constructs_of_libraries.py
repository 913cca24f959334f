"""Constructs as libraries beside PyTorch use them: metaclasses, kinds of `partial`, keys by pickle.

PYTEST_DONT_REWRITE: pytest would put code of its own into the programs' assertions.
"""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import abc
import collections
import enum
import functools
import inspect
import io
import pickle
import re
import threading
import types

import pytest
import torch
from construct_cases import Case, Table, run_case
from dovetail_capture import optimize, recompiles
from dovetail_capture.api import run_graph

construct = Table()


# --- methods of a metaclass through `super`, over a break ------------------------------------------


class Coercing(abc.ABCMeta):
    """As Pyro makes distributions: the class is called through its metaclass."""

    def __call__(cls, *args, **kwargs):
        return super().__call__(*args, **kwargs)

    def __repr__(cls):
        return f"<{super().__repr__()[-10:]}>"


class Normal(metaclass=Coercing):
    def __init__(self, x, scale=1):
        print(end="")
        self.x = x * scale

    def __repr__(self):
        return "instance"


class Widened(Normal, metaclass=Coercing):
    @classmethod
    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)

    def __init__(self, x, scale=1):
        super().__init__(x, scale)
        self.wide = True


@construct(graphs=None, breaks=None)
def made_through_the_metaclass(x):
    return Normal(x, scale=2).x + 1, repr(Normal)


@construct(graphs=None, breaks=None)
def made_through_two(x):
    both = [Widened(x, scale=3), Normal(x)]
    return [one.x for one in both], both[0].wide


@construct(graphs=None, breaks=None)
def bound_methods_of_a_metaclass(x):
    call, name = super(Coercing, Normal).__call__, super(Coercing, Normal).__repr__
    print(end="")
    return call(x).x, name() == type.__repr__(Normal)


# --- partials --------------------------------------------------------------------------------------


class BoundPartial(functools.partial):
    """Pyro's: `func` is the partial inside."""

    __slots__ = "func"

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.func, instance)


class Plain(functools.partial):
    pass


class Doubling(functools.partial):
    def __call__(self, *args):
        return 2 * super().__call__(*args)


def in_context(context, function, *args):
    with context:
        return function(*args)


def digits(a, b, c):
    return a * 100 + b * 10 + c


def increment(x):
    return x + 1


@construct(graphs=None, breaks=None)
def partial_that_hides_its_function(x):
    wrapped = BoundPartial(functools.partial(in_context, torch.no_grad(), increment))
    twice = BoundPartial(functools.partial(in_context, torch.no_grad(), wrapped))
    return twice(x), wrapped(x), wrapped.func.args[1] is increment


def _hidden():
    inner = functools.partial(in_context, torch.no_grad(), increment)
    return torch.arange(3.0), BoundPartial(inner), Plain(digits, 1), Doubling(digits, 1)


@construct(graphs=None, breaks=None, make=_hidden)
def partials_of_subclasses(x, hidden, plain, doubling):
    return hidden(x), plain(2, 3) + x, doubling(2, 3) + x


@construct(make=_hidden)
def partials_of_partials(x, hidden, plain, doubling):
    p, q = functools.partial(plain, 2), functools.partial(doubling, 2)
    held = p.func is digits, q.func is doubling
    return x + p(3), x + q(3), p.args, q.args, held


# --- mapping proxies -------------------------------------------------------------------------------


class Processor:
    def __call__(self, attention, x, scale=1, *, mask=None):
        return x * scale


class Attention(torch.nn.Module):
    """As diffusers calls processors: with the arguments that they know."""

    def __init__(self):
        super().__init__()
        self.processor = Processor()

    def forward(self, x, **given):
        known = set(inspect.signature(self.processor.__call__).parameters.keys())
        given = {name: value for name, value in given.items() if name in known}
        return self.processor(self, x, **given)


ATTENTION = Attention()


@construct()
def arguments_that_a_signature_has(x):
    return ATTENTION(x, scale=3, unknown=4)


@construct()
def parameters_of_a_signature(x):
    parameters = inspect.signature(Processor.__call__).parameters
    required = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]
    found = "mask" in parameters, len(parameters), parameters.get("none"), list(parameters)
    return x + parameters["scale"].default, required, found


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Rules:
    strict = True
    level = 3


@construct()
def dictionaries_of_classes(x):
    members = [member.value for member in Colour.__members__.values()]
    own = "strict" in Rules.__dict__, vars(Rules).get("none"), Rules.__dict__["level"]
    return x + 1, members, own, [name for name in Rules.__dict__ if not name.startswith("_")]


@construct(graphs=None, breaks=None)
def dictionary_of_a_class_that_is_written(x):
    before = Rules.__dict__["level"]
    Rules.level = 5
    after = Rules.__dict__["level"], vars(Rules)["level"], len(Rules.__dict__)
    Rules.level = 3
    return x + before, after


@construct()
def proxy_made_here(x):
    inside = {"a": x}
    proxy = types.MappingProxyType(inside)
    inside["b"] = x + 1
    numbers = types.MappingProxyType({"c": 3})
    return proxy["b"] * 2, len(proxy), isinstance(proxy, collections.abc.Mapping), numbers


SHOWN = {"a": 1, "b": 2}
SHOWING = types.MappingProxyType(SHOWN)

READERS = {
    "length": lambda x, p: x + len(p),
    "contains": lambda x, p: x + ("c" in p),
    "iteration": lambda x, p: x + sum(len(name) for name in p),
    "copied": lambda x, p: x + sum(dict(p).values()),
    "unpacked": lambda x, p: x + sum({**p}.values()),
    "as keywords": lambda x, p: (lambda **found: x + len(found))(**p),
    "equality": lambda x, p: x + (p == {"a": 1, "b": 2}),
    "union": lambda x, p: (x + len(p | {"q": 1}), {"q": 2, "a": 4} | p),
    "truth": lambda x, p: x + (2 if p else 1),
    "get": lambda x, p: x + p.get("a", 40),
    "values": lambda x, p: x + sum(p.values()),
    "items": lambda x, p: x + sum(value for _, value in p.items()),
    "item": lambda x, p: x + p["a"],
    "written behind": lambda x, p: (SHOWN.__setitem__("w", 5), x + len(p), SHOWN.pop("w")),
}


@pytest.mark.parametrize("given", [False, True], ids=["global", "argument"])
@pytest.mark.parametrize("name", READERS)
def test_a_proxy_shows_what_its_dictionary_has_now(name: str, given: bool) -> None:
    reader = READERS[name]
    function = reader if given else lambda x: reader(x, SHOWING)

    def run(function):
        told = []
        for new in ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, {"a": 9, "b": 2}, {}):
            SHOWN.clear()
            SHOWN.update(new)
            try:
                told.append(function(torch.zeros(2), *([SHOWING] if given else [])))
            except KeyError as error:
                told.append(str(error))
        return told

    assert str(run(optimize(function, backend=run_graph))) == str(run(function))


# --- tensors that are not strided ------------------------------------------------------------------


def _indices():
    return torch.ones(3), torch.tensor([0, 1, 2, 2]), 3


@construct(graphs=None, breaks=None, make=_indices)
def sparse_then_dense(x, index, size):
    table = torch.sparse_coo_tensor(torch.stack((index, index)), torch.ones(4), (size, size))
    return table.to_dense() + x, table.coalesce().values() * 2


@construct(graphs=None, breaks=None, make=_indices)
def sparse_factories(x, index, size):
    empty = torch.zeros(size, size, layout=torch.sparse_coo)
    like = torch.zeros_like(x, layout=torch.sparse_coo)
    rows = torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 3]), index[:3], x, (size, size))
    return [(t.layout, t.is_sparse, t.to_dense() + 1) for t in (empty, like, rows)]


@construct(graphs=None, breaks=None, make=_indices)
def quantized(x, index, size):
    small = torch.quantize_per_tensor(x * 0.3, 0.1, 0, torch.qint8)
    return small.is_quantized, small.int_repr() + 1, small.dequantize() * 2


# --- iterators over what is long -------------------------------------------------------------------

LONG = 10**6


@construct(graphs=None, breaks=None)
def long_range_over_breaks(x):
    """Pyro's queues try a million times."""
    for i in range(LONG):
        print(end="")
        x = x + i
        if i == 2:
            break
    for a, b in zip(range(LONG), "ab"):
        print(end="")
        x = x + a
    return x


@construct(graphs=None, breaks=None)
def what_is_left_of_constant_iterators(x):
    numbers, letters, spent = iter(range(3, 30, 5)), iter("abcd"), iter(b"ab")
    backwards = reversed(range(LONG))
    first = next(numbers), next(letters), list(spent), next(backwards)
    print(end="")
    return x + next(backwards), first, list(numbers), list(letters), list(spent), type(backwards)


# --- negative numbers to the power of tensors ------------------------------------------------------


@construct()
def signs_by_parity(x):
    """As e3nn's irreps take the parity: the graph's code has `(-1) ** k` in it."""
    in_place = -2
    in_place **= x
    return x * (-1) ** x, pow(-1, x), (-2.5) ** x, -(2**x), in_place, (-2) ** x.shape[0] + x


# --- dictionaries that transforms give -------------------------------------------------------------

LINEAR = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())


def _parameters():
    return torch.ones(2, 3), {name: p.detach().clone() for name, p in LINEAR.named_parameters()}


def _loss(parameters, x):
    return torch.func.functional_call(LINEAR, parameters, (x,)).pow(2).mean()


@construct(make=_parameters)
def gradients_by_name(x, parameters):
    grads = torch.func.grad(_loss)(parameters, x)
    return {name: p - 0.1 * grads[name] for name, p in parameters.items()}, list(grads), grads


@construct(graphs=None, breaks=None, make=_parameters)
def gradients_by_name_over_a_break(x, parameters):
    grads, loss = torch.func.grad_and_value(_loss)(parameters, x)
    print(end="")
    return grads, loss + 1, [type(grad) for grad in grads.values()]


# --- keys by pickle --------------------------------------------------------------------------------


class Memoised:
    """As linear operators keep what their methods gave."""

    def __init__(self, x):
        self.x = x
        self.kept = {}

    def scaled(self, **given):
        key = pickle.dumps(given)
        if key not in self.kept:
            self.kept[key] = self.x * given.get("scale", 1)
        return self.kept[key]


@construct()
def keys_by_pickle(x):
    held = Memoised(x)
    first, second = held.scaled(scale=2, kind="a", none=None), held.scaled()
    again = held.scaled(scale=2, kind="a", none=None)
    return first + second, again is first, list(held.kept)


@construct(graphs=None, breaks=None)
def pickled_objects_that_are_one(x):
    text = "".join(["o", "ne"])
    return x + 1, pickle.dumps({"a": text, "b": text}), pickle.dumps([1]), pickle.dumps({}, 2)


# --- attributes of each thread ---------------------------------------------------------------------


class Manager:
    """As TensorLy keeps its backend."""

    local = threading.local()
    default = 3

    @classmethod
    def use(cls, value):
        cls.local.backend = value

    @classmethod
    def current(cls):
        return cls.local.__dict__.get("backend", cls.default)


@construct(graphs=None, breaks=None)
def attributes_of_this_thread(x):
    Manager.use(7)
    y = x + Manager.current() + Manager.local.backend
    del Manager.local.backend
    return y + Manager.current(), hasattr(Manager.local, "backend")


def test_an_attribute_that_a_thread_gets_later() -> None:
    def function(x):
        return x + getattr(Manager.local, "later", 1)

    compiled = optimize(function, backend=run_graph)
    seen = []
    assert compiled(torch.zeros(1)).item() == 1
    Manager.local.later = 9
    try:
        assert compiled(torch.zeros(1)).item() == 9
        other = threading.Thread(target=lambda: seen.append(compiled(torch.zeros(1)).item()))
        other.start()
        other.join()
    finally:
        del Manager.local.later
    assert seen == [1]
    assert compiled(torch.zeros(1)).item() == 1


# --- functions given to an autograd function -------------------------------------------------------


class Applied(torch.autograd.Function):
    """As GPyTorch's kernels: a distance is among the arguments."""

    @staticmethod
    def forward(ctx, x, scale, distance, other):
        ctx.save_for_backward(distance(x))
        return distance(x) * scale + other

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y, None, None, grad


def distance(y):
    return y * y + 1


def _with_gradient():
    return (torch.arange(3.0, requires_grad=True), torch.ones(3, requires_grad=True))


@construct(make=_with_gradient)
def function_for_an_autograd_function(x, y):
    made = Applied.apply(x, 2.5, distance, y), Applied.apply(x, 2, torch.neg, y)
    return [m + 1 for m in made]


def test_a_function_for_an_autograd_function_has_gradients() -> None:
    def loss(x, y):
        return (Applied.apply(x, 2.5, distance, y) * Applied.apply(y, 2, torch.neg, x)).sum()

    grads = []
    for function in (loss, optimize(loss, backend=run_graph)):
        x, y = _with_gradient()
        grads.append(torch.autograd.grad(function(x, y), (x, y)))
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0)


# --- partials of subclasses, proxies that are compared ---------------------------------------------


class Twice(functools.partial):
    kind = "twice"

    def twice(self, *args):
        return self(*args) * 2


class Keeping(functools.partial):
    def __new__(cls, function, *args):
        made = super().__new__(cls, function, *args)
        made.extra = 5
        return made

    def __call__(self, *args):
        return super().__call__(*args) * self.extra


@construct()
def partials_of_subclasses(x):
    first, second, third = Twice(torch.mul, 3), Keeping(torch.add, x), functools.partial(torch.sub)
    third.note = "kept"
    inner = Twice(functools.partial(torch.mul, x), 2)
    return (first(x), first.twice(x), first.kind, second(x), second.extra, second.args, inner(),
            inner.func is torch.mul, third.note, vars(second), functools.partial(second, 1)())  # fmt: skip


@construct()
def partials_that_leave(x):
    made = Keeping(torch.add, x)
    made.more = [x + 1]
    return made, functools.partial(torch.mul, other=2)(x), Twice(torch.neg, x)


PROXIES = types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 1})


@construct()
def proxies_that_are_compared(x):
    one, other = PROXIES
    made = types.MappingProxyType({"k": x})
    return (one == other, one == {"a": 1}, {"a": 2} == one, one != other, one != {"a": 2}, one == 1,
            made == made, made == {"k": x}, vars(Twice) == vars(Twice), vars(Twice) == one, x + 1)  # fmt: skip


FIND = re.compile("a+").match


@construct()
def method_of_a_pattern_that_a_module_keeps(x):
    return x * (2 if FIND("aab") and not FIND("b") else 3)


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


@pytest.mark.parametrize("make", [
    lambda: re.compile("a").match, lambda: io.StringIO().write, lambda: threading.Lock().locked
])  # fmt: skip
def test_bound_methods_made_anew_are_one_version(make) -> None:
    def program(x, method):
        y = x + 1
        print(method.__name__, end="")
        return y * 2

    optimized = optimize(program, run_graph)
    for _ in range(4):
        assert optimized(torch.ones(2), make()).sum() == 8
    assert not [why for why in recompiles(optimized) if "another object" in why]
