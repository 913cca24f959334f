"""Dtypes that eager's kernels refuse are refused on fakes, with eager's class of error and text."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from dovetail_prims import FakeMode, FakeTensor, from_real
from dovetail_prims.shape_rules import dtype_checks
from torch import Tensor

F = torch.nn.functional
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16,
          torch.float32, torch.float64, torch.complex64)  # fmt: skip
INDEX = torch.tensor([0, 1, 2])

UNARY = {
    "relu": F.relu, "relu_": F.relu_, "abs": torch.abs, "argmax": torch.argmax,
    "amax": torch.amax, "mean": torch.mean, "cumsum_": lambda x: x.cumsum_(0), "neg": torch.neg,
    "exp_": torch.exp_, "softmax": lambda x: x.softmax(0), "floor": torch.floor,
    "sort": torch.sort, "topk": lambda x: x.topk(1), "median": torch.median,
    "out": lambda x: torch.exp(x, out=torch.empty(3, dtype=torch.int64)),
    "out of sign": lambda x: torch.neg(x, out=torch.empty(3, dtype=torch.float32)),
    "of a list": lambda x: torch._foreach_exp_([x]),
    "norm": lambda x: F.layer_norm(x[None], [3], x, x), "gelu": F.gelu,
    "drawn": lambda x: torch.rand_like(x), "into": lambda x: x.normal_(),
    "alpha": lambda x: torch.add(x, x, alpha=0.5), "product": lambda x: x[:, None] @ x[None],
    "inner": lambda x: torch.dot(x, x), "less": lambda x: x < 1j, "shift": lambda x: x << 2.5,
    "bag": lambda x: F.embedding_bag(INDEX[None], x[:, None]), "svd": lambda x: torch.svd(x[None]),
    "convolution": lambda x: F.conv1d(x[None], x[None, None]), "histc": lambda x: torch.histc(x),
    "resized": lambda x: F.interpolate(x[None, None], 17, mode="linear"), "fft": torch.fft.ihfft,
    "resized, antialiased": lambda x: torch.ops.aten._upsample_bilinear2d_aa(
        x[None, None, None].expand(1, 1, 3, 3), [17, 18], False, 1.7, 0.9),
    "segments": lambda x: torch.segment_reduce(x, "sum", lengths=INDEX),
    "group norm": lambda x: F.group_norm(x[None], 3), "threshold": lambda x: F.threshold(x, 1, -2),
    "range": lambda x: torch.linspace(-2.0, torch.tensor(3), 1, dtype=x.dtype),
    "places": lambda x: torch.tril_indices(3, 3, dtype=x.dtype), "replicated": lambda x: F.pad(
        x[None], (1, 1), mode="replicate"), "geqrf": lambda x: torch.geqrf(x[None]),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(x[None, None], 2),
    "pool": lambda x: F.avg_pool1d(x[None], 3), "pinv": lambda x: torch.linalg.pinv(x[None]),
}  # fmt: skip
BINARY = {
    "bitwise_left_shift": torch.bitwise_left_shift, "ldexp": torch.ldexp, "isin": torch.isin,
    "vdot": torch.vdot, "tensordot": lambda x, y: torch.tensordot(x, y, 1), "sub": torch.sub,
    "hypot": torch.hypot, "gcd": torch.gcd, "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "heaviside": torch.heaviside, "add_": lambda x, y: x.add_(y), "cdist": lambda x, y: torch.cdist(
        x[None], y[None]), "gather": lambda x, y: torch.gather(x, 0, y),
    "index_add": lambda x, y: torch.index_add(x, 0, INDEX, y), "minimum": torch.minimum,
    "addcmul": lambda x, y: torch.addcmul(x, x, y), "polar": torch.polar,
    "div_": lambda x, y: x.div_(y, rounding_mode="floor"), "xlogy": torch.xlogy,
}  # fmt: skip


def _raised(call: Any, *args: Tensor) -> tuple[type[Exception], str] | None:
    """The class and the first line of what a call raises; None if nothing."""
    try:
        call(*args)
    except Exception as error:
        return type(error), str(error).splitlines()[0]
    return None


def _agree(call: Any, *args: Tensor) -> None:
    eager = _raised(call, *(a.clone() for a in args))
    with FakeMode():
        ours = _raised(call, *(from_real(a.clone()) for a in args))
    kinds = [a.dtype for a in args]
    assert (eager and eager[0]) == (ours and ours[0]), f"{kinds}: eager {eager}, fake {ours}"


@pytest.mark.parametrize("sizes", [(3,), (0,)])
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str, sizes: tuple[int, ...]) -> None:
    sized = {"argmax", "topk", "pool", "norm", "out", "out of sign", "pinv", "product", "bag",
             "convolution", "segments", "replicated"}  # fmt: skip
    if sizes == (0,) and name in sized:
        pytest.skip("sizes, too, are refused")
    for dtype in DTYPES:
        _agree(UNARY[name], torch.ones(sizes, dtype=dtype))


@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name: str) -> None:
    for a, b in itertools.product(DTYPES, DTYPES):
        _agree(BINARY[name], torch.ones(3, dtype=a), torch.ones(3, dtype=b))


def test_the_error_is_eagers_own() -> None:
    x = torch.ones(3, dtype=torch.bool)
    with FakeMode():
        assert _raised(F.relu, from_real(x)) == _raised(F.relu, x)
        assert _raised(torch.abs, from_real(x)) == _raised(torch.abs, x)


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {torch.float32, torch.float64}, key=str))
def test_losses_over_lengths(dtype: torch.dtype) -> None:
    lengths = torch.tensor([3]), torch.tensor([2])
    _agree(lambda x: F.ctc_loss(x, INDEX[None, 1:], *lengths), torch.ones(3, 1, 3, dtype=dtype))


def test_wrong_sizes_are_refused_before_wrong_dtypes() -> None:
    x, y = torch.ones((), dtype=torch.complex64), torch.ones(3, dtype=torch.complex64)
    _agree(lambda x, y: x.lt_(y), x, y)
    _agree(torch.mm, torch.ones(2, 3, dtype=torch.bool), torch.ones(2, 3, dtype=torch.bool))


def test_a_kernel_runs_once_for_each_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = dtype_checks._ask
    monkeypatch.setattr(dtype_checks, "_ask", lambda f, *rest: (asked.append(f), ask(f, *rest))[1])
    rule = dtype_checks.refusing_dtypes(torch.ops.aten.hypot.default, None)
    assert rule is not None
    for size in (3, 4, 5):
        x = from_real(torch.ones(size))
        assert rule(x, x) is NotImplemented
    assert len(asked) == 1
    rule(from_real(torch.ones(3, dtype=torch.float64)), from_real(torch.ones(3)))
    assert len(asked) == 2


def test_asking_draws_no_random_numbers_and_does_not_warn() -> None:
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in DTYPES:
            with FakeMode():
                _raised(torch.rand_like, from_real(torch.ones(3, 2, dtype=dtype)))
                _raised(torch.std, from_real(torch.ones(1, dtype=dtype)))
    assert torch.equal(state, torch.get_rng_state())


def test_a_device_that_is_not_there_is_not_asked() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    x = FakeTensor.make((3,), (1,), torch.bool, torch.device("cuda"))
    assert F.relu(x).dtype is torch.bool


def test_classes_of_a_loss_on_a_gpu_are_not_asked_for() -> None:
    """Its kernel stops at classes out of range: which dtypes it takes is written down."""
    cuda = torch.device("cuda")
    logits = FakeTensor.make((2, 3), (3, 1), torch.float32, cuda)
    for dtype in DTYPES:
        target = FakeTensor.make((2,), (1,), dtype, cuda)
        raised = _raised(F.nll_loss, logits, target)
        allowed = dtype in (torch.int64, torch.uint8)
        assert (raised is None) if allowed else (raised and raised[0] is NotImplementedError)
