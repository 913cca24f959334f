"""Operators through the whole pipeline: a sample of PyTorch's operator database, custom operators,
and what the database showed to go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from sweep_operators import operators, stand_in_for_expecttest, sweep_one
from torch import Tensor

import dovetail

# One or two of each family; the sweep's command does them all.
SAMPLE = [
    ("add", "float32"), ("hypot", "float32"), ("nn.functional.elu", "float32"),
    ("logit", "float32"), ("cumprod", "float32"), ("amax", "float32"), ("var_mean", "float32"),
    ("nn.functional.layer_norm", "float32"), ("nn.functional.interpolate.nearest", "float32"),
    ("nn.functional.embedding_bag", "float32"), ("linalg.svd", "float32"),
    ("linalg.eig", "float32"), ("fft.rfftn", "float32"), ("fft.hfft2", "float32"),
    ("masked.amax", "float32"), ("as_strided_scatter", "float32"), ("take_along_dim", "float32"),
    ("resize_", "float32"), ("tanh", "complex64"), ("linalg.vector_norm", "complex64"),
    ("sgn", "complex64"), ("bitwise_xor", "int64"), ("logical_or", "bool"),
    ("softmax", "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), SAMPLE, ids=[f"{n}-{d}" for n, d in SAMPLE])
def test_sample(name: str, dtype: str) -> None:
    row = sweep_one(name, operators()[name], dtype, "graphs", 8)
    assert row.outcome == "ok" and row.samples and row.graphs == 1, row


@pytest.mark.parametrize("name", ["sum", "add", "nn.functional.elu"])
def test_sample_of_kernels(name: str) -> None:
    row = sweep_one(name, operators()[name], "float32", "kernels", 1)
    assert row.outcome == "ok" and row.kernels, row


@pytest.mark.parametrize("name", ["nonzero", "allclose", "equal", "cov", "corrcoef"])
def test_what_depends_on_data_is_captured(name: str) -> None:
    row = sweep_one(name, operators()[name], "float32", "graphs", 2)
    assert row.outcome == "ok" and row.graphs <= 2, row


COVARIANCES: list[Callable[[Tensor], Tensor]] = [
    torch.cov, torch.corrcoef, lambda x: x.cov(correction=0), lambda x: x[0].cov(),
    lambda x: x.mT.corrcoef(), lambda x: torch.cov(input=x), lambda x: x.cov(correction=20),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.int64])
@pytest.mark.parametrize("number", range(len(COVARIANCES)))
def test_covariances_without_weights_do_not_depend_on_data(number: int, dtype: torch.dtype) -> None:
    fn = COVARIANCES[number]
    x = (torch.randn(5, 8, dtype=torch.complex128) * 3).to(dtype)
    torch.testing.assert_close(dovetail.compile(fn, fullgraph=True)(x), fn(x), equal_nan=True)


NO_COVARIANCE: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [
    (torch.cov, torch.ones(2, 3, 4)), (torch.corrcoef, torch.ones(2, 3, 4)),
    (torch.cov, torch.ones(2, 3, dtype=torch.bool)),
    (lambda x: x.cov(correction=1.5), torch.ones(3)),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(NO_COVARIANCE)))
def test_covariances_that_eager_refuses(number: int) -> None:
    fn, x = NO_COVARIANCE[number]
    with pytest.raises((RuntimeError, TypeError)) as eager:
        fn(x)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value)[:40])):
        dovetail.compile(fn)(x)


class Operator:
    """An operator of the database, of one sample."""

    supports_autograd = False
    backward_dtypes: tuple[torch.dtype, ...] = ()

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.name = function.__name__

    def get_op(self) -> Callable[[Tensor], Tensor]:
        return self.function

    def sample_inputs(self, *args: object, **kwargs: object) -> Iterator[object]:
        stand_in_for_expecttest()
        from torch.testing._internal.opinfo.core import SampleInput

        yield SampleInput(torch.ones(3))  # type: ignore[no-untyped-call]


def test_a_branch_on_data_breaks_with_a_reason() -> None:
    def branching(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x

    row = sweep_one("branching", Operator(branching), "float32", "graphs", 1)
    assert row.outcome == "break" and "a branch on a tensor" in row.text, row


def test_the_sweep_sees_a_wrong_result() -> None:
    def changing(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x + 2

    row = sweep_one("changing", Operator(changing), "float32", "graphs", 1)
    assert row.outcome == "wrong" and "3 / 3" in row.text, row


# --- what went wrong -----------------------------------------------------------------------------


def test_a_norm_without_gradient_still_requires_grad() -> None:
    x = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    counted = dovetail.compile(lambda x: torch.norm(x, 0), backend="aot_eager")(x)
    assert counted.item() == 2 and counted.requires_grad and not counted.is_leaf
    assert torch.autograd.grad(counted, x, allow_unused=True) == (None,)


def test_a_write_through_a_conjugate() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y.conj().mul_(2j)
        return y

    x = torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(dovetail.compile(f, fullgraph=True, backend="aot_eager")(x), f(x))


# --- custom operators ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def custom() -> Iterator[object]:
    library = torch.library.Library("dovetail_sweep_test", "DEF")
    library.define("tripled(Tensor x) -> Tensor")
    library.impl("tripled", lambda x: x * 3, "CPU")
    torch.library.register_fake(
        "dovetail_sweep_test::tripled", lambda x: torch.empty_like(x), lib=library
    )
    library.define("no_fake(Tensor x) -> Tensor")
    library.impl("no_fake", lambda x: x + 5, "CPU")
    library.define("add_to(Tensor x, Tensor(a!) y) -> ()")
    library.impl("add_to", lambda x, y: (y.add_(x), None)[1], "CPU")
    yield torch.ops.dovetail_sweep_test
    library._destroy()


def test_custom_operator_is_a_library_call(custom: object) -> None:
    tripled = custom.tripled  # type: ignore[attr-defined]
    compiled = dovetail.compile(lambda x: tripled(x + 1).sin(), fullgraph=True)
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), (3 * (x + 1)).sin())
    assert dovetail.report(compiled).extern_ops == (("dovetail_sweep_test::tripled", 1),)


def test_custom_operator_that_no_graph_can_hold(custom: object) -> None:
    op = custom.no_fake  # type: ignore[attr-defined]

    def f(x: Tensor) -> Tensor:
        result: Tensor = op(x * 2) + 1
        return result

    x = torch.randn(5)
    torch.testing.assert_close(dovetail.compile(f)(x), f(x))
    with pytest.raises(dovetail.CaptureError, match="no_fake"):
        dovetail.compile(f, fullgraph=True)(x)


def test_custom_operator_that_only_writes(custom: object) -> None:
    op = custom.add_to  # type: ignore[attr-defined]

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        op(x, y)
        return y * 2

    x = torch.randn(5)
    torch.testing.assert_close(dovetail.compile(f, fullgraph=True)(x), f(x))


@pytest.mark.parametrize(
    ("backend", "mode", "padding"),
    [("aot_eager", mode, padding) for mode in ("sum", "mean", "max") for padding in (None, 2)]
    + [("dovetail", "mean", 2), ("dovetail", "max", None)],
)
def test_gradients_of_bags(backend: str, mode: str, padding: int | None) -> None:
    def call(
        table: Tensor, places: Tensor, offsets: Tensor, own: Tensor | None, last: bool, often: bool
    ) -> Tensor:
        return torch.nn.functional.embedding_bag(
            places, table, offsets, mode=mode, padding_idx=padding, per_sample_weights=own,
            include_last_offset=last, scale_grad_by_freq=often and mode != "max",
        )  # fmt: skip

    old = torch.__version__ < "2.15"
    generator = torch.Generator().manual_seed(1)
    compiled = dovetail.compile(call, fullgraph=True, backend=backend)
    # (some bags are empty, one has nothing but padding)
    for starts, kind in (([0, 3, 3, 5, 5, 12], torch.int64), ([0, 3, 3, 5, 11], torch.int32),
                         ([0, 3, 4, 4], torch.int64)):  # fmt: skip
        places = torch.randint(0, 9, (12,), generator=generator, dtype=kind)
        places[3:5] = 2
        offsets = torch.tensor(starts, dtype=kind)
        for weighed in (False, True) if mode == "sum" and len(starts) != 4 else (False,):
            table = torch.randn(9, 4, generator=generator, requires_grad=True)
            own = torch.randn(12, generator=generator, requires_grad=True) if weighed else None
            leaves = [table] if own is None else [table, own]
            found = []
            often = len(starts) == 4
            for function in (compiled, call):
                # (up to PyTorch 2.14 eager counts other places than it divides the rows of)
                by_hand = often and mode != "max" and function is call and old
                result = function(table, places, offsets, own, len(starts) == 6, often > by_hand)
                seed = torch.arange(1.0, result.numel() + 1).view(result.shape)
                slope, *rest = torch.autograd.grad(result, leaves, seed)
                if by_hand:
                    counts = torch.bincount(places, minlength=9)
                    slope = slope / counts.clamp(min=1)[:, None]
                found.append((result, slope, *rest))
            torch.testing.assert_close(found[0], found[1])


def test_counts_in_a_kernel_are_exact() -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    compiled = dovetail.compile(lambda x: torch.histc(x * 2, 100, -1.3, 2.7), fullgraph=True)
    assert torch.equal(compiled(x), torch.histc(x * 2, 100, -1.3, 2.7))


def test_counts_as_far_as_the_numbers_reach() -> None:
    """Which the data say: also that there is no such range."""
    x = torch.randn(500, generator=torch.Generator().manual_seed(3))
    compiled = dovetail.compile(lambda x: torch.histc(x * 2, 17), fullgraph=True)
    for own in (x, x * 0 + 3, x.abs().log()):
        assert torch.equal(compiled(own), torch.histc(own * 2, 17))
    for wrong in (torch.inf, -torch.inf, torch.nan):
        with pytest.raises(RuntimeError, match="not finite"):
            compiled(torch.cat([x[1:], torch.tensor([wrong])]))


def test_derivatives_of_functions_that_loop() -> None:
    def fn(a: Tensor, x: Tensor) -> Tensor:
        zeta = torch.special.zeta(a + 1.5, x)
        return torch.igamma(a, x) + torch.igammac(a, x * 2) * 3 + zeta + torch.polygamma(22, x)

    generator = torch.Generator().manual_seed(5)
    a, x = (torch.rand(40, generator=generator, dtype=torch.float64) * 9 + 0.1 for _ in range(2))
    x.requires_grad_()
    compiled = dovetail.compile(fn, fullgraph=True)
    results = [torch.autograd.grad(f(a, x).sum(), x) for f in (compiled, fn)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=0)


FACTORIES: dict[str, Callable[[Tensor], Tensor]] = {
    "full": lambda t: torch.full((3, 4), 2, out=t),
    "zeros": lambda t: torch.zeros(3, 4, out=t),
    "ones": lambda t: torch.ones((3, 4), out=t),
    "arange": lambda t: torch.arange(4, out=t[0]),
    "arange.start_step": lambda t: torch.arange(1, 9, 2, out=t[1]),
    "linspace": lambda t: torch.linspace(0, 1, 4, out=t[0]),
    "logspace": lambda t: torch.logspace(0, 1, 4, out=t[0]),
    "eye": lambda t: torch.eye(3, 4, out=t),
    "eye of a part": lambda t: torch.eye(3, out=t[:, :3]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FACTORIES)
def test_factories_with_out(name: str, dtype: torch.dtype) -> None:
    function = FACTORIES[name]
    for layout in (lambda t: t, lambda t: t.t()):

        def call(x: Tensor, layout: Callable[[Tensor], Tensor] = layout) -> tuple[Tensor, Tensor]:
            y = x * 1
            result = function(layout(y))
            function(layout(x))
            return y, result + 1

        found = []
        for run in (dovetail.compile(call, fullgraph=True, backend="aot_eager"), call):
            x = torch.full(layout(torch.empty(3, 4)).shape, 7, dtype=dtype)
            found.append((*run(x), x))
        torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


# The shapes of what is written, and the call.
Shapes = tuple[tuple[int, ...], ...]
WRITTEN: dict[str, tuple[Shapes, Callable[..., object]]] = {
    "kron": (((2, 4),), lambda x, o: torch.kron(x[:1, :2], x[:2, :2], out=o)),
    "matrix_rank": (((),), lambda x, o: torch.linalg.matrix_rank(x, out=o)),
    "matrix_rank of one of many": (
        ((1,),), lambda x, o: torch.linalg.matrix_rank(x[None], tol=9.0, out=o),
    ),
    "chain_matmul": (((3, 3),), lambda x, o: torch.chain_matmul(x, x, x, out=o)),
    "sum": (((3,),), lambda x, o: torch.sum(x, 1, out=o)),
    "prod": (((3,),), lambda x, o: torch.prod(x, 1, out=o)),
    "nansum": (((3,),), lambda x, o: torch.nansum(x, 1, out=o)),
    "cumsum": (((3, 3),), lambda x, o: torch.cumsum(x, 1, out=o)),
    "cumprod": (((3, 3),), lambda x, o: torch.cumprod(x, 1, out=o)),
    "std": (((3,),), lambda x, o: torch.std(x, 1, out=o)),
    "var": (((3,),), lambda x, o: torch.var(x, 0, out=o)),
    "native_batch_norm": (
        ((3, 3), (3,), (3,)),
        lambda x, *o: torch.native_batch_norm(
            x, None, None, x[0].clone(), x[1].clone(), True, 0.1, 1e-5, out=o
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.filterwarnings("ignore")
def test_written_to_out(name: str, dtype: torch.dtype) -> None:
    """What is computed lies in `out`; some compute in its dtype, some refuse it."""
    shapes, function = WRITTEN[name]

    def call(x: Tensor, *given: Tensor) -> None:
        function(x, *given)

    x = torch.rand(3, 3, generator=torch.Generator().manual_seed(3)) * 2 + 0.3
    found = []
    for run in (dovetail.compile(call, fullgraph=True, backend="aot_eager"), call):
        given = [torch.zeros(shape, dtype=dtype) for shape in shapes]
        try:
            run(x, *given)
        except (RuntimeError, NotImplementedError):
            given = []
        found.append(given)
    torch.testing.assert_close(found[0], found[1])


# --- what eager refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [3, -1])
def test_classes_out_of_range(bad: int) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(x, 3).float() * 2

    compiled = dovetail.compile(fn, fullgraph=True)
    classes = torch.tensor([[0, 1, 2], [2, 2, 1]]).t()
    got, wanted = compiled(classes), fn(classes)
    assert torch.equal(got, wanted) and got.stride() == wanted.stride()
    with pytest.raises(RuntimeError, match="Class values must be"):
        compiled(torch.tensor([[0, bad, 2], [2, 2, 1]]).t())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (4, 1), (4,)])
def test_gaussian_losses(shape: tuple[int, ...], full: bool) -> None:
    """The check of the variances is in the graph."""
    torch.manual_seed(0)
    loss = torch.nn.GaussianNLLLoss(full=full)
    compiled = dovetail.compile(loss, fullgraph=True)
    x, y = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    variances = torch.rand(shape)
    variances.view(-1)[0] = 1e-9  # (clamped, and given the gradient of the clamped)
    variances.requires_grad_()
    results = [f(x, y, variances) for f in (loss, compiled)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(r, (x, y, variances)) for r in results]
    torch.testing.assert_close(*gradients)
    with pytest.raises(RuntimeError, match="negative"):
        compiled(x, y, variances - 1)
    with pytest.raises(ValueError, match="incorrect size"):
        dovetail.compile(loss)(x, y, torch.rand(4, 3))


def test_one_hot_of_as_many_classes_as_a_size_says() -> None:
    compiled = dovetail.compile(
        lambda x, y: torch.nn.functional.one_hot(x, y.shape[0]), fullgraph=True, dynamic=True
    )
    for n in (5, 7):
        assert torch.equal(compiled(torch.tensor([0, 4]), torch.ones(n)), torch.eye(n)[[0, 4]])
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        compiled(torch.tensor([0, 9]), torch.ones(8))


@pytest.mark.parametrize("bad", [1.5, -0.1, float("nan")])
def test_cross_entropy_of_what_is_no_probability(bad: float) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy(x * 1, y)

    compiled = dovetail.compile(fn, fullgraph=True)
    x, y = torch.tensor([0.0, 1.0, 0.3], requires_grad=True), torch.tensor([0.0, 0.5, 1.0])
    torch.testing.assert_close(compiled(x, y), fn(x, y))
    wrong = torch.tensor([0.5, bad, 0.5])
    with pytest.raises(RuntimeError, match="all elements of input should be between"):
        compiled(wrong.requires_grad_(), y)
    with pytest.raises(RuntimeError, match="all elements of target should be between"):
        compiled(x, wrong.detach())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64], ids=str)
@pytest.mark.parametrize("include", [False, True])
def test_means_of_whole_numbers_wrap_as_eagers(dtype: torch.dtype, include: bool) -> None:
    """Sum and count alike: 255 elements and the one that is there are none in eight bits."""

    def fn(x: Tensor, where: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        by_place = x.scatter_reduce(0, where, source, "mean", include_self=include)
        return by_place, x.index_reduce(0, where, source, "mean", include_self=include)

    compiled = dovetail.compile(fn, fullgraph=True)
    where = torch.tensor([0, 0, 1, 1, 1] + [2] * 255)
    source = torch.tensor([100, 100, -3, -4, -100] + [3] * 255).to(dtype)
    x = torch.tensor([100, -7, 5, 4]).to(dtype)
    torch.testing.assert_close(compiled(x, where, source), fn(x, where, source))


@pytest.mark.parametrize("alpha", [0, 1, 3, -2])
def test_truth_values_scaled_and_added(alpha: int) -> None:
    def fn(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return torch.add(a, b, alpha=alpha), torch.add(a, True, alpha=alpha), a.clone().add_(b)

    a = torch.tensor([True, True, False, False])
    b = torch.tensor([True, False, True, False])
    torch.testing.assert_close(dovetail.compile(fn, fullgraph=True)(a, b), fn(a, b))


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "max_pool2d": lambda x: torch.nn.functional.max_pool2d(x, 2),
    "max_pool3d": lambda x: torch.nn.functional.max_pool3d(x[None], 2),
    "adaptive_max_pool2d": lambda x: torch.nn.functional.adaptive_max_pool2d(x, 2),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "addcmul": lambda x: torch.addcmul(x, x, x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_kernel_for_truth_values(name: str) -> None:
    x = torch.ones(2, 4, 4, dtype=torch.bool)
    for function in (REFUSED[name], dovetail.compile(REFUSED[name])):
        with pytest.raises(NotImplementedError, match="not implemented for 'Bool'"):
            function(x)
