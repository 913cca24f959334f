"""Normalisations and losses, forward and backward, against eager's ops."""

import itertools

import pytest
import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.dialects.opsets import CORE_ATEN
from eager_oracle import assert_matches_eager, name_of, run_expanded

aten = torch.ops.aten
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def check(op, args, kwargs=None, **flags):
    seen = assert_matches_eager(core_aten_table(), op, args, kwargs or {}, **flags)
    left = {name_of(o) for o in seen} - set(CORE_ATEN) - {"copy_.default"}
    assert not left, f"{op} leaves {left}"


def draw(*shape, dtype):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm(dtype):
    torch.manual_seed(0)
    for shape, k in (((3, 5), 1), ((2, 3, 4), 2), ((4,), 1), ((2, 0, 4), 1)):
        x, g = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
        inner = shape[len(shape) - k :]
        weight, bias = draw(*inner, dtype=dtype), draw(*inner, dtype=dtype)
        for w, b in ((weight, bias), (weight, None), (None, None)):
            check(aten.native_layer_norm.default, [x, inner, w, b, 1e-5])
            _, mean, rstd = aten.native_layer_norm.default(x, inner, w, b, 1e-5)
            mask = [True, w is not None, b is not None]
            args = [g, x, inner, mean, rstd, w, b, mask]
            check(aten.native_layer_norm_backward.default, args)


def test_the_gradient_of_one_element_normalised_is_nothing():
    """By no difference of products, of which one may be rounded and the other not."""
    x, g, weight = torch.randn(5, 1), torch.randn(5, 1), torch.randn(1)
    _, mean, rstd = aten.native_layer_norm.default(x, [1], weight, None, 1e-5)
    args = [g, x, [1], mean, rstd, weight, None, [True, False, False]]
    op = aten.native_layer_norm_backward.default
    result, seen = run_expanded(core_aten_table(), op, args, {})
    assert not result[0].any() and aten.sum.dim_IntList not in seen
    assert sum(op is aten.sub.Tensor for op in seen) == 1  # of the mean


