"""Ops that move elements, against eager."""

import pytest
import torch
import torch.nn.functional as F


def test_cat_pad_flip_roll(check):
    x, y = torch.randn(4, 6, 10), torch.randn(4, 3, 10)

    def fn(x, y):
        return (
            torch.cat([x, y], 1), torch.cat([x * 2, y.exp(), x], 1), torch.stack([x, x + 1], 2),
            F.pad(x, (1, 2, 0, 3), value=1.5), F.pad(x, (-1, 2)), x.flip(0, 2), x[:, 1:-1, ::3],
            torch.cat([-x[..., 5:], x[..., :5]], -1) * 2, torch.roll(x, 3, 1),
        )  # fmt: skip

    check(fn, x, y)


def test_views_of_computed_values(check):
    x = torch.randn(4, 6, 10)

    def fn(x):
        y = x * 2
        return (
            y.view(24, 10) + 1, y.permute(2, 0, 1).reshape(10, 24) * 3, y.reshape(4, 60),
            y.transpose(1, 2).reshape(4, 60), y.unfold(2, 3, 2) + 0, y.diagonal(0, 0, 1) + 1,
            y[:, None].expand(4, 5, 6, 10).sum(1), y.select(1, -2) + 1, y.squeeze(),
        )  # fmt: skip

    check(fn, x)


def test_attention_head_layout(check):
    def fn(x, w):
        q = (x @ w).view(2, 9, 4, 8).permute(0, 2, 1, 3)
        s = torch.softmax(q @ q.transpose(-1, -2) / 3, -1)
        return (s @ q).permute(0, 2, 1, 3).reshape(2, 9, 32) + x

    check(fn, torch.randn(2, 9, 32), torch.randn(32, 32), rtol=1e-4, atol=1e-4)


def test_gather_index_embedding(check):
    x, w = torch.randn(8, 12), torch.randn(20, 7)
    i, j = torch.randint(0, 8, (5, 3)), torch.randint(-12, 12, (5, 3))
    k = torch.randint(0, 12, (8, 4))

    def fn(x, w, i, j, k):
        return (
            x[i], x[:, j], x[i, j], x[i[:, 0], 3:5], torch.gather(x, 1, k), F.embedding(i, w) * 2,
            x.index_select(1, k[0]), (x + 1)[i, j].sum(0), x[:, None, :][i[:, :1], 0],
        )  # fmt: skip

    check(fn, x, w, i, j, k)


def test_index_out_of_range_raises(check):
    with pytest.raises(IndexError):
        check(lambda w, i: F.embedding(i, w), torch.randn(4, 3), torch.tensor([0, 4]))


def test_out_of_range_is_reported_by_the_kernel():
    from dovetail_inductor import compile_to_callable
    from dovetail_prims import trace_aten
    from dovetail_prims.decompositions import core_aten_table

    w, i = torch.randn(4, 3), torch.tensor([0, 3])
    fn = compile_to_callable(
        trace_aten(lambda w, i: F.embedding(i, w), w, i, decompositions=core_aten_table())
    )
    assert torch.equal(fn(w, i)[0], w[i])
    for bad in (4, -1):
        with pytest.raises(IndexError, match=f"index out of range: index {bad} .* with size 4"):
            fn(w, torch.tensor([0, bad]))


