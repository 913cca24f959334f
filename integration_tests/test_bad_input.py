"""Bad input gets an error that names the user's line and the way round; state stays as it was."""

from __future__ import annotations

import linecache
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dovetail

HERE = "test_bad_input.py"


def line_with(marker: str) -> int:
    return next(
        i for i, line in enumerate(linecache.getlines(__file__), 1) if f"# {marker}" in line
    )


def test_graph_break_under_fullgraph_names_file_line_and_hint() -> None:
    state = {"calls": 0}

    @dovetail.compile(fullgraph=True)
    def f(x: Tensor) -> Tensor:
        state["calls"] += 1
        if x.sum() > 0:  # BRANCH
            return x + 1
        return x - 1

    with pytest.raises(Exception) as error:
        f(torch.ones(3))
    text = str(error.value)
    assert HERE in text and str(line_with("BRANCH")) in text and "hint" in text
    assert state["calls"] == 0


def test_unsupported_construct_names_the_construct() -> None:
    @dovetail.compile(fullgraph=True)
    def f(x: Tensor) -> Tensor:
        print("hello")  # PRINT
        return x + 1

    with pytest.raises(Exception) as error:
        f(torch.ones(3))
    text = str(error.value)
    assert "print" in text and f":{line_with('PRINT')}" in text


def test_break_without_fullgraph_runs_and_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        y = x * 2
        print("between")
        return y + 1

    torch.testing.assert_close(f(torch.ones(3)), torch.full((3,), 3.0))
    assert capsys.readouterr().out == "between\n"
    report = dovetail.report(f)
    assert len(report.breaks) == 1 and report.graphs == 2


MISSING_COMPILER = """
import torch, dovetail

net = torch.nn.Linear(3, 3)
before = {k: v.clone() for k, v in net.state_dict().items()}


@dovetail.compile
def f(x):
    return torch.exp(net(x)) + 1  # the only place where a kernel is needed


try:
    f(torch.ones(2, 3))
except Exception as error:
    print(error)
else:
    raise SystemExit("compiled without a compiler")
assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
"""


def test_missing_compiler(tmp_path: Path) -> None:
    # A process of its own: which compiler to use is read once.
    script = tmp_path / "script.py"
    script.write_text(MISSING_COMPILER)
    environment = {
        **os.environ,
        "DOVETAIL_CXX": "/nonexistent/g++",
        "DOVETAIL_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiler" in done.stdout and "/nonexistent/g++" in done.stdout


def test_dtype_mismatch_is_eagers_error_at_the_users_line() -> None:
    linear = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, momentum=0.9)

    @dovetail.compile
    def f(x: Tensor) -> Tensor:
        return linear(x) @ x.double()  # MISMATCH

    with pytest.raises(RuntimeError) as error:
        f(torch.ones(4, 4))
    assert "dtype" in str(error.value)
    frames = traceback.extract_tb(error.tb)
    assert (__file__, line_with("MISMATCH")) in [(f.filename, f.lineno) for f in frames]
    assert optimizer.state == {} and linear.weight.grad is None


def test_a_size_outside_its_mark_is_refused() -> None:
    x = torch.ones(9, 2)
    dovetail.mark_dynamic(x, 0, max=8)
    with pytest.raises(dovetail.CaptureError, match="marked dynamic with min=None, max=8"):
        dovetail.compile(lambda x: x + 1)(x)


def test_a_marked_size_that_the_program_fixes_is_refused() -> None:
    x = torch.ones(6, 2)
    dovetail.mark_dynamic(x, 0)
    with pytest.raises(dovetail.CaptureError, match="is marked dynamic, but the program needs"):
        dovetail.compile(lambda x: x + len([0] * x.size(0)))(x)


@pytest.mark.parametrize(
    "function, x, kind",
    [
        (lambda x: torch.linalg.cholesky(x) * 2, -torch.eye(3), torch.linalg.LinAlgError),
        (lambda x: torch.linalg.inv(x) * 2, torch.zeros(3, 3), torch.linalg.LinAlgError),
        (lambda x: x.t() + x.t(), torch.zeros(3, 3).to(torch.uint16), NotImplementedError),
    ],
)
def test_what_a_library_call_raises_has_its_own_type(
    function: Callable[[Tensor], Tensor], x: Tensor, kind: type[Exception]
) -> None:
    for call in (function, dovetail.compile(function)):
        with pytest.raises(kind) as error:
            call(x)
        assert error.type is kind


