"""Where results lie, as a program reads it while it runs: a sample of the sweep of layouts, and
what it showed to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from sweep_layouts import KINDS, LAYOUTS, differences, sweep_one
from test_operators import Operator
from torch import Tensor

import dovetail

F = torch.nn.functional

# (operator, dtype): what lay otherwise, and some of other families.
CAPTURED = [
    ("mul", "float32"), ("addr", "float32"), ("floor_divide", "float32"), ("polar", "float32"),
    ("ormqr", "float32"), ("linalg.householder_product", "float32"), ("msort", "float32"),
    ("nn.functional.max_pool3d", "float32"), ("nn.functional.logsigmoid", "float32"),
    ("nn.functional.rrelu", "float32"), ("nn.functional.hardtanh", "float32"),
    ("nn.functional.pixel_unshuffle", "float32"), ("native_dropout_backward", "float32"),
    ("roll", "float32"), ("fft.fftshift", "float32"), ("fft.fftn", "float32"),
    ("index_fill", "float32"), ("fill", "float32"), ("nan_to_num", "float32"), ("all", "float32"),
    ("heaviside", "int64"), ("ldexp", "bfloat16"), ("ldexp", "int64"),
    ("slice_scatter", "float32"), ("conj_physical", "float32"), ("nn.functional.conv2d", "float32"),
]  # fmt: skip
# Their graphs, too, and gradients.
COMPUTED = [
    ("mul", "float32"), ("linalg.inv", "float32"), ("floor_divide", "float32"),
    ("diagonal_scatter", "float32"), ("nn.functional.max_pool3d", "float32"),
    ("msort", "float32"), ("nn.functional.rrelu", "float32"),
    ("roll", "float32"), ("native_dropout_backward", "float32"), ("ldexp", "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CAPTURED, ids=[f"{n}-{d}" for n, d in CAPTURED])
def test_strides_read_in_a_frame(name: str, dtype: str) -> None:
    row = sweep_one(name, dtype, "capture", 2)
    assert row.outcome == "ok" and row.samples, row


@pytest.mark.parametrize(("name", "dtype"), COMPUTED, ids=[f"{n}-{d}" for n, d in COMPUTED])
def test_results_and_gradients_lie_as_eagers(name: str, dtype: str) -> None:
    row = sweep_one(name, dtype, "graphs", 1)
    assert row.outcome == "ok" and row.samples, row


def test_the_sweep_lays_inputs_in_many_ways() -> None:
    """And says what is read otherwise."""

    class Images(Operator):
        supports_out = False

        def sample_inputs(self, *args: object, **kwargs: object) -> Iterator[object]:
            for sample in super().sample_inputs():
                sample.input = torch.randn(2, 3, 4, 5)  # type: ignore[attr-defined]
                yield sample

    seen = set()

    def telling(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            seen.add((tuple(x.shape), x.stride()))
            return x + 1
        return (x + 1).contiguous()

    found = list(differences(Images(telling), torch.float32, "capture", 1, KINDS))
    assert len(seen) > len(LAYOUTS) - 2
    wrong = {where for where, outcome, _ in found if outcome == "wrong"}
    assert "sample 0 channels last" in wrong and "sample 0 plain" not in wrong


POOLED: list[Callable[[Tensor], Tensor]] = [
    lambda x: F.max_pool1d(x, 2), lambda x: torch.max_pool1d(x, 3, 2),
]  # fmt: skip


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("number", range(len(POOLED)))
def test_pooled_rows_of_columns(number: int, learns: bool) -> None:
    """Without gradients a kernel of its own gives what is row-major."""
    pool = POOLED[number]

    def fn(x: Tensor) -> tuple[Tensor, object]:
        y = pool(x)
        return y, y.stride()

    for x in (torch.randn(2, 9, 8).transpose(1, 2), torch.randn(9, 8).t(), torch.randn(2, 4, 9)):
        x = x.detach().requires_grad_(learns)
        wanted, strides = fn(x)
        for backend in ("eager", "aot_eager"):
            got, read = dovetail.compile(fn, backend=backend)(x)
            assert torch.equal(got, wanted) and read == strides and got.stride() == strides


def test_angles_of_columns() -> None:
    """Of complex numbers they are copied from complex numbers."""
    for x in (torch.randn(3, 4, dtype=torch.complex64).t(), torch.randn(3, 4).t()):
        read = dovetail.compile(lambda x: x.angle().stride(), fullgraph=True)(x)
        assert read == x.angle().stride()


@pytest.mark.parametrize("learns", [False, True])
def test_losses_of_pixels_whose_classes_lie_otherwise(learns: bool) -> None:
    """They are row-major wherever the classes lie."""
    x = torch.randn(2, 3, 2, 4, requires_grad=learns)
    classes = torch.randint(0, 3, (4, 2, 2)).permute(2, 1, 0)

    def fn(x: Tensor, classes: Tensor) -> Tensor:
        return F.nll_loss(x, classes, reduction="none")

    wanted = fn(x, classes)
    for backend in ("aot_eager", "inductor"):
        got = dovetail.compile(fn, backend=backend)(x, classes)
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
