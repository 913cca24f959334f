"""Sizes that change from call to call: where results lie, and what shares memory with what."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_a_crop_of_what_lies_transposed_lies_as_eagers(backend: str) -> None:
    """Eager clones what is only cropped, in its order; the amounts are symbolic."""

    def crop(x: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
        y = nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, before, after))
        return y, y.transpose(1, 2).reshape(x.shape[0], -1).sin()

    run = dovetail.compile(crop, backend=backend)
    for size, before, after in ((9, -2, -2), (12, -3, -4), (13, -5, -2), (14, 2, -4), (15, -2, 3)):
        x = torch.randn(2, 4, size, 5)
        for mine, wanted in zip(run(x, before, after), crop(x, before, after), strict=True):
            assert mine.stride() == wanted.stride()
            torch.testing.assert_close(mine, wanted)


def _turned(x: Tensor) -> Tensor:
    x.t_()
    return x.mul_(x.shape[0]) + x.shape[1]


def _turned_behind_autograd(x: Tensor) -> Tensor:
    x.transpose_(0, 1)
    return x.data.mul_(0.5)


def _row_after_the_turn(x: Tensor) -> Tensor:
    row = x[0]
    x.t_()
    return row.index_copy_(0, torch.tensor([0, row.shape[0] - 1]), row[:2].clone())


def _longer(x: Tensor) -> Tensor:
    x.unsqueeze_(1)
    return torch.arange(x.shape[0]) + x.sum((1, 2))


@pytest.mark.parametrize("fn", [_turned, _turned_behind_autograd, _row_after_the_turn, _longer])
def test_inputs_that_change_their_shape(fn: Callable[[Tensor], Tensor]) -> None:
    """Sizes are those of the time when they are asked; what is compiled is for what was given."""
    compiled = dovetail.compile(fn, dynamic=True)
    for shape in ((4, 4), (2, 3), (5, 2)):
        ours = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
        theirs = ours.clone()
        result, expected = compiled(ours), fn(theirs)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("dtype", [torch.int32, torch.complex64])
def test_elements_of_what_is_expanded_as_another_type(dtype: torch.dtype) -> None:
    """The library's views of copies lie as the copies do."""

    def fn(x: Tensor) -> Tensor:
        return x.view(dtype) if dtype is torch.int32 else torch.view_as_complex(x)

    compiled = dovetail.compile(fn, dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 2).expand(4, size, 2)
        assert torch.equal(compiled(x), fn(x))


@pytest.mark.parametrize("backend", ["aot_eager", "dovetail"])
def test_places_in_storages_of_inputs_that_begin_elsewhere(backend: str) -> None:
    def read(x: Tensor) -> Tensor:
        return x.as_strided((2, 2), (2, 1), 1) * 2

    def written(x: Tensor) -> Tensor:
        x.clamp_(-1, 1)
        x.as_strided_((2, 2), (2, 1), 4)
        return x.mul_(2)

    for fn in (read, written):
        compiled = dovetail.compile(fn, dynamic=True, backend=backend)
        for start in (0, 1, 2):
            ours = torch.arange(16.0).view(4, 4) / 4
            theirs = ours.clone()
            assert torch.equal(compiled(ours[start:]), fn(theirs[start:]))
            assert torch.equal(ours, theirs)


def test_a_size_that_happens_to_be_one_is_broadcast() -> None:
    """Its stride does not tell how results lie."""

    def fn(x: Tensor) -> Tensor:
        part = x.squeeze().unflatten(-2, (-1, 2)).diagonal(0, 1, 0)
        return torch.where(part > x, part, x)

    compiled = dovetail.compile(fn, dynamic=True)
    for width in (3, 5):
        x = torch.randn(width, 1, 2).transpose(0, 2)
        assert torch.equal(compiled(x), fn(x))
        assert compiled(x).stride() == fn(x).stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_old_contents_of_an_input_with_gaps_are_kept_without_them(dynamic: bool) -> None:
    """The backward needs what the input held before it was overwritten."""

    def fn(weight: Tensor, x: Tensor) -> None:
        x.relu_()
        x.mul_(weight)

    def gradient(call: Callable[..., None], rows: int) -> Tensor:
        weight = torch.arange(4.0 * rows).view(rows, 4).requires_grad_()
        x = torch.arange(8.0 * rows).view(rows, 8)[:, ::2] - 6
        call(weight, x)
        (x * (1 + weight.detach())).sum().backward()
        assert weight.grad is not None
        return weight.grad

    compiled = dovetail.compile(fn, dynamic=dynamic)
    for rows in (3, 5):
        assert torch.equal(gradient(compiled, rows), gradient(fn, rows))


