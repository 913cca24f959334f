"""`weakref.proxy`: what is done to a proxy is done to its target, which nothing keeps alive."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture import optimize


class Trainer:
    kind = 2

    def __init__(self):
        self.weight, self.step, self.losses = torch.ones(3), 1, [1, 2]

    def scale(self, x):
        self.step += 1
        return x * self.step

    @property
    def next_step(self):
        return self.step + 1

    def __len__(self):
        return 3

    def __call__(self, x):
        return x + self.step

    def __getitem__(self, place):
        return self.losses[place]

    def __bool__(self):
        return False


class Model(torch.nn.Module):
    def __init__(self, trainer):
        super().__init__()
        self.trainer = weakref.proxy(trainer)

    def forward(self, x):
        return x * self.trainer.step + self.trainer.weight


def _attributes(x, proxy, owner):
    return proxy.scale(x) * proxy.kind + proxy.next_step + proxy.weight, hasattr(proxy, "none")


def _class(x, proxy, owner):
    names = type(proxy).__name__, proxy.__class__.__name__
    return x + 1, isinstance(proxy, Trainer), isinstance(proxy, (int, list)), names, proxy is owner


def _assignment(x, proxy, owner):
    owner.step += 5
    proxy.step, proxy.more = proxy.step + 1, 3
    del proxy.more
    proxy.losses.append(3)
    return x * owner.step, len(owner.losses), hasattr(owner, "more")


def _special_methods(x, proxy, owner):
    return proxy(x) * len(proxy) + proxy[1], bool(proxy), 1 if proxy else 2


def _made_here(x, proxy, owner):
    own = Trainer()
    made = weakref.proxy(own)
    own.step = 4
    return x * made.step + made.scale(x), isinstance(made, Trainer)


class Plain:
    part = torch.ones(3)


class Equal(type):
    def __eq__(cls, other):
        return True

    __hash__ = type.__hash__


class EqualToAll(metaclass=Equal):
    part = 5


def _of_other_classes(x, proxy, owner):
    plain, equal = Plain(), EqualToAll()
    first = weakref.proxy(plain)
    return x + first.part * equal.part, type(first).__name__, type(equal).__name__, callable(first)


def _of_a_model(x, proxy, owner):
    return Model(owner).forward(x) if owner is None else MODEL(x)


def _handed_on(x, proxy, owner):
    return x + 1, [proxy][0].step, repr(type(proxy))


OWNER = Trainer()
PROXY = weakref.proxy(OWNER)
MODEL = Model(OWNER)


@pytest.mark.parametrize(
    "program",
    [
        *(
            _attributes,
            _class,
            _assignment,
            _special_methods,
            _made_here,
            _of_other_classes,
            _of_a_model,
            _handed_on,
        ),
    ],
)
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_proxy_is_as_its_target(program: Callable[..., Any], fullgraph: bool) -> None:
    captured = optimize(program, lambda gm, _: gm.forward, fullgraph=fullgraph)
    x = torch.arange(3.0)
    for step in (1, 1, 2, 5):
        seen = []
        for call in (program, captured):
            OWNER.__init__()  # type: ignore[misc]
            OWNER.step = step
            seen.append(repr((call(x, PROXY, OWNER), vars(OWNER))))
        assert seen[0] == seen[1]


def test_a_proxy_of_a_tensor_or_a_module_is_neither() -> None:
    layer, weight = torch.nn.Linear(3, 3), torch.ones(3)
    proxies = weakref.proxy(layer), weakref.proxy(weight)

    def program(x: torch.Tensor) -> Any:
        layer, weight = proxies
        same = isinstance(layer, torch.nn.Module), isinstance(weight, torch.Tensor)
        return layer(x) * layer.in_features, x * weight.sum(), same, type(layer).__name__

    for fullgraph in (True, False):
        captured = optimize(program, lambda gm, _: gm.forward, fullgraph=fullgraph)
        assert repr(captured(torch.ones(3))) == repr(program(torch.ones(3)))


def test_a_proxy_made_again_is_the_one_there_is() -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, weakref.proxy(OWNER) is PROXY

    assert optimize(program, lambda gm, _: gm.forward)(torch.ones(2))[1]


def _references_made_twice(x, reference, owner):
    own = Trainer()
    first, second, third = weakref.ref(own), weakref.ref(own), weakref.ref(owner)
    proxies = weakref.proxy(own), weakref.proxy(own)
    return x + 1, first is second, first is third, proxies[0] is proxies[1], third() is owner


def _references_there_were(x, reference, owner):
    first = weakref.ref(owner)
    return x + 1, first is reference, reference is first, reference() is owner


def _handed_out(x, reference, owner):
    own = Trainer()
    return x + 1, weakref.ref(owner), [weakref.ref(own), weakref.ref(own), own]


@pytest.mark.parametrize("program", [_references_made_twice, _references_there_were, _handed_out])
def test_there_is_one_reference_of_an_object(program: Callable[..., Any]) -> None:
    reference = weakref.ref(OWNER)
    whole = program is not _references_there_were
    captured = optimize(program, lambda gm, _: gm.forward, fullgraph=whole)
    x = torch.ones(2)
    expected, found = program(x, reference, OWNER), captured(x, reference, OWNER)
    if program is _handed_out:
        assert found[1] is reference and found[2][0] is found[2][1]
        assert found[2][0]() is found[2][2]
    else:
        assert repr(found) == repr(expected)


def test_compiled_code_keeps_no_target_alive() -> None:
    owner = Trainer()
    model = Model(owner)
    captured = optimize(model.forward, lambda gm, _: gm.forward)
    x = torch.ones(3)
    for owner.step in (1, 2, 3):
        assert torch.equal(captured(x), model(x))
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None
    for call in (model, optimize(model.forward, lambda gm, _: gm.forward), captured):
        with pytest.raises(ReferenceError, match="no longer exists"):
            call(x)