ROWS = torch.arange(24.0).reshape(6, 4)
# How operators take an index of rows, and what eager raises of one that is none.
BY_ROWS = {
    "index_select": (lambda i: ROWS.index_select(0, i) * 2, IndexError),
    "index_copy": (lambda i: ROWS.index_copy(0, i, torch.zeros(2, 4)), IndexError),
    "index_add": (lambda i: ROWS[:, 0].index_add(0, i, torch.zeros(2)), IndexError),
    "index_reduce": (lambda i: ROWS.index_reduce(0, i, torch.zeros(2, 4), "amax"), IndexError),
    "embedding": (lambda i: F.embedding(i, ROWS) * 2, IndexError),
    "embedding_bag": (lambda i: F.embedding_bag(i, ROWS, torch.tensor([0])), RuntimeError),
    "cross_entropy": (lambda i: F.cross_entropy(ROWS[:2], i), IndexError),
    "cross_entropy, weights": (
        lambda i: F.cross_entropy(ROWS[:2], i, torch.ones(4)), IndexError
    ),
    "multi_margin_loss": (lambda i: F.multi_margin_loss(ROWS[:2], i), RuntimeError),
    "multi_margin_loss, weights": (
        lambda i: F.multi_margin_loss(ROWS[:2], i, weight=torch.ones(4)), RuntimeError
    ),
    "gather": (lambda i: ROWS.gather(0, i[:, None]) * 2, RuntimeError),
    "scatter": (lambda i: ROWS.scatter(0, i[:, None], 1.0), RuntimeError),
    "scatter_add": (lambda i: ROWS.scatter_add(0, i[:, None], torch.ones(2, 4)), RuntimeError),
    "scatter_reduce": (
        lambda i: ROWS.scatter_reduce(0, i[:, None], torch.ones(2, 4), "amin"), RuntimeError
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_ROWS)
def test_an_index_that_is_none_raises_as_eager_does(name):
    from dovetail_inductor import compile_to_callable
    from dovetail_prims import trace_aten
    from dovetail_prims.decompositions import core_aten_table

    fn, kind = BY_ROWS[name]
    given = torch.tensor([1, 3])
    run = compile_to_callable(trace_aten(fn, given, decompositions=core_aten_table()))
    torch.testing.assert_close(run(given)[0], fn(given))
    for bad in (-1, -7, 6, 4000):
        index = torch.tensor([1, bad])
        with pytest.raises((IndexError, RuntimeError)) as eager:
            fn(index)
        assert eager.type is kind
        with pytest.raises(kind, match=f"index {bad} is out of bounds for dimension . with size ."):
            run(index)


@pytest.mark.parametrize("offsets", [[1, 1], [0, 6]])
def test_bags_that_do_not_begin_within_the_indices(offsets):
    from dovetail_inductor import compile_to_callable
    from dovetail_prims import trace_aten
    from dovetail_prims.decompositions import core_aten_table

    def bags(offsets):
        return F.embedding_bag(torch.tensor([0, 3]), ROWS, offsets)

    given = torch.tensor([0, 1])
    run = compile_to_callable(trace_aten(bags, given, decompositions=core_aten_table()))
    torch.testing.assert_close(run(given)[0], bags(given))
    for call in (bags, run):
        with pytest.raises(RuntimeError, match="offsets"):
            call(torch.tensor(offsets))


def test_scatters(check):
    x, s = torch.randn(6, 9), torch.randn(6, 4)
    k = torch.randint(0, 9, (6, 4))
    perm = torch.stack([torch.randperm(9)[:4] for _ in range(6)])

    def fn(x, s, k, perm):
        return (
            torch.scatter(x, 1, perm, s), torch.scatter_add(x, 1, k, s),
            torch.slice_scatter(x, s, 1, 2, 9, 2), torch.select_scatter(x, s[:, 0], 1, 3),
            torch.index_put(x, (k[:, 0],), s[:, :1], accumulate=True), x.cumsum(1),
        )  # fmt: skip

    check(fn, x, s, k, perm)


def test_creation(check):
    def fn(x):
        r = torch.arange(9)
        mask = r[None, :] <= r[:, None]
        return (
            torch.where(mask, x, float("-inf")), r * 2, torch.arange(3, 21, 4), torch.ones(3),
            torch.zeros(2, 2) + x[:2, :2], torch.arange(0, 1, 0.25), torch.full((2,), 7),
            x.tril(), x.triu(1), torch.eye(9) + x,
        )  # fmt: skip

    check(fn, torch.randn(9, 9))


def test_an_extern_view_does_not_share_the_slab(check):
    def fn(x, w):
        bits = (x @ w).view(torch.int32)
        y = torch.relu(x @ w + 1)
        for _ in range(3):
            y = torch.relu(y @ w)
        return bits + 0, y

    result = check(fn, torch.randn(8, 8), torch.randn(8, 8), rtol=1e-4, atol=1e-4)
    assert "aten::view.dtype" in result.externs