# What eager refuses for another reason than a shape: types, options, sizes of what is written.
REFUSED: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.flip(0, 0), lambda x: x.masked_fill(x, 1.0), lambda x: torch.where(x, x, x),
    lambda x: x.index_select(0, x), lambda x: x & 1, lambda x: x.bitwise_not(),
    lambda x: torch.gcd(x, x), lambda x: x.int().softmax(0), lambda x: x.clamp(),
    lambda x: torch.nn.functional.gelu(x, approximate="foo"),
    lambda x: torch.add(x, 1, alpha=1j), lambda x: x.int().add(1, alpha=1.5),
    lambda x: torch.lerp(x, x, x.double()), lambda x: torch.div(x, 1, rounding_mode="foo"),
    lambda x: x.scatter_reduce(0, x.long(), x, "foo"),
    lambda x: x.index_put((torch.tensor([0, 1, 2, 0]),), x),
    lambda x: x.index_reduce(0, torch.tensor([0]), x, "prod"),
    lambda x: torch.nn.functional.smooth_l1_loss(x, x, beta=-1.0),
    lambda x: torch.nn.functional.huber_loss(x, x, delta=-1.0),
    lambda x: torch.slice_scatter(x, x, 0, 0, 1), lambda x: torch.select_scatter(x, x, 0, 0),
    lambda x: torch.as_strided_scatter(x, x, (2,), (1,)), lambda x: torch.hypot(x.int(), x.int()),
    lambda x: torch.heaviside(x, x.double()), lambda x: x.split(-1)[0], lambda x: x.split(0)[0],
    lambda x: torch.nn.functional.gelu(x.int()), lambda x: torch.nn.functional.elu(x.int()),
    lambda x: x.int() ** -1, lambda x: torch.addcdiv(x.int(), x.int(), x.int()),
    lambda x: torch.nn.functional.mse_loss(x.int(), x.int()), lambda x: x.int().frac(),
    lambda x: torch.full((2,), 1j, dtype=torch.float32) + x[0],
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_eager_refuses_is_refused_with_the_same_type(number: int) -> None:
    kinds = []
    for call in (REFUSED[number], dovetail.compile(REFUSED[number])):
        with pytest.raises(Exception) as error:
            call(torch.ones(3))
        kinds.append(error.type)
    assert kinds[0] is kinds[1]


@pytest.mark.parametrize("image", [False, True])
def test_weights_of_classes_that_eager_refuses(image: bool) -> None:
    """Too few, too many, or of another dtype: a kernel of ours would just look them up."""

    def loss(x: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x, target, weight)

    compiled = dovetail.compile(loss, backend="aot_eager")
    x, target = torch.randn(2, 3), torch.tensor([0, 1])
    if image:
        x, target = x[:, :, None, None], target[:, None, None]
    for weight in (torch.ones(2), torch.ones(4), torch.ones(3).double()):
        with pytest.raises(RuntimeError) as expected:
            loss(x, target, weight)
        with pytest.raises(RuntimeError) as found:
            compiled(x, target, weight)
        assert str(expected.value).splitlines()[0] in str(found.value)
    torch.testing.assert_close(compiled(x, target, torch.ones(3)), loss(x, target, torch.ones(3)))


REFUSED_BY_KERNELS: list[tuple[Callable[..., Tensor], tuple[Tensor, ...], str]] = [
    (torch.masked_fill, (torch.ones(2), torch.ones(2).bool(), torch.ones(1)), "0-dimensional"),
    (
        lambda x, mask: x.masked_scatter(mask, x),
        (torch.ones(2), torch.ones(2, dtype=torch.uint8)),
        "boolean masks",
    ),
    (lambda x: nn.functional.softshrink(x, -0.5), (torch.ones(2),), "lambda must"),
    (
        lambda x, index, source: x.index_add(0, index, source),
        (torch.ones(3, 2), torch.tensor([0, 1]), torch.ones(2)),
        "excluding the specified dimension",
    ),
    (lambda x: torch.native_layer_norm(x, (), None, None, 1e-5)[0], (torch.ones(2),), "at least 1"),
    (
        lambda x, index: nn.functional.max_unpool2d(x, index, 2),
        (torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.int64)),
        "3d or 4d",
    ),
]


@pytest.mark.parametrize(("function", "given", "message"), REFUSED_BY_KERNELS)
def test_arguments_that_eager_refuses(
    function: Callable[..., Tensor], given: tuple[Tensor, ...], message: str
) -> None:
    for call in (function, dovetail.compile(function, backend="aot_eager")):
        with pytest.raises(RuntimeError, match=message):
            call(*given)
