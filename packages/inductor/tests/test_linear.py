"""Products with a bias: added by the library call, or by the kernels that read the product."""

import pytest
import torch
import torch.nn.functional as F

R = torch.randn


def test_readers_add_the_bias(check):
    result = check(lambda x, w, b: F.gelu(F.linear(x, w, b)) * 2, R(24, 16), R(32, 16), R(32))
    assert result.launches == 1 and result.externs == ["aten::mm.out"]


def test_two_readers_through_views_add_the_bias_each(check):
    def fn(x, w, b):
        y = F.linear(x, w, b)
        return F.layer_norm(x + y, (16,)), y.transpose(1, 2).relu().sum(1)

    result = check(fn, R(3, 7, 16), R(16, 16), R(16))
    assert result.externs == ["aten::mm.out"]


def test_a_product_that_leaves_has_its_bias(check):
    result = check(F.linear, R(24, 16), R(32, 16), R(32))
    assert result.launches == 0 and result.externs == ["aten::addmm.out"]


def test_a_product_that_another_call_reads_has_its_bias(check):
    result = check(lambda x, w, b: F.linear(x, w, b) @ w, R(24, 16), R(32, 16), R(32))
    assert result.externs == ["aten::addmm.out", "aten::mm.out"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_products_are_rounded_once(check, dtype):
    x, w, b = R(5, 16).to(dtype), R(8, 16).to(dtype), R(8).to(dtype)
    result = check(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b)
    assert result.externs == ["aten::addmm.out"]


@pytest.mark.parametrize("scales", [{"beta": 2.0}, {"alpha": 0.5}, {"beta": 0}])
def test_scaled_sums_are_library_calls(check, scales):
    result = check(lambda b, x, w: torch.addmm(b, x, w, **scales).relu(), R(8), R(5, 16), R(16, 8))
    assert result.externs == ["aten::addmm.out"]


def test_a_matrix_as_bias_is_a_library_call(check):
    result = check(lambda b, x, w: torch.addmm(b, x, w).relu(), R(5, 8), R(5, 16), R(16, 8))
    assert result.externs == ["aten::addmm.out"]


@pytest.mark.parametrize("rows", [0, 1, 3, 17])
@pytest.mark.parametrize("columns", [1, 5, 33])
@pytest.mark.parametrize("inner", [0, 1, 7])
def test_sizes(check, rows, columns, inner):
    check(
        lambda x, w, b: F.linear(x, w, b).sigmoid(), R(rows, inner), R(columns, inner), R(columns)
    )


def test_one_bias_for_all_columns(check):
    check(lambda b, x, w: torch.addmm(b, x, w).relu(), R(1), R(5, 16), R(16, 8))


def test_strided_operands(check):
    x, w, b = R(16, 24).t(), R(64, 32)[::2, ::2], R(96)[::3]
    check(lambda x, w, b: F.linear(x, w, b).tanh(), x, w, b)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_not_finite_biases(check, value):
    b = R(8).double()
    b[3] = value
    check(lambda x, w, b: F.linear(x, w, b).exp(), R(5, 4).double(), R(8, 4).double(), b)
