"""Recurrent layers in training on a GPU: what can be checked without one. (`integration_tests`
compare them with eager there.)"""

from __future__ import annotations

import dovetail_prims.symbolic.recurrent as recurrent
import dovetail_prims.symbolic.recurrent_training as recurrent_training
import pytest
import torch
from dovetail_prims.fake_tensor import make
from dovetail_prims.symbolic.recurrent_training import CudnnNeeds, _flat, operators, trained
from torch.autograd import grad

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def fake(*shape, dtype=torch.float32, device=CPU, graded=False):
    """(Autograd takes none that requires grad on a GPU where there is no GPU.)"""
    strides = torch.empty(shape, device="meta").stride()
    value = make(shape, strides, dtype, device, 0)
    return value.requires_grad_() if graded else value


def test_parameters_that_lie_as_cudnn_wants_them_are_not_copied():
    buffer = torch.arange(20.0)
    params = [buffer[2:8].view(2, 3), buffer[8:12].view(2, 2), buffer[14:16]]
    flat = _flat(params, [0, 6, 12], 16)
    assert flat.data_ptr() == buffer[2:].data_ptr() and flat.shape == (16,)
    for places, total in (([0, 6, 10], 12), ([6, 0, 12], 16), ([0, 6, 12], 19)):
        made = _flat(params, places, total)
        assert made.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr()
        for value, place in zip(params, places, strict=True):
            assert torch.equal(made[place : place + value.numel()], value.reshape(-1))
    params[1] = params[1].t()
    assert _flat(params, [0, 6, 12], 16).data_ptr() != buffer[2:].data_ptr()


def layers_of(kind, **options):
    gates = {"lstm": 4, "gru": 3}[kind] * 5
    shapes = [(gates, 6), (gates, 5), (gates,), (gates,)] * 2
    device = options.get("device", CPU)
    state = [fake(2, 3, 5, device=device) for _ in range(2 if kind == "lstm" else 1)]
    return state, [fake(*shape, **options) for shape in shapes]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_shapes_of_results_and_gradients(kind):
    state, params = layers_of(kind, graded=True)
    x = fake(7, 3, 6, graded=True)
    needs = CudnnNeeds((0,) * len(params), 1000, 77)
    y, *last = trained(needs, kind, x, state, params, True, True)
    assert y.shape == (7, 3, 10) and [v.shape for v in last] == [v.shape for v in state]
    found = grad(y.sum() + last[0].sum(), [x, params[2], params[7]])
    assert [g.shape for g in found] == [v.shape for v in (x, params[2], params[7])]


def test_training_on_a_gpu_asks_cudnn(monkeypatch):
    asked = []

    def needs(function, kind, x, state, params, *flags):
        asked.append((function, {v.dtype for v in (x, *state, *params)}, flags))
        return CudnnNeeds((0,) * len(params), 1000, 77)

    monkeypatch.setattr(recurrent, "cudnn_needs", needs)
    monkeypatch.setattr(recurrent, "_has_gradient", lambda *_: True)
    state, params = layers_of("lstm", device=CUDA)
    x = fake(3, 7, 6, device=CUDA)
    form = recurrent.RECURRENT_FORMS[torch.lstm]
    y, *last = form(x, state, params, True, 1, 0.0, True, True, True)
    assert asked == [(torch.lstm, {torch.float32}, (True, True))]
    assert y.shape == (3, 7, 10) and y.stride() == (10, 30, 1)
    assert [v.shape for v in last] == [v.shape for v in state]


def test_where_eager_does_not_call_cudnn_nothing_stands_for_the_call(monkeypatch):
    monkeypatch.setattr(recurrent, "cudnn_needs", lambda *_: None)
    monkeypatch.setattr(recurrent, "_has_gradient", lambda *_: True)
    state, params = layers_of("gru", device=CUDA)
    form, x = recurrent.RECURRENT_FORMS[torch.gru], fake(3, 7, 6, device=CUDA)
    assert form(x, state[0], params, True, 1, 0.0, True, True, True) is NotImplemented
    y, _ = form(x, state[0], params, True, 1, 0.0, False, True, True)  # no training
    assert y.shape == (3, 7, 10)


def test_a_lack_of_memory_is_not_taken_for_a_lack_of_layers(monkeypatch):
    layers = recurrent_training._Layers("gru", True, False, 1, 5, 0)
    shapes = ((7, 3, 6), (1, 3, 5), (15, 6), (15, 5), (15,), (15,))
    asked = layers, torch.gru, shapes, 1, torch.float32, CPU

    def fails(*_):
        raise errors.pop()

    monkeypatch.setattr(torch, "_cudnn_rnn_flatten_weight", fails)
    errors = [RuntimeError("no such type"), torch.OutOfMemoryError("no memory")]
    with pytest.raises(torch.OutOfMemoryError):
        recurrent_training._asked(*asked, (True, True))
    assert recurrent_training._asked(*asked, (True, False)) is None


def test_a_gradients_gradient_is_refused():
    backward = operators()[1]
    x, state, weight = fake(7, 3, 6, graded=True), [fake(1, 3, 5)], fake(5, 6, graded=True)
    rest = [[0, 30], 55, 9, fake(7, 3, 5), fake(9, dtype=torch.uint8)]
    slopes = [fake(7, 3, 5, graded=True), fake(1, 3, 5)]
    params = [weight, fake(5, 5)]
    (found,) = backward(
        "rnn_tanh", x, state, params, False, False, *rest, slopes, [True, False, False, False]
    )
    assert found.shape == x.shape and found.requires_grad
    with pytest.raises(NotImplementedError, match="cuDNN"):
        grad(found.sum(), slopes[0])
