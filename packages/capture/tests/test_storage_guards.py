"""A graph that writes to an input is not used again where inputs have come to share memory."""

from __future__ import annotations

import dovetail_capture as dc
import pytest
import torch
import torch.nn.functional as F

MEAN, VAR = torch.zeros(3), torch.ones(3)

WRITES = {
    "add_": lambda a, b: a.add_(1) + b,
    "a view": lambda a, b: (a.view(-1).mul_(2), b + 1)[1],
    "an item": lambda a, b: (a.__setitem__(0, 5.0), b + 1)[1],
    "inplace": lambda a, b: F.relu(a, inplace=True) + b,
    "out": lambda a, b: torch.add(b, 1, out=a) + 1,
    "statistics": lambda a, b: F.batch_norm(a, MEAN, VAR, training=True) + b,
    "foreach": lambda a, b: (torch._foreach_add_([a], [b]), b + 1)[1],
    "copy": lambda a, b: (a.copy_(b), b + 1)[1],
}
READS = {
    "add": lambda a, b: a + b,
    "statistics": lambda a, b: F.batch_norm(a, MEAN, VAR) + b,
    "a method": lambda a, b: a.clone().__add__(b),
}


def apart():
    return torch.ones(2, 3), torch.ones(2, 3)


def shared():
    a = torch.ones(2, 3)
    return a, a[:]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITES)
def test_inputs_that_come_to_share_memory_are_another_case(name, mode):
    compiled = dc.optimize(WRITES[name], dc.run_graph, dynamic=False)
    with mode():
        for inputs in (apart, apart, shared):
            got, expected = inputs(), inputs()
            assert torch.equal(compiled(*got), WRITES[name](*expected))
            assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    assert compiled.capture_context.log.graph_count == 2
    assert "share no storage" in dc.explain_guards(compiled)
    assert "alias" in dc.recompiles(compiled)[0]


@pytest.mark.parametrize("name", READS)
def test_a_graph_that_only_reads_does_not_care(name):
    compiled = dc.optimize(READS[name], dc.run_graph, dynamic=False)
    for inputs in (apart, shared):
        assert torch.equal(compiled(*inputs()), READS[name](*inputs()))
    assert compiled.capture_context.log.graph_count == 1


QUESTIONS = {
    "is_leaf": lambda t: t.is_leaf,
    "retains_grad": lambda t: t.retains_grad,
    "_is_view": lambda t: t._is_view(),
    "nbytes": lambda t: t.untyped_storage().nbytes(),
    "is_shared": lambda t: t.is_shared(),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_inputs_are_that_look_alike(name):
    """Leaves and results, tensors and views, whole storages and parts: each is told apart."""
    leaf = torch.ones(3, requires_grad=True)
    kept = leaf * 2
    kept.retain_grad()
    ones = torch.ones(3)
    given = [ones, ones.view(-1), torch.ones(6)[:3], torch.ones(3).share_memory_()]
    given += [leaf, leaf * 2, kept, torch.nn.Parameter(ones)]
    ask = QUESTIONS[name]
    compiled = dc.optimize(lambda t: (ask(t), t * 2, ask(t * 2)), dc.run_graph)
    for _ in range(2):
        for t in given:
            assert compiled(t)[0] == ask(t) and compiled(t)[2] == ask(t * 2)


def address(x):
    y = x + 1
    return y.data_ptr() == y.view(-1).data_ptr() != 0, x.data_ptr() != y.data_ptr()


def memory(x):
    y = x + 1
    return y.untyped_storage().tolist() == list(bytes(y.numpy())), y.storage().tolist()


def set_to_it(x):
    made = torch.empty(0)
    made.set_((x + 1).untyped_storage(), 1, (2,), (1,))
    return made * 2


def a_function_of_each(x):
    return (x + 1).apply_(lambda v: v * 3), x.clone().map_(x, lambda a, b: a + b)


def wrapped(x):
    return (x + 1)._python_dispatch


@pytest.mark.parametrize("ask", [address, memory, set_to_it, a_function_of_each, wrapped])
def test_the_memory_of_what_the_frame_makes_is_no_stand_ins(ask):
    """It was that of the tensor without data that stands for it at capture: an address of 0, a
    storage that cannot be read; or it crashed."""
    x = torch.arange(3.0)
    expected, found = ask(x), dc.optimize(ask, dc.run_graph)(x)
    assert repr(expected) == repr(found)


def test_tensors_of_a_device_that_has_no_storages():
    """A lazy device's, while a graph is captured: to ask for their storage crashed."""
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()

    def fill(device):
        made = torch.ones(3, 3, device=device)
        made[torch.tensor([[0, 0], [2, 2]], device=device), torch.tensor([0, 1], device=device)] = 0
        return made * 2

    assert torch.equal(dc.optimize(fill, dc.run_graph)("lazy").cpu(), fill("cpu"))
