"""Blocks of `torch.inference_mode` in a captured frame: what leaves them are inference tensors."""

from __future__ import annotations

import dovetail_capture as dc
import pytest
import torch

inference = torch.inference_mode
WEIGHT = torch.full((3,), 3.0, requires_grad=True)


def views_inside(x):
    with inference():
        y = x * 2
        z, v = y[0], x[0]
    return y, z, v


def views_outside(x):
    y = x * 2
    with inference():
        v = y[0]
        w = v + 1
    return y, v, w, w[None], w + 1, w.detach(), w.clone()


def written_outside(x):
    with inference():
        y = x * 2
    y.add_(1)
    return y


def item_written_outside(x):
    with inference():
        y = x * 2
    y[0] = 4.0
    return y


def out_of_a_call(x):
    with inference():
        y = x * 2
    return torch.mul(x, 3, out=y)


def saved_outside(x):
    with inference():
        y = x * 2
    return y * x


def used_but_not_saved(x):
    with inference():
        y = x * 2
    return y, y + WEIGHT


def nested_blocks(x):
    with inference():
        y = x * 2
        with inference(False):
            z, q = x * 3, y + 1
        with torch.no_grad():
            r = y + 1
        with torch.enable_grad():
            s = x + 1
    return y, z, q, r, s


def in_a_block_without_gradients(x):
    with torch.no_grad():
        with inference():
            y = x * 2
        z = y * WEIGHT
    return y, z


def an_input_written_inside(x):
    y = x * 1
    with inference():
        y.mul_(2)
        z = x + 1
    return y, z


def a_view_written_outside(x):
    y = x * 1
    with inference():
        v = y[:1]
    v.add_(1)
    return v


def normal_block(x):
    with inference(False):
        return x * 2, x[0]


def a_break_inside(x):
    with inference():
        y = x * 2
        print("in the block")
        z = y + 1
    return y, z, y[1:], z.view(1, 3)


def a_leaf_inside(x):
    with inference():
        return x.clone().requires_grad_()


def questions(x):
    with inference():
        y = x * 2
        held = {"a": y, "b": [y, y[0]]}
    known = y.is_inference(), y[0].is_inference(), (y + 1).is_inference()
    return held["a"], held["b"][0] is held["a"], *known


def conjugate(x):
    with inference():
        y = torch.view_as_complex(torch.stack([x, x], -1)).conj()
    return y.is_conj(), y.real, torch.resolve_conj(y).imag


@inference()
def decorated(x):
    return x * 2, x[0]


def calls_decorated(x):
    return decorated(x)


def written_input(x):
    with inference():
        x.mul_(2)
        return x, x + 1


def written_input_outside(x):
    x.add_(1)
    return x


def saved_input(x):
    return x * WEIGHT, x[1:]


FUNCTIONS = [
    views_inside, views_outside, written_outside, item_written_outside, out_of_a_call,
    saved_outside, used_but_not_saved, nested_blocks, in_a_block_without_gradients,
    an_input_written_inside, a_view_written_outside, normal_block, a_break_inside, a_leaf_inside,
    questions, conjugate, decorated, calls_decorated, written_input, written_input_outside,
    saved_input,
]  # fmt: skip


def plain():
    return torch.ones(3)


def graded():
    return torch.ones(3, requires_grad=True) * 1


def inferred():
    with inference():
        return torch.ones(3)


def seen(function, x):
    """All that tells an inference tensor from another, and the error."""
    try:
        given = function(x)
    except RuntimeError as error:
        return type(error), "nference" in str(error) or "no_grad" in str(error)
    given = given if isinstance(given, tuple) else (given,)
    return [
        (t.is_inference(), t.requires_grad, t._base is not None, t.tolist())
        if isinstance(t, torch.Tensor)
        else t
        for t in given
    ]


@pytest.mark.parametrize("called_in_mode", [False, True])
@pytest.mark.parametrize("make", [plain, graded, inferred])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_made_in_a_block_is_as_in_eager(function, make, called_in_mode):
    compiled = dc.optimize(function, dc.run_graph)
    with inference(called_in_mode):
        for _ in range(2):
            assert seen(compiled, make()) == seen(function, make())


def test_a_block_is_captured_whole():
    compiled = dc.optimize(views_outside, dc.run_graph, fullgraph=True)
    assert seen(compiled, graded()) == seen(views_outside, graded())


@pytest.mark.parametrize("function", [written_outside, item_written_outside, out_of_a_call])
def test_a_whole_graph_raises_as_eager_does(function):
    compiled = dc.optimize(function, dc.run_graph, fullgraph=True)
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(plain())


def test_memory_is_shared_as_in_eager():
    compiled = dc.optimize(views_inside, dc.run_graph)
    y, z, _ = compiled(torch.ones(3))
    with inference():
        y.zero_()
    assert z == 0
