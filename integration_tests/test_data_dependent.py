"""Sizes and numbers that depend on data, in one graph: against eager, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dovetail_capture import GraphBreakError
from torch import Tensor, nn

import dovetail


def item(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n < 100, "too many")
    return torch.zeros(n) + n


def float_item(x: Tensor) -> Tensor:
    s = x.sum().item()
    return x * s + s / 2


def power_of_item(x: Tensor) -> tuple[Tensor, Tensor]:
    s = x.mean().item()
    return (x.abs() + 0.5) ** s, (x > 0).long() ** (x > 0).sum().item()


def unique(x: Tensor) -> tuple[Tensor, ...]:
    v, i, c = torch.unique((x * 2).long(), return_inverse=True, return_counts=True)
    return v * 2, i + 1, c.float() / x.numel()


def where(x: Tensor) -> Tensor:
    i, j = torch.where(x > 0)
    return x[i, j] + i


def mean(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[x > 0]
    return y.sum() / y.numel(), y.mean()


def put(x: Tensor) -> Tensor:
    y = x.clone()
    m = y > 0
    y[m] = y[m] * 2
    return y.sin()


def arange(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    torch._check_is_size(n)
    return torch.arange(n) * 2 + n


def largest(x: Tensor) -> Tensor:
    y = x[x > -100]
    torch._check(y.size(0) > 0)
    return y.max()


def sliced(x: Tensor) -> Tensor:
    n = (x[:, 0] > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.size(0))
    return x[:n] * 2


def loss(x: Tensor) -> Tensor:
    targets = torch.arange(x.size(0)) % x.size(1)
    m = x[:, 0] > -0.5
    return F.cross_entropy(x[m], targets[m])


def parts(x: Tensor) -> Tensor:
    a, b = x[x > 0], x[x <= 0]
    return torch.cat([a.exp(), b])


def unsorted(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[x > 0]
    return y.sort()[0], y.cumsum(0)


def grid(x: Tensor) -> Tensor:
    n, m = (x[:, 0] > -9).sum().item(), (x[0] > -9).sum().item()
    i, j = torch.meshgrid(torch.arange(n), torch.arange(m), indexing="ij")
    return torch.zeros(n, m) + i.reshape(n, m) * 2 + j


def resized(x: Tensor, mode: str = "bilinear", antialias: bool = False) -> Tensor:
    n = (x > 0).sum().item()
    torch._check(n > 0)
    image = torch.stack([x, x * 2])[None]
    return F.interpolate(image, (n, n + 1), mode=mode, antialias=antialias).sin()


def added_by_mask(x: Tensor) -> Tensor:
    y, m = x * 2, x[:, 0] > 0
    kept = y[~m].sin()
    y[~m] += kept
    y[m] += 1
    return y.cos()


def crossed(x: Tensor) -> Tensor:
    y = x * 2
    for rows, largest in (([0, 2], 2), ([1, 3], 1)):
        y[torch.tensor(rows), x[0] >= x[0].detach().sort().values[-largest]] = x[2, :2].sin()
    return y


def split(x: Tensor) -> tuple[Tensor, int]:
    places = torch.arange(x.size(0)) % 3
    sizes = (places[:, None] == torch.arange(3)).sum(0).tolist()
    pieces = x.split(sizes, dim=0)
    return torch.cat([piece * (i + 1) for i, piece in enumerate(pieces)]), sum(sizes)


def leaf(x: Tensor) -> Tensor:
    bias = torch.zeros_like(x).requires_grad_()
    return (x * 2 + bias).sin()


def padded(x: Tensor) -> Tensor:
    n = x.detach().sum().long().item()
    return F.pad(x, (n + 20, -1)).sin()


def sampled(x: Tensor) -> Tensor:
    n = (x > 0).sum().item()
    grid = torch.linspace(-1, 1, 6).reshape(3, 2).expand(1, n, 3, 2)
    return F.grid_sample(x[None, None], grid, align_corners=False).cos()


def cut_anywhere(x: Tensor) -> tuple[Tensor, ...]:
    n = x.detach().sum().long().item()  # may be negative, or past the end
    y = x * 2
    y[n:] *= 3
    return y, x[n:].sin(), x[:n], x[n : n + 2].sum(0), x[n::2].cos()


def picked(x: Tensor) -> tuple[Tensor, Tensor]:
    n = x[0].detach().argmax().item() - 1
    y = x * 2
    y[n] = 7
    return y, x[n].sin() + x.select(1, n)[:4]


def split_at(x: Tensor) -> tuple[Tensor, ...]:
    places = x.detach()[:2, 0].long()
    return tuple(p * 2 for p in (*x.tensor_split(places), *torch.tensor_split(x, places, 1)))


def whole_numbers(x: Tensor) -> Any:
    n = int(x.detach().sum())
    m = int(x.detach().half().mean().item() * 7.5)
    return x * n, x[: int(x.detach().abs().max())] + m, n, m


def turned(x: Tensor) -> Tensor:
    n = x.detach().sum().long().item()  # may be negative
    return x.roll(n, 0) + x.roll((n, 1), (1, 0)).sin()


def slices_of_slices(x: Tensor) -> tuple[Tensor, ...]:
    y = x[x > 0].exp()
    return y[1:].cumsum(0), y[:-1] * 2, y[-2:], y[1:-1].sin(), y[::2], y[100:], y[:-100] + 1


def seen_as_rows(x: Tensor) -> tuple[Tensor, ...]:
    n = (x > 0).any(1).sum().item()  # 5 in all calls
    return x.sin().view(n, -1).cumsum(1), x.view(-1, n).softmax(0), x.view(n, x.numel() // n) * 2


def cut_as_told(x: Tensor) -> Tensor:
    n = (x > 0).any(1).sum().item()
    return torch.ones(n, 3).as_strided((n,), (3,)) * 2


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "nonzero": lambda x: x.nonzero() * 2,
    "mask": lambda x: x[x > 0].sin() * 2,
    "rows by mask": lambda x: (x[x[:, 0] > 0] * 2).softmax(-1),
    "columns by mask": lambda x: x[:, x[0] > 0].cos(),
    "item": item,
    "float item": float_item,
    "power of item": power_of_item,
    "unique": unique,
    "unique_consecutive": lambda x: torch.unique_consecutive((x > 0).long())[:] * 2,
    "repeat_interleave": lambda x: torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, 0).cos(),
    "where": where,
    "mean": mean,
    "product": lambda x: x[x[:, 0] > 0] @ x.t(),
    "cat": lambda x: torch.cat([x[x[:, 0] > 0], x]) * 2,
    "masked_select": lambda x: x.masked_select(x > 0) * 3,
    "layers": lambda x: F.layer_norm(F.linear(x[x[:, 0] > 0], x), (x.size(0),)),
    "view": lambda x: x[x[:, 0] > 0].view(-1) * 2,
    "written by mask": put,
    "int and float": lambda x: x * int((x > 0).sum()) + float(x.detach().sum()),
    "arange": arange,
    "largest": largest,
    "argwhere": lambda x: torch.argwhere(x > 0) + 1,
    "sliced": sliced,
    "bincount": lambda x: torch.bincount((x.abs() * 2).long().flatten()),
    "returned": lambda x: (x.detach().sum().item(), (x > 0).sum().item(), x.nonzero().size(0)),
    "loss": loss,
    "parts": parts,
    "sort": unsorted,
    "grid": grid,
    "padded": padded,
    "sampled": sampled,
    "resized": resized,
    "resized to the nearest": lambda x: resized(x, "nearest"),
    "resized without aliasing": lambda x: resized(x, antialias=True),
    "added by mask": added_by_mask,
    "written by index and mask": crossed,
    "split": split,
    "split at places": split_at,
    "cut anywhere": cut_anywhere,
    "picked": picked,
    "whole numbers of floats": whole_numbers,
    "turned": turned,
    "the largest": lambda x: x.flatten().topk((x.detach() > 0).sum().item()),
    "repeated": lambda x: x.repeat((x.detach() > 1).sum().item() + 1, 2).sin(),
    "narrowed": lambda x: x.narrow(0, x.detach()[0].argmax() - 5, 2).sin(),
    "unique rows": lambda x: torch.unique((x > 0).long(), dim=0, return_counts=True),
    "unique columns": lambda x: torch.unique_consecutive((x > 0).float(), dim=1),
    "slices of what a mask left": slices_of_slices,
    "seen as rows": seen_as_rows,
    "cut as told": cut_as_told,
    "empty": lambda x: ((x[x > 1e9] * 2).sum(), x[x > 1e9] + 1),
}


def inputs() -> list[Tensor]:
    made = [torch.randn(5, 4, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    return [*made, made[0].abs() + 0.1]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_programs(name: str, grad: bool) -> None:
    fn = PROGRAMS[name]
    compiled = dovetail.compile(fn, fullgraph=True)
    for x in inputs():
        theirs, ours = (x.clone().requires_grad_(grad) for _ in range(2))
        wanted, got = fn(theirs), compiled(ours)
        if not isinstance(wanted, tuple):
            wanted, got = (wanted,), (got,)
        for expected, found in zip(wanted, got, strict=True):
            if not isinstance(expected, Tensor):
                assert type(found) is type(expected) and found == pytest.approx(expected, abs=1e-5)
                continue
            torch.testing.assert_close(found, expected, equal_nan=True)
            assert not expected.numel() or found.stride() == expected.stride()
            assert found.requires_grad == expected.requires_grad
            if expected.requires_grad:
                (a,) = torch.autograd.grad(expected.sin().sum(), theirs, retain_graph=True)
                (b,) = torch.autograd.grad(found.sin().sum(), ours, retain_graph=True)
                torch.testing.assert_close(b, a, equal_nan=True, atol=1e-4, rtol=1e-4)
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.per_size_compiles, report.as_text()


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (lambda x, i: x[i.item()] * 2, "out of bounds for dimension 0 with size 5"),
        (lambda x, i: x.narrow(0, i, 2) * 2, "start"),
        (lambda x, i: x.topk(i.item() + 3, 0)[0], "index k out of range"),
    ],
)
def test_a_place_outside_is_refused_when_the_program_runs(fn: Any, error: str) -> None:
    compiled = dovetail.compile(fn, fullgraph=True)
    x = torch.randn(5, 4)
    torch.testing.assert_close(compiled(x, torch.tensor(-3)), fn(x, torch.tensor(-3)))
    for outside in (5, -6):
        with pytest.raises((RuntimeError, IndexError)):
            fn(x, torch.tensor(outside))
        with pytest.raises((RuntimeError, IndexError), match=error):
            compiled(x, torch.tensor(outside))


@pytest.mark.parametrize("shape", [lambda n: (n, -1), lambda n: (-1, n), lambda n: (n, 6 // n)])
def test_a_view_that_does_not_fit_is_refused_when_the_program_runs(shape: Any) -> None:
    def fn(x: Tensor, n: Tensor) -> Tensor:
        return x.view(shape(n.item())) * 2

    compiled = dovetail.compile(fn, fullgraph=True)
    x = torch.randn(6)
    for fits in (2, 3, 1, 6):
        torch.testing.assert_close(compiled(x, torch.tensor(fits)), fn(x, torch.tensor(fits)))
    for other in (4, -2, 7, -1):
        with pytest.raises(RuntimeError):
            fn(x, torch.tensor(other))
        with pytest.raises(RuntimeError):
            compiled(x, torch.tensor(other))


def test_floats_that_no_whole_number_holds_are_pythons() -> None:
    compiled = dovetail.compile(lambda x, y: x * int(y), fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, torch.tensor([-2.9])), x * -2)
    for wrong, error in (("nan", ValueError), ("-inf", OverflowError), ("1e30", OverflowError)):
        with pytest.raises(error):
            x * int(torch.tensor([float(wrong)]))
        with pytest.raises(error):
            compiled(x, torch.tensor([float(wrong)]))


def test_a_leaf_made_inside() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    compiled = dovetail.compile(leaf, fullgraph=True)
    torch.testing.assert_close(compiled(x), leaf(x))
    (a,), (b,) = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, leaf))
    torch.testing.assert_close(a, b)


def test_sizes_that_must_be_equal_are_checked_when_the_program_runs() -> None:
    def both(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return x[first] + x[second]

    compiled = dovetail.compile(both, fullgraph=True)
    x, first = torch.randn(6), torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    torch.testing.assert_close(compiled(x, first, first.flip(0)), both(x, first, first.flip(0)))
    with pytest.raises(RuntimeError):
        compiled(x, first, torch.ones(6, dtype=torch.bool))


@pytest.mark.parametrize("name", ["mask", "rows by mask", "unique", "written by mask", "loss"])
def test_programs_with_sizes_that_change_too(name: str) -> None:
    fn = PROGRAMS[name]
    compiled = dovetail.compile(fn, fullgraph=True)
    for n, m in ((5, 4), (7, 6), (3, 9), (12, 2)):
        x = torch.randn(n, m, generator=torch.Generator().manual_seed(n))
        wanted, got = fn(x), compiled(x)
        for expected, found in zip(
            *((v if isinstance(v, tuple) else (v,)) for v in (wanted, got)), strict=True
        ):
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert dovetail.report(compiled).graphs == 2


def test_a_check_that_fails_stops_the_compiled_program() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.sum().item()
        torch._check(n >= 0, "negative")
        torch._check(n <= 3)
        return torch.ones(n)

    compiled = dovetail.compile(fn, fullgraph=True)
    assert compiled(torch.tensor([1, 1])).shape == (2,)
    assert compiled(torch.tensor([0, 0])).shape == (0,)
    with pytest.raises(RuntimeError, match="negative"):
        compiled(torch.tensor([-1, 0]))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):  # as in eager
        compiled(torch.tensor([2, 2]))
    assert dovetail.report(compiled).graphs == 1


def test_a_check_is_kept_where_nothing_else_uses_the_number() -> None:
    def fn(x: Tensor) -> Tensor:
        torch._check((x > 0).sum().item() > 0, "no sum")
        return x * 2

    compiled = dovetail.compile(fn, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3) * 2)
    with pytest.raises(RuntimeError, match="no sum"):
        compiled(-torch.ones(3))


def test_a_question_that_only_the_data_answers_says_so() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.sum().item()
        if n > 3:
            return x + 1
        return x

    with pytest.raises(GraphBreakError) as caught:
        dovetail.compile(fn, fullgraph=True)(torch.ones(3, dtype=torch.long))
    text = str(caught.value)
    assert "test_data_dependent.py" in text and "torch._check" in text and "if n > 3" in text
    compiled = dovetail.compile(fn)
    for x in (torch.ones(3, dtype=torch.long), 2 * torch.ones(3, dtype=torch.long)):
        assert torch.equal(compiled(x), fn(x))


def test_without_fullgraph_breaks_stay_clean() -> None:
    for name, fn in PROGRAMS.items():
        compiled = dovetail.compile(fn)
        for x in inputs()[:2]:
            wanted, got = fn(x), compiled(x)
            for expected, found in zip(
                *((v if isinstance(v, tuple) else (v,)) for v in (wanted, got)), strict=True
            ):
                if isinstance(expected, Tensor):
                    torch.testing.assert_close(found, expected, equal_nan=True, msg=name)
                else:
                    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("chosen", [0, 5, 16], ids=["none", "some", "all"])
def test_a_scatter_of_what_a_mask_left(chosen: int) -> None:
    """Where the mask holds nowhere (or everywhere) its source (or the other's) is empty."""

    def fn(h: Tensor, mask: Tensor) -> Tensor:
        wide = mask.unsqueeze(-1)
        h = h.masked_scatter(wide, h[mask] * 2)
        return h.masked_scatter(~wide, h[~mask] * 3)

    mask = (torch.randperm(16) < chosen).view(2, 8)
    h = torch.randn(2, 8, 4)
    ours, eager = (h.clone().requires_grad_() for _ in range(2))
    got, expected = dovetail.compile(fn)(ours, mask), fn(eager, mask)
    for out in (got, expected):
        out.square().sum().backward()
    torch.testing.assert_close([got, ours.grad], [expected, eager.grad])


@pytest.mark.parametrize("lengths", ["tensors", "lists"])
def test_ctc_loss_by_lengths(lengths: str) -> None:
    def loss(scores: Tensor, targets: Tensor, steps: Any, sizes: Any) -> Tensor:
        return F.ctc_loss(scores, targets, steps, sizes)

    torch.manual_seed(0)
    scores = torch.randn(8, 3, 5).log_softmax(2).requires_grad_()
    targets = torch.randint(1, 5, (3, 4))
    compiled = dovetail.compile(loss, fullgraph=True)
    for own in ([4, 2, 3], [1, 2, 1]):
        given = torch.tensor(own) if lengths == "tensors" else own
        steps = torch.tensor([8, 7, 8]) if lengths == "tensors" else [8, 7, 8]
        found = []
        for function in (loss, compiled):
            result = function(scores, targets, steps, given)
            found.append((result, *torch.autograd.grad(result, scores)))
        torch.testing.assert_close(found[1], found[0])


def test_batch_norm_that_averages_all_batches() -> None:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(3, momentum=None) for _ in range(2)]
    compiled = dovetail.compile(norms[1], fullgraph=True, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5)
        torch.testing.assert_close(compiled(x), norms[0](x))
    for own, theirs in zip(norms[1].buffers(), norms[0].buffers(), strict=True):
        torch.testing.assert_close(own, theirs)


