"""A graph that writes to an input is not used again where inputs have come to share memory."""

from __future__ import annotations

import dovetail_capture as dc
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.multiprocessing.reductions import StorageWeakRef

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


def pieces():
    """Tensors that look alike and lie in storages at several places, and in several storages."""
    whole = torch.arange(48.0)
    return [torch.arange(8.0), *whole.split(8), torch.arange(30.0)[2:10]]


def a_piece_further(t):
    return t.as_strided((2,), (1,), t.storage_offset() + 1) * 2


PLACES = {
    "offset": (lambda t: (t.storage_offset(), t * 2), 1),
    "offset used": (a_piece_further, 2),
    "offset asked": (lambda t: t + 1 if t.storage_offset() == 0 else t - 1, 2),
    "offset of a view": (lambda t: (t[1:].storage_offset(), t * 2), 7),
    "bytes": (lambda t: (t.untyped_storage().nbytes(), t * 2), 1),
    "bytes used": (lambda t: t * (t.untyped_storage().nbytes() // t.itemsize), 2),
    "bytes of a view": (lambda t: (t[1:].untyped_storage().nbytes(), t * 2), 1),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_in_storages_are_guarded_where_they_are_asked_for(name):
    """They become symbolic as the numbers that a program is given do; that of a view is a case of
    its own for each place."""
    ask, graphs = PLACES[name]
    compiled = dc.optimize(ask, dc.run_graph)
    for _ in range(2):
        for t in pieces():
            assert repr(compiled(t)) == repr(ask(t))
    log = compiled.capture_context.log
    assert (log.graph_count, log.breaks) == (graphs, [])


def test_what_storages_two_inputs_have():
    """A view of one of two that shared a storage: which of them it is of is not known later."""

    def ask(a, b):
        total = a + b
        return b[1:].untyped_storage().nbytes(), b[1:].storage_offset(), total

    compiled = dc.optimize(ask, dc.run_graph)
    whole = torch.arange(8.0)
    for a, b in [(whole[:3], whole[3:6]), (whole[:3], torch.ones(9)[2:5])]:
        assert repr(compiled(a, b)) == repr(ask(a, b))


def resized(t):
    view = t.view(-1)
    view.resize_(20)
    return t.untyped_storage().nbytes(), t * 2


def resized_between(t):
    storage = t.untyped_storage()
    t.resize_(20)
    return storage.nbytes(), t.shape


def set_anew(t):
    t.set_(torch.ones(9)[3:])
    return t.untyped_storage().nbytes(), t.storage_offset()


def resized_by_an_out(t):
    torch.arange(12.0, out=t)
    return t.untyped_storage().nbytes(), t.storage_offset()


def data_set(t):
    t.data = torch.ones(9)[1:]
    return t.untyped_storage().nbytes(), t.storage_offset()


def inside(t):
    body = torch.utils.checkpoint.checkpoint
    return body(
        lambda x: x * x.untyped_storage().nbytes() + x.storage_offset(), t, use_reentrant=False
    )


def by_row(t):
    return torch.vmap(lambda row: row * row.storage_offset())(t.view(2, -1))


CHANGED = [resized, resized_between, set_anew, resized_by_an_out, data_set, inside, by_row]


@pytest.mark.parametrize("ask", CHANGED)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_storages_that_the_frame_changes_or_that_others_stand_for(ask):
    compiled = dc.optimize(ask, dc.run_graph)
    for start in (0, 2, 4):
        expected, found = (
            torch.arange(14.0)[start : start + 8],
            torch.arange(14.0)[start : start + 8],
        )
        assert _outcome(ask, expected) == _outcome(compiled, found)
        # (What lies behind the data after a `resize_` is no one's.)
        assert expected.shape == found.shape and torch.equal(expected[:8], found[:8])


def _outcome(fn, t):
    try:
        return repr(fn(t))
    except RuntimeError as error:
        return str(error)


def test_a_storage_that_was_asked_for_is_let_go_of():
    compiled = dc.optimize(lambda t: t * t.untyped_storage().nbytes(), dc.run_graph)
    t = torch.ones(3)
    compiled(t)
    held = StorageWeakRef(t.untyped_storage())
    del t
    assert held.expired()


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
