"""Tensor subclasses, sparse and complex tensors: computed as eager does, or refused clearly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import dovetail


class Wrapped(Tensor):
    """A tensor around a tensor, that counts what is done to it."""

    inner: Tensor
    calls = 0

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made: Wrapped = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, dtype=inner.dtype, strides=inner.stride(),
            requires_grad=inner.requires_grad,
        )  # fmt: skip
        return made

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: Any, size: Any, stride: Any) -> Any:
        return Wrapped(inner["inner"])

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        cls.calls += 1
        inner, named = tree_map(
            lambda t: t.inner if isinstance(t, Wrapped) else t, (args, kwargs or {})
        )
        return tree_map(lambda t: Wrapped(t) if isinstance(t, Tensor) else t, func(*inner, **named))


def waves(x: Tensor) -> Tensor:
    return (x * 2).sin()


def test_a_subclass_as_an_input() -> None:
    compiled = dovetail.compile(waves)
    for call in range(2):
        before = Wrapped.calls
        found = compiled(Wrapped(torch.arange(3.0)))
        assert isinstance(found, Wrapped) and (Wrapped.calls > before) == (call == 0)
        torch.testing.assert_close(found.inner, waves(torch.arange(3.0)))
    report = dovetail.report(compiled)
    assert report.graphs == 1 and not report.breaks


def test_a_subclass_after_a_plain_tensor_and_back() -> None:
    compiled = dovetail.compile(waves)
    assert type(compiled(torch.ones(3))) is Tensor
    assert type(compiled(Wrapped(torch.ones(3)))) is Wrapped
    assert type(compiled(torch.ones(3))) is Tensor


def test_a_subclass_as_a_parameter() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    expected = layer(torch.ones(2, 3)).detach()
    layer.weight = nn.Parameter(Wrapped(layer.weight.detach()))
    found = dovetail.compile(layer)(torch.ones(2, 3))
    assert isinstance(found, Wrapped)
    torch.testing.assert_close(found.inner, expected)


def coo() -> Tensor:
    return torch.eye(3).to_sparse()


def csr() -> Tensor:
    return torch.eye(3).to_sparse_csr()


SPARSE: list[tuple[Callable[..., Any], Callable[[], Tensor]]] = [
    (lambda s, d: torch.sparse.mm(s, d) * 2, coo), (lambda s, d: (s @ d) * 2, csr),
    (lambda s, d: s.to_dense() + d, coo), (lambda s, d: (d * 2).to_sparse(), coo),
    (lambda s, d: torch.sparse.sum(s * 3, 0), coo),
    (lambda s, d: s.coalesce().values() * d[0], coo),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("number", range(len(SPARSE)))
def test_sparse(number: int) -> None:
    function, make = SPARSE[number]
    compiled = dovetail.compile(function)
    d = torch.arange(9.0).view(3, 3)
    for _ in range(2):
        found, expected = compiled(make(), d), function(make(), d)
        assert found.layout == expected.layout
        torch.testing.assert_close(found, expected)
    if dovetail.report(compiled).breaks:
        with pytest.raises(dovetail.CaptureError, match=r"sparse|layout"):
            dovetail.compile(function, fullgraph=True)(make(), d)


def test_sparse_gradients_of_an_embedding() -> None:
    table = nn.Embedding(5, 3, sparse=True)
    found = []
    for call in (dovetail.compile(table), table):
        table.weight.grad = None
        call(torch.tensor([1, 2, 2])).square().sum().backward()
        found.append(table.weight.grad)
    assert found[0] is not None and found[1] is not None and found[0].layout == torch.sparse_coo
    torch.testing.assert_close(found[0].to_dense(), found[1].to_dense())


COMPLEX: list[Callable[[Tensor], Tensor]] = [
    lambda z: (z * z.conj() + 1j).abs(), lambda z: torch.view_as_real(z * 2).sum(-1),
    lambda z: torch.fft.ifft(torch.fft.fft(z) * z).real, lambda z: (z @ z.mT.conj()).imag,
    lambda z: z.exp().angle() + z.real, lambda z: torch.complex(z.imag, z.real).abs().square(),
]  # fmt: skip


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("number", range(len(COMPLEX)))
def test_complex(number: int, lazy: bool) -> None:
    function = COMPLEX[number]
    compiled = dovetail.compile(function)
    found = []
    for call in (compiled, function):
        torch.manual_seed(0)
        leaf = torch.randn(3, 3, dtype=torch.complex128).requires_grad_()
        out = call(leaf.conj() if lazy else leaf)
        found.append((out, *torch.autograd.grad(out.sum(), leaf)))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view])
def test_results_of_lazy_views_lie_as_eagers(lazy: Callable[[Tensor], Tensor]) -> None:
    """Dimensions of one element have strides that tell what is taken for channels-last."""

    def fn(x: Tensor) -> Tensor:
        return torch.cat([lazy(x), x])

    memory = torch.randn(48, dtype=torch.complex64)
    for strides in ((6, 1, 2, 2), (6, 1, 6, 2), (0, 1, 2, 2), (6, 1, 1, 2), (6, 1, 12, 2)):
        x = memory.as_strided((2, 2, 1, 3), strides)
        got = dovetail.compile(fn)(x)
        torch.testing.assert_close(got, fn(x))
        assert got.stride() == fn(x).stride()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_a_negative_of_a_negative_has_no_gaps(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Tensor:
        torch.diagonal(x).fill_(3)
        return torch._neg_view(torch._neg_view(x).sort(0)[0]).copy_(x)

    def given() -> Tensor:
        return torch.arange(48, dtype=dtype).view(6, 8)[::2, ::2]

    got, wanted = dovetail.compile(fn)(given()), fn(given())
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride() == (4, 1)
    assert dovetail.compile(lambda x: x.neg().neg())(given()).stride() == (4, 1)


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view])
@pytest.mark.parametrize("grad", [False, True])
def test_lazy_views_of_what_lies_on_itself(lazy: Callable[[Tensor], Tensor], grad: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        z = lazy((x * 1).as_strided((2, 2), (1, 1), 1))
        w = lazy(x.as_strided((3, 2, 2), (1, 1, 0), 2))
        return z.t().clone(), z.t() * 2, z + 1, w.transpose(0, 2).clone(), w.sum(0), w * w

    found = []
    for call in (dovetail.compile(fn), fn):
        torch.manual_seed(0)
        leaf = torch.randn(4, 4, dtype=torch.complex64, requires_grad=grad)
        results = call(leaf)
        if grad:
            total = sum(((r * r.conj()).real.sum() for r in results), torch.zeros(()))
            results = (*results, *torch.autograd.grad(total, leaf))
        found.append(results)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    assert [t.stride() for t in found[0]] == [t.stride() for t in found[1]]


LAZY: list[Callable[[Tensor], Tensor]] = [
    lambda z: z.conj().imag, lambda z: z[:, 1::2].conj(), lambda z: z[:, :1].expand(4, 3).conj(),
    lambda z: z[1:, 1:3].conj().imag, lambda z: z[1:].conj(), lambda z: z.mT[:, ::2].conj().imag,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(LAZY)))
def test_lazy_inputs_with_gaps_overlaps_and_offsets(number: int) -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        return x + 1, x.mT * 2, x.clone(), x.reshape(-1)[1:], x.mT

    found = []
    for call in (dovetail.compile(several), several):
        torch.manual_seed(0)
        leaf = torch.randn(4, 4, dtype=torch.complex64).requires_grad_()
        results = call(LAZY[number](leaf))
        total = sum(((r * r.conj()).real.sum() for r in results), torch.zeros(()))
        found.append((*results, *torch.autograd.grad(total, leaf)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    assert [t.stride() for t in found[0]] == [t.stride() for t in found[1]]


WRITTEN: list[Callable[[Tensor], Tensor]] = [
    lambda z: z.real.mul_(3), lambda z: z.imag.mul_(3), lambda z: z.conj().imag.mul_(3),
    lambda z: z.imag.add_(z.real * 2),
]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("number", range(len(WRITTEN)))
def test_parts_of_a_lazy_conjugate_are_written(number: int, dynamic: bool | None) -> None:
    write = WRITTEN[number]
    found = []
    for call in (dovetail.compile(write, dynamic=dynamic), write):
        torch.manual_seed(0)
        leaf = torch.randn(3, 2, dtype=torch.complex128).requires_grad_()
        whole = (leaf * leaf).mT
        out = call(whole.conj().unsqueeze(0))
        (gradient,) = torch.autograd.grad((whole * (1 + 2j)).real.sum() + out.sum(), leaf)
        found.append((out, whole, gradient))
    torch.testing.assert_close(found[0], found[1])


def test_a_lazy_conjugate_is_not_seen_as_two_numbers() -> None:
    def seen(z: Tensor) -> Tensor:
        return torch.view_as_real(z.conj()) * 2

    for call in (seen, dovetail.compile(seen)):
        with pytest.raises(RuntimeError, match="unresolved conjugated"):
            call(torch.randn(3, dtype=torch.complex64))


# Dtypes that kernels of ours do not hold: moved, chosen and converted by eager's own.
RARE = [
    torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e8m0fnu,
]  # fmt: skip


@pytest.mark.parametrize("dtype", RARE, ids=str)
def test_rare_dtypes_are_moved_and_converted(dtype: torch.dtype) -> None:
    def moved(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return (
            x.t(), x.reshape(4, 5).t().contiguous(), x[1:], x.t().clone(), torch.zeros_like(x),
            x.float() * 2, (x.float() + 1).to(dtype), x.view(torch.uint8),
        )  # fmt: skip

    def chosen(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return (torch.where(m, x, x.flip(0)),)

    x = torch.arange(20).reshape(5, 4).float().to(dtype)
    m = torch.arange(20).reshape(5, 4) % 3 == 0
    for function in (moved, chosen) if dtype not in RARE[3:] else (moved,):
        try:
            wanted = function(x, m)
        except NotImplementedError:  # eager's `where` up to PyTorch 2.14: ours has no other
            assert function is chosen and torch.__version__ < "2.15"
            with pytest.raises(NotImplementedError, match="where"):
                dovetail.compile(function)(x, m)
            continue
        for ours, theirs in zip(dovetail.compile(function)(x, m), wanted, strict=True):
            assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
            torch.testing.assert_close(ours.float(), theirs.float(), equal_nan=True)


BYTES: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.all(1), lambda x: x.any(1), lambda x: x.all(-1), lambda x: x.any(),
    lambda x: (x.float() * 3 - 300).to(torch.uint8), lambda x: (x.double() - 99).to(torch.int8),
    lambda x: nn.functional.interpolate(x, size=(6, 15), mode="bicubic"),
    lambda x: nn.functional.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(BYTES)))
def test_bytes(number: int) -> None:
    """Truths of bytes are bytes; floats beyond a byte give its low bits; images keep to 0..255."""
    torch.manual_seed(0)
    x = torch.randint(0, 255, (2, 3, 6, 8), dtype=torch.uint8)
    x[0, 0] = 0
    found, expected = dovetail.compile(BYTES[number])(x), BYTES[number](x)
    assert found.dtype == expected.dtype and torch.equal(found, expected)


class OnMeta(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y.t() * 2


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_meta_device(dynamic: bool) -> None:
    def some(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty(3, x.size(0), device="meta").sin() + 1, x + 1

    compiled = dovetail.compile(some, fullgraph=True, dynamic=dynamic)
    for rows in (2, 5):
        found, plain = compiled(torch.ones(rows))
        assert found.is_meta and found.shape == (3, rows)
        torch.testing.assert_close(plain, torch.full((rows,), 2.0))
    model = OnMeta().to("meta")
    compiled = dovetail.compile(model, fullgraph=True, dynamic=dynamic)
    for rows in (2, 5):
        x = torch.empty(rows, 4, device="meta", requires_grad=True)
        found = compiled(x)
        assert found.is_meta and found.stride() == model(x).stride()
        (gradient,) = torch.autograd.grad(found.sum(), x)
        assert gradient.is_meta and gradient.shape == x.shape


def test_tensors_of_inference_mode_that_no_derivative_needs() -> None:
    call = dovetail.compile(lambda x, w: x + w.sin(), backend="aot_eager")
    with torch.inference_mode():
        made = torch.arange(3.0)
    slopes = []
    for x in (made, made.clone(), made):
        w = torch.ones(3, requires_grad=True)
        call(x, w).sum().backward()
        slopes.append(w.grad)
    torch.testing.assert_close(slopes, [torch.ones(3).cos()] * 3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        dovetail.compile(lambda x, w: x * w, backend="aot_eager")(
            made, torch.ones(3).requires_grad_()
        )


def in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x + 1


@pytest.mark.parametrize("make", [Wrapped, lambda x: x.as_subclass(nn.Parameter)])
def test_a_subclass_that_is_made_in_inference_mode(make: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        return in_inference_mode(make(x * 2))

    got, expected = dovetail.compile(function)(torch.ones(3)), function(torch.ones(3))
    assert type(got) is type(expected) and got.is_inference() and expected.is_inference()