def _every_other_of_a_diagonal(x: Tensor) -> Tensor:
    return (x * 2)[:2].diagonal()[::2][None]


def _scattered_into_gaps(x: Tensor) -> Tensor:
    return x[..., ::2].slice_scatter(x[:1, :, ::2] + 1, 0, 0, 1)


def _scattered_into_gaps_of_none(x: Tensor) -> Tensor:
    return _scattered_into_gaps(x)[:, 4:]


@pytest.mark.parametrize(
    "fn", [_every_other_of_a_diagonal, _scattered_into_gaps, _scattered_into_gaps_of_none]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_results_of_any_size_keep_the_gaps_between_their_elements(
    fn: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    compiled = dovetail.compile(fn)
    for sizes in ((4, 4, 6), (5, 3, 4), (2, 9, 14), (5, 6, 16)):
        x = torch.arange(math.prod(sizes)).remainder(7).view(sizes).to(dtype)
        wanted, got = fn(x), compiled(x)
        assert torch.equal(got, wanted)
        if wanted.numel():
            assert got.stride() == wanted.stride()


def test_what_only_one_element_makes_contiguous_is_not_copied() -> None:
    """The strides of a size that happens to be 1, or 0, in this call say nothing."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        own = x.clone()
        diagonal = own.diagonal(1, 1, 0)
        return own, diagonal.contiguous(), own[1:, 1:].contiguous()

    compiled = dovetail.compile(fn, dynamic=True)
    for rows, columns in ((2, 3), (2, 2), (4, 2), (5, 5), (3, 6), (2, 7)):
        x = torch.randn(rows, columns)
        expected, got = fn(x), compiled(x)
        for e, g in zip(expected, got, strict=True):
            torch.testing.assert_close(g, e, rtol=0, atol=0)
            assert g.stride() == e.stride()
            assert g.data_ptr() - got[0].data_ptr() == e.data_ptr() - expected[0].data_ptr() or (
                g.untyped_storage().data_ptr() != got[0].untyped_storage().data_ptr()
                and e.untyped_storage().data_ptr() != expected[0].untyped_storage().data_ptr()
            )


def test_windows_of_any_number_are_written_with_gradients() -> None:
    def fn(x: Tensor) -> Tensor:
        own = x * 1
        own.t().unfold(0, 1, 2).mul_(3)
        own.unfold(1, 2, 2).add_(1)
        return own

    compiled = dovetail.compile(fn, dynamic=True)
    for shape in ((2, 3), (4, 6), (3, 7)):
        given = [torch.arange(math.prod(shape), dtype=torch.float32).view(shape) for _ in range(2)]
        results = [f(x.requires_grad_()) for f, x in zip((fn, compiled), given, strict=True)]
        for result in results:
            result.square().sum().backward()
        assert torch.equal(*results)
        assert torch.equal(given[0].grad, given[1].grad)


def test_inputs_that_share_memory_have_a_graph_for_each_size() -> None:
    """As many bytes in all, and the same beginnings: the sizes tell them apart."""

    def fn(x: Tensor, part: Tensor) -> Tensor:
        x.fill_(part[0, 0])
        return torch._neg_view(x).transpose(0, 1).clone()

    compiled = dovetail.compile(fn, dynamic=True)
    for shape in ((3, 4), (2, 6), (12, 1), (3, 4), (6, 2)):
        results = []
        for call in (compiled, fn):
            x = torch.arange(12).view(shape) + 1
            results.append((call(x, x.detach()[:1]), x))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_an_input_that_is_no_part_of_another_any_more() -> None:
    """What would have to be assumed of symbolic sizes, when the guards are made, is compiled for
    each call's sizes."""

    def fn(x: Tensor, part: Tensor, factor: int) -> Tensor:
        x.mul_(x)
        return part.transpose(0, -1).clone() * factor

    compiled = dovetail.compile(fn, dynamic=True)
    for size, factor, shared in ((4, 2, True), (4, 3, False), (6, 4, False), (6, 4, False)):
        results = []
        for call in (compiled, fn):
            x = torch.arange(1.0 * size * size).view(size, -1).requires_grad_().clone()
            part = x.detach()[:2] if shared else torch.ones(2, size)
            results.append((call(x, part, factor), x))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert "memory lay in new ways: 2 compilations" in dovetail.report(compiled).as_text()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_views_by_strides_of_inputs_that_begin_elsewhere(start: int, grad: bool) -> None:
    """They are taken again of each call's input, from where that begins."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.as_strided((3,), (1,)), x[1:].as_strided((2, 2), (1, 2)), x * 2

    def reshaped(x: Tensor) -> tuple[Tensor, ...]:
        x.as_strided_((3,), (1,))
        return (x.view_as(x),)

    for call in (fn,) if grad else (fn, reshaped):
        compiled = dovetail.compile(call, dynamic=True)
        for size, offset in ((4, start), (4, 4), (5, 1), (4, 0)):
            results = []
            for run in (compiled, call):
                leaf = torch.arange(40.0, requires_grad=grad)
                x = leaf[offset : offset + size * size].view(size, size)
                found = run(x)
                gradients = torch.autograd.grad(found[0].sum(), leaf) if grad else ()
                results.append((*found, x, *gradients))
            torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
            assert [t.storage_offset() for t in results[0]] == [
                t.storage_offset() for t in results[1]
            ]


def _added(x: Tensor, e: Tensor, m: Tensor) -> Tensor:
    keys = e.view(x.shape[0], -1, 8)
    return x @ keys.mT + m.view(x.shape[0], -1, m.shape[-1])


def _attended(x: Tensor, e: Tensor, m: Tensor) -> Tensor:
    keys = e.view(x.shape[0], -1, x.shape[-1])
    mask = m.repeat_interleave(2, dim=0).view(x.shape[0], 2, -1, m.shape[-1])
    q, k = (t.unflatten(2, (2, -1)).permute(0, 2, 1, 3) for t in (x, keys))
    return nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)


@pytest.mark.parametrize("fn", [_added, _attended])
@pytest.mark.parametrize("trains", [False, True])
def test_a_computed_size_of_one_is_broadcast(fn: Callable[..., Tensor], trains: bool) -> None:
    """The size that `-1` stands for is 1, in terms of a symbol that another one replaces later."""
    compiled = dovetail.compile(fn, dynamic=True, fullgraph=True)
    for batch in (2, 7, 5):
        given = [torch.randn(batch, n, k) for n, k in ((16, 8), (5, 8), (1, 5))]
        found = []
        for call in (compiled, fn):
            inputs = [x.clone().requires_grad_(trains) for x in given]
            y = call(*inputs)
            found.append([y, *(torch.autograd.grad(y.square().sum(), inputs) if trains else ())])
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert dovetail.report(compiled).graphs == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "dovetail"])
def test_how_long_the_last_piece_is_takes_no_graph(backend: str) -> None:
    """It is as long as the others in some calls, or of one element."""

    def chunks(x: Tensor) -> list[Tensor]:
        return [piece * 2 for piece in x.chunk(3, 1)]

    def swapped(x: Tensor) -> Tensor:
        return torch.cat(x.chunk(2, 1)[::-1], 1)

    for fn in (chunks, swapped):
        compiled = dovetail.compile(fn, backend=backend)
        for width in (6, 7, 9, 12, 5, 16, 11, 33):
            x = torch.randn(3, width)
            for got, wanted in zip(compiled(x), fn(x), strict=True):
                assert torch.equal(got, wanted)
                assert got.stride() == wanted.stride()
        assert dovetail.report(compiled).graphs == 2