def test_an_encoder_with_a_mask_is_one_graph() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    compiled = dovetail.compile(encoder, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    for mask in (causal, torch.zeros(5, 5), causal.t()):
        torch.testing.assert_close(compiled(x, mask=mask), encoder(x, mask=mask))
    torch.testing.assert_close(
        compiled(x, mask=causal, is_causal=True), encoder(x, mask=causal, is_causal=True)
    )


def pieces(lengths: Tensor, x: Tensor) -> list[Tensor]:
    return [piece + 1 for piece in torch.split_with_sizes(x, lengths.tolist(), 1)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lengths", [(4, 5), (4, 3, 2), (0, 1, 8), (2, 2, 2, 3)], ids=str)
def test_columns_cut_by_lengths(lengths: tuple[int, ...], dynamic: bool) -> None:
    compiled = dovetail.compile(pieces, fullgraph=True, dynamic=dynamic)
    for given in (lengths, lengths[::-1]):
        x = torch.randn(3, 9, requires_grad=True)
        wanted, got = (fn(torch.tensor(given), x) for fn in (pieces, compiled))
        for mine, theirs in zip(got, wanted, strict=True):
            assert not theirs.numel() or mine.stride() == theirs.stride()
        torch.testing.assert_close(got, wanted)
        downstream = [torch.randn_like(w) for w in wanted]
        (a,), (b,) = (torch.autograd.grad(f, x, downstream) for f in (got, wanted))
        torch.testing.assert_close(a, b)
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.per_size_compiles, report.as_text()


def first_piece(lengths: Tensor, x: Tensor) -> Tensor:
    made: Tensor = torch.ops.aten.split_with_sizes.default(x, lengths.tolist(), 1)[0] * 2
    return made


@pytest.mark.parametrize("wrong", [(4, 4), (4, 6), (-1, 10)], ids=str)
def test_lengths_that_are_not_the_parts_of_the_whole(wrong: tuple[int, int]) -> None:
    for fn in (
        pieces,
        lambda n, x: torch.ops.aten.split_with_sizes.default(x, n.tolist(), 1)[0] * 2,
    ):
        compiled = dovetail.compile(fn, fullgraph=True)
        compiled(torch.tensor([4, 5]), torch.randn(3, 9))
        with pytest.raises(RuntimeError):
            compiled(torch.tensor(wrong), torch.randn(3, 9))


def test_as_many_numbers_as_a_tensor_of_symbolic_length_has() -> None:
    def total(x: Tensor) -> Any:
        return sum(n * 2 for n in x.tolist()) + x

    compiled = dovetail.compile(total, fullgraph=True, dynamic=True)
    for length in (2, 5):
        x = torch.arange(length)
        torch.testing.assert_close(compiled(x), total(x))


def row(x: Tensor, n: Tensor) -> Tensor:
    x.add_(1)
    return x[n.item()] * 2


def column(x: Tensor, n: Tensor) -> Tensor:
    x.add_(1)
    return x[:, n.item() + x.shape[0]] * 2


def written_row(x: Tensor, n: Tensor) -> Tensor:
    y = x.add_(1) * 2
    y[n.item()] = 3.0
    return y


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [row, column, written_row])
def test_a_number_out_of_bounds_is_the_error_of_an_index(
    function: Callable[..., Any], dynamic: bool
) -> None:
    """The frame, which has written to its input, cannot run again for the program's error."""
    compiled = dovetail.compile(function, fullgraph=True, dynamic=dynamic)
    inside = torch.tensor(-3)
    assert torch.equal(compiled(torch.ones(4, 5), inside), function(torch.ones(4, 5), inside))
    for out in (torch.tensor(5), torch.tensor(-10)):
        with pytest.raises(IndexError) as expected:
            function(torch.ones(4, 5), out)
        with pytest.raises(IndexError) as found:
            compiled(torch.ones(4, 5), out)
        assert str(found.value).startswith(str(expected.value))
