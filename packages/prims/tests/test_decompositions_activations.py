"""Activations and softmax, forward and backward, against eager's ops."""

import pytest
import torch
from decomposition_checks import check

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
SHAPES = ((3, 5), (), (0, 4), (2, 3, 4))


def numbers(shape, dtype):
    """Values on both sides of every threshold, the thresholds themselves, and NaN and inf."""
    x = torch.randn(shape, dtype=torch.float64) * 3
    special = torch.tensor([0.0, -3.0, 3.0, 0.5, -0.5, 1.0, -1.0, float("inf"), float("-inf")])
    flat = x.view(-1)
    flat[: min(flat.numel(), 9)] = special[: flat.numel()].double()
    return x.to(dtype)


FORWARD = {
    "gelu": [{}, {"approximate": "tanh"}],
    "silu": [{}],
    "mish": [{}],
    "hardswish": [{}],
    "hardsigmoid": [{}],
    "hardtanh": [{}, {"min_val": -2.0, "max_val": 0.5}],
    "leaky_relu": [{}, {"negative_slope": 0.3}],
    "elu": [{}, {"alpha": 0.7}, {"alpha": 0.7, "scale": 1.3, "input_scale": 0.9}],
    "celu": [{}, {"alpha": 0.7}],
    "softplus": [{}, {"beta": 2, "threshold": 1.5}],
    "softshrink": [{}, {"lambd": 1.0}],
    "hardshrink": [{}, {"lambd": 1.0}],
    "log_sigmoid_forward": [{}],
    "threshold": [{"threshold": 0.5, "value": 7.0}],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name, dtype):
    torch.manual_seed(0)
    for shape in SHAPES:
        x = numbers(shape, dtype)
        if name == "gelu":  # at infinity eager's vector code gives NaN, its scalar code does not
            x = x.clamp(-10, 10)
        for kwargs in FORWARD[name]:
            check(getattr(aten, name).default, [x], kwargs)


def test_forward_nan_and_layout():
    x = torch.tensor([float("nan"), 1.0, -1.0])
    permuted = torch.randn(3, 4, 5).permute(2, 0, 1)
    for name, variants in FORWARD.items():
        op = getattr(aten, name).default
        for kwargs in variants:
            check(op, [x], kwargs)
            # eager writes the buffer of log_sigmoid, and only that, in row-major order
            check(op, [permuted], kwargs, strides=name != "log_sigmoid_forward")


BACKWARD = {
    "gelu_backward": [{}, {"approximate": "tanh"}],
    "silu_backward": [{}],
    "mish_backward": [{}],
    "hardswish_backward": [{}],
    "hardsigmoid_backward": [{}],
    "hardtanh_backward": [{"min_val": -3.0, "max_val": 0.5}],
    "leaky_relu_backward": [{"negative_slope": 0.3, "self_is_result": False}],
    "softplus_backward": [{"beta": 1, "threshold": 20}, {"beta": 2, "threshold": 1.5}],
    "softshrink_backward": [{"lambd": 0.5}],
    "hardshrink_backward": [{"lambd": 0.5}],
    "threshold_backward": [{"threshold": 0.5}],
    "sigmoid_backward": [{}],
    "tanh_backward": [{}],
    "logit_backward": [{}, {"eps": 0.1}],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name, dtype):
    torch.manual_seed(0)
    op = getattr(aten, name).default
    for shape in SHAPES:
        g = torch.randn(shape, dtype=torch.float64).to(dtype)
        x = numbers(shape, dtype)
        x = x.clamp(-5, 5)  # at infinity eager's own formulas differ between vector and scalar code
        if name in ("sigmoid_backward", "tanh_backward", "logit_backward"):
            x = torch.rand(shape, dtype=torch.float64).to(dtype)
        for kwargs in BACKWARD[name]:
            check(op, [g, x], kwargs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_of_several_tensors(dtype):
    torch.manual_seed(0)
    for shape in ((3, 4), (2, 3, 4), (0, 4)):
        g, x = (torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(2))
        weight = (
            torch.rand(shape[1], dtype=torch.float64).to(dtype).view(-1, *[1] * (len(shape) - 2))
        )
        check(aten._prelu_kernel.default, [x, weight], {})
        check(aten._prelu_kernel_backward.default, [g, x, weight], {})
        for is_result in (False, True):
            check(aten.elu_backward.default, [g, 0.7, 1.3, 0.9, is_result, x], {})
        _, buffer = aten.log_sigmoid_forward.default(x)
        check(aten.log_sigmoid_backward.default, [g, x, buffer], {})
        check(aten.glu.default, [x], {"dim": -1})
        half = torch.randn(*shape[:-1], 2, dtype=torch.float64).to(dtype)
        check(aten.glu_backward.default, [half, x, -1], {})
        check(aten.native_dropout_backward.default, [g, x > 0, 2.0], {})
        p = torch.rand(shape, dtype=torch.float64).to(dtype)
        check(aten.logit.default, [p], {})
        check(aten.logit.default, [p], {"eps": 0.1})


SOFTMAX_SHAPES = (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), 1), ((), 0), ((0, 4), 1), ((3, 0), 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["_softmax", "_log_softmax"])
def test_softmax(name, dtype):
    torch.manual_seed(0)
    forward = getattr(aten, name).default
    backward = getattr(aten, name + "_backward_data").default
    for shape, dim in SOFTMAX_SHAPES:
        x = (torch.randn(shape, dtype=torch.float64) * 5).to(dtype)
        check(forward, [x, dim, False], {})
        g = torch.randn(shape, dtype=torch.float64).to(dtype)
        check(backward, [g, forward(x, dim, False), dim, dtype], {})
    permuted = torch.randn(3, 4, 5, dtype=torch.float64).to(dtype).permute(2, 0, 1)
    check(forward, [permuted, 1, False], {})
    check(backward, [permuted, forward(permuted, 1, False), 1, dtype], {})
    rows = torch.full((2, 3), float("-inf"), dtype=dtype)
    rows[0, 1] = 1.0
    check(forward, [rows, 1, False], {})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safe_softmax_and_logsumexp(dtype):
    torch.manual_seed(0)
    rows = torch.randn(3, 4, dtype=torch.float64).to(dtype)
    rows[1] = float("-inf")
    rows[2, 0] = float("-inf")
    check(aten._safe_softmax.default, [rows, -1], {})
    for dim in ([1], [0, 1], [-1]):
        for keepdim in (False, True):
            check(aten.logsumexp.default, [rows, dim, keepdim], {})
    rows[0, 0] = float("inf")
    check(aten.logsumexp.default, [rows, [1]], {})


def test_logsumexp_of_integers():
    check(aten.logsumexp.default, [torch.arange(6).view(2, 3), [1]], {})
