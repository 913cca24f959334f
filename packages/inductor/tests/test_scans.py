"""Running sums and products, and writes to diagonals, against eager, without library calls."""

import pytest
import torch


@pytest.mark.parametrize("length", [1, 7, 16, 17, 300])
def test_scans(check, length):
    def fn(x, k, m):
        return x.cumsum(1), x.cumprod(1), k.cumsum(0), m.cumsum(1), x.cumsum(-1), x.sum(2).cumsum(1)

    x = torch.randn(3, length, 5) * 0.5 + 1
    checked = check(
        fn, x, torch.randint(-9, 9, (length, 4)), torch.rand(2, length) > 0.5, rtol=1e-4
    )
    assert checked.externs == []


def test_scans_of_other_types(check):
    def fn(x, k):
        return (
            x.bfloat16().cumsum(1),
            x.double().cumsum(1),
            k.cumsum(0),
            k.cumsum(0, dtype=torch.float32),
        )

    x = torch.randn(4, 70)
    checked = check(fn, x, torch.arange(40, dtype=torch.int32), rtol=2e-2, atol=2e-2)
    assert checked.externs == []
    check(lambda x: (x.cumsum(0), x[0, 0].cumsum(0)), torch.randn(0, 3).new_ones(1, 3))


@pytest.mark.parametrize("length", [1, 16, 70])
def test_running_extremes(check, length):
    def fn(x, k):
        return *x.cummax(1), *x.cummin(0), *k.cummax(-1), *x.relu().cummin(1)

    x = torch.randint(-9, 9, (3, length, 2)) / 4  # with equal elements
    x[0, length // 2] = torch.nan
    x[1, : length // 3] = -torch.inf
    checked = check(fn, x, torch.randint(-3, 3, (2, length), dtype=torch.int32))
    assert checked.externs == []
    check(lambda x: (*x.cummax(0), *x[0].cummin(0)), torch.randn(3, 0))
    check(lambda x: (*x.cummax(0), x.logcumsumexp(0)), torch.tensor(2.0))


@pytest.mark.parametrize("length", [1, 17, 300])
def test_running_logarithms(check, length):
    x = torch.randn(3, length, 2) * 20
    x[0, : length // 2] = -torch.inf
    x[1, length // 2] = torch.inf
    x[2, length // 2, 1] = torch.nan
    checked = check(lambda x: (x.logcumsumexp(1), x.double().logcumsumexp(1)), x)
    assert checked.externs == []


def test_positions_of_a_mask(check):
    """As a model makes them of its attention mask."""

    def fn(mask):
        return (torch.cumsum(mask, dim=1) * mask).long() - 1

    checked = check(fn, (torch.rand(4, 512) > 0.2).long())
    assert checked.externs == []


def test_writes_to_diagonals(check):
    def fn(x, y, s):
        return (
            torch.diagonal_scatter(x, s[:5]),
            torch.diagonal_scatter(x, s[:4], 1),
            torch.diagonal_scatter(x, s[:3], -2),
            torch.diagonal_scatter(y, x[:, :5], 0, 2, 0),
        )

    checked = check(fn, torch.randn(5, 5), torch.randn(5, 5, 5), torch.randn(5))
    assert checked.externs == []