def test_layer_norm_layout_and_mixed_dtypes():
    x = draw(3, 4, 5, dtype=torch.float32).permute(2, 0, 1)
    check(aten.native_layer_norm.default, [x, [4], None, None, 1e-5])
    half = draw(3, 4, dtype=torch.bfloat16)
    weight = torch.ones(4)
    check(aten.native_layer_norm.default, [half, [4], weight, weight, 1e-5])
    _, mean, rstd = aten.native_layer_norm.default(half, [4], weight, weight, 1e-5)
    args = [half, half, [4], mean, rstd, weight, weight, [True, True, True]]
    check(aten.native_layer_norm_backward.default, args)
    args[-1] = [False, True, False]
    result, _ = run_expanded(core_aten_table(), aten.native_layer_norm_backward.default, args, {})
    assert result[0] is None and result[2] is None and result[1].dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group_norm(dtype):
    torch.manual_seed(0)
    for shape, group in (((2, 6, 3, 4), 3), ((2, 4, 5), 2), ((3, 4, 2, 2), 1)):
        n, c = shape[:2]
        hxw = int(torch.tensor(shape[2:]).prod())
        x, g = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
        for w, b in ((draw(c, dtype=dtype), draw(c, dtype=dtype)), (None, None)):
            check(aten.native_group_norm.default, [x, w, b, n, c, hxw, group, 1e-5])
            _, mean, rstd = aten.native_group_norm.default(x, w, b, n, c, hxw, group, 1e-5)
            args = [g, x, mean, rstd, w, n, c, hxw, group, [True, w is not None, b is not None]]
            check(aten.native_group_norm_backward.default, args)
    x = draw(2, 4, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
    check(aten.native_group_norm.default, [x, None, None, 2, 4, 9, 2, 1e-5])


@pytest.mark.skipif(not hasattr(aten, "_fused_rms_norm_backward"), reason="not in this torch")
def test_fused_rms_norm():
    """No CPU kernel runs it: against autograd through the definition, in float64."""
    torch.manual_seed(0)
    x, w = (draw(*s, dtype=torch.float64).requires_grad_() for s in ((3, 5), (5,)))
    g = draw(3, 5, dtype=torch.float64)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    out = x * rstd * w
    expected = torch.autograd.grad((out * g).sum(), (x, w))
    args = [g, x.detach(), [5], rstd.detach(), w.detach(), [True, True]]
    table = core_aten_table()
    result, _ = run_expanded(table, aten._fused_rms_norm_backward.default, args, {})
    for ours, theirs in zip(result, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-11)
    args[-1] = [False, False]
    result, _ = run_expanded(table, aten._fused_rms_norm_backward.default, args, {})
    assert result == (None, None)


BATCHES = ((4, 3, 5, 2), (4, 3), (2, 3, 4))
PARAMETERS = [(d, d) for d in DTYPES] + [(torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("dtypes", PARAMETERS, ids=str)
def test_batch_norm(dtypes):
    torch.manual_seed(0)
    dtype, kept = dtypes
    for shape in BATCHES:
        x, g = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
        w, b, mean = (draw(3, dtype=kept) for _ in range(3))
        var = torch.rand(3, dtype=torch.float64).to(kept) + 0.5
        for training in (True, False):
            check(aten.native_batch_norm.default, [x, w, b, mean, var, training, 0.1, 1e-5])
            legit = [x, w, b, mean, var, training, 0.1, 1e-5]
            check(aten._native_batch_norm_legit.default, legit)
            check(aten._native_batch_norm_legit_functional.default, legit)
            saved = aten.native_batch_norm.default(
                x, w, b, mean.clone(), var.clone(), training, 0.1, 1e-5
            )
            args = [g, x, w, mean, var, saved[1], saved[2], training, 1e-5, [True, True, True]]
            check(aten.native_batch_norm_backward.default, args)
        check(aten._native_batch_norm_legit_no_training.default, [x, w, b, mean, var, 0.1, 1e-5])
        check(aten._native_batch_norm_legit.no_stats, [x, w, b, True, 0.1, 1e-5])
        check(aten._batch_norm_with_update.default, [x, w, b, mean, var, 0.1, 1e-5])
        check(aten._batch_norm_with_update_functional.default, [x, w, b, mean, var, 0.1, 1e-5])
        check(aten._batch_norm_no_update.default, [x, w, b, mean, var, 0.1, 1e-5])
        _, m, r, reserve = aten._batch_norm_with_update.default(
            x, w, b, mean.clone(), var.clone(), 0.1, 1e-5
        )
        args = [g, x, w, mean, var, m, r, True, 1e-5, [True, True, True], reserve]
        check(aten.batch_norm_backward.default, args)


def test_batch_norm_without_parameters_and_layout():
    x = draw(4, 3, 5, 2, dtype=torch.float32)
    check(aten.native_batch_norm.default, [x, None, None, None, None, True, 0.1, 1e-5])
    last = x.to(memory_format=torch.channels_last)
    w = torch.ones(3)
    for training in (True, False):
        args = [last, w, w, torch.zeros(3), torch.ones(3), training, 0.1, 1e-5]
        check(aten.native_batch_norm.default, args)


def test_cudnn_batch_norm():
    """Runs on no CPU: against native_batch_norm, whose arithmetic it shares."""
    x, g = draw(4, 3, 5, dtype=torch.float64), draw(4, 3, 5, dtype=torch.float64)
    w, b = draw(3, dtype=torch.float64), draw(3, dtype=torch.float64)
    table = core_aten_table()
    stats = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    twins = stats[0].clone(), stats[1].clone()
    ours = table[aten.cudnn_batch_norm.default](x, w, b, *stats, True, 0.1, 1e-5)
    theirs = aten.native_batch_norm.default(x, w, b, *twins, True, 0.1, 1e-5)
    for a, e in zip((*ours[:3], *stats), (*theirs, *twins), strict=True):
        assert torch.allclose(a, e, rtol=1e-11, atol=1e-11)
    backward = table[aten.cudnn_batch_norm_backward.default]
    ours = backward(x, g, w, *stats, theirs[1], theirs[2], 1e-5, ours[3])
    mask = [True, True, True]
    expected = aten.native_batch_norm_backward.default(
        g, x, w, *stats, theirs[1], theirs[2], True, 1e-5, mask
    )
    for a, e in zip(ours, expected, strict=True):
        assert torch.allclose(a, e, rtol=1e-11, atol=1e-11)


REDUCTIONS = (0, 1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss(reduction, dtype):
    torch.manual_seed(0)
    cases = [
        (draw(6, 5, dtype=dtype), torch.tensor([0, 1, 4, -100, 2, 2]), "nll_loss"),
        (draw(5, dtype=dtype), torch.tensor(3), "nll_loss"),
        (draw(2, 5, 3, 2, dtype=dtype), torch.randint(0, 5, (2, 3, 2)), "nll_loss2d"),
        (draw(0, 5, dtype=dtype), torch.zeros(0, dtype=torch.int64), "nll_loss"),
    ]
    for x, target, name in cases:
        forward, backward = (
            getattr(aten, f"{name}_{way}").default for way in ("forward", "backward")
        )
        for weight in (None, torch.rand(5, dtype=torch.float64).to(dtype)):
            for ignore in (-100, 2):
                legal = torch.where(target == -100, ignore, target)
                args = [x, legal, weight, reduction, ignore]
                check(forward, args)
                out, total = forward(*args)
                check(backward, [torch.randn_like(out), *args, total])


PAIRS = {
    "mse_loss": [()],
    "smooth_l1_loss": [(1.0,), (0.3,), (0.0,)],
    "huber_loss": [(1.0,), (0.3,)],
    "soft_margin_loss": [()],
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_losses(name, dtype):
    torch.manual_seed(0)
    for shape in ((3, 5), (), (0, 4)):
        x, t = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype)
        if name in ("smooth_l1_loss", "huber_loss"):
            x.view(-1)[:1] = float("nan")  # its gradient is none, too
            t.view(-1)[1:2] = x.view(-1)[1:2]  # both sides' where the threshold is 0
        for reduction in REDUCTIONS:
            for extra in PAIRS[name]:
                forward = getattr(aten, name).default
                check(forward, [x, t, reduction, *extra])
                g = torch.randn_like(forward(x, t, reduction, *extra))
                backward = getattr(aten, name + "_backward").default
                check(backward, [g, x, t, reduction, *extra])


@pytest.mark.parametrize(
    "pair",
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.bfloat16),
        (torch.float16, torch.bfloat16),
    ],
)
def test_losses_of_two_dtypes(pair):
    """A model in half precision with targets in full has a loss in full."""
    torch.manual_seed(0)
    near = 8 * max(torch.finfo(dtype).eps for dtype in pair)
    for shapes in itertools.product(((3, 5), ()), repeat=2):
        x, t = (draw(*shape, dtype=dtype) for shape, dtype in zip(shapes, pair, strict=True))
        for reduction in REDUCTIONS:
            if shapes[0] == shapes[1]:
                logits = aten.binary_cross_entropy_with_logits.default
                check(logits, [x, t, None, None, reduction], tolerance=near)
            for name in ("mse_loss", "smooth_l1_loss"):
                check(getattr(aten, name).default, [x, t, reduction], tolerance=near)
            if shapes[0] == shapes[1]:
                check(aten.huber_loss.default, [x, t, reduction], tolerance=near)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_binary_cross_entropy(dtype):
    torch.manual_seed(0)
    for shape in ((3, 5), ()):
        x, t, w = (torch.rand(shape, dtype=torch.float64).to(dtype) for _ in range(3))
        if shape:
            x[0, 0], x[0, 1] = 0.0, 1.0
        for weight in (None, w):
            for reduction in REDUCTIONS:
                forward = aten.binary_cross_entropy.default
                check(forward, [x, t, weight, reduction])
                g = torch.randn_like(forward(x, t, weight, reduction))
                safe = x.clamp(0.1, 0.9)
                args = [g, safe, t, weight, reduction]
                check(aten.binary_cross_entropy_backward.default, args)
                for pos in (None, w):
                    args = [torch.logit(safe), t, weight, pos, reduction]
                    check(aten.binary_cross_entropy_with_logits.default, args)
