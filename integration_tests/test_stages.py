"""Each stage alone: from the file of any boundary value the later stages give the same plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_prims.boundary_files import BoundaryFileError, load_boundary
from dovetail_runtime import Plan, as_python, load

from dovetail.cli import main
from dovetail.show import show
from dovetail.stages import BOUNDARY_TYPES, continue_from


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, dim=-1).sum(0)


def written(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.nn.functional.dropout(x.clone().mul_(2), 0.5) @ y
    y.add_(1)
    return z, y[1:]


def reshaped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0] * y.shape[1]
    return torch.nn.functional.gelu(x @ y).reshape(rows) / rows


def branching(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: a @ b, (x, y))  # type: ignore[no-any-return]


def plans_in(folder: Path) -> list[str]:
    return [as_python(load_boundary(f, Plan)) for f in sorted(folder.glob("*_plan.boundary"))]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("function", [softmax, written, reshaped, branching])
def test_plans_are_the_same_from_every_boundary(
    function: Callable[..., Any], train: bool, tmp_path: Path
) -> None:
    if function is written and train:
        pytest.skip("a leaf that requires a gradient is not written to")
    inputs = torch.randn(8, 16), torch.randn(16, 4)
    show(function, inputs, stages=list(BOUNDARY_TYPES), train=train, folder=tmp_path)
    wanted = plans_in(tmp_path)
    assert len(wanted) == 1 + train
    for file in sorted(tmp_path.glob("*.boundary")):
        stage = file.stem.partition("_")[2]
        if stage == "plan":
            continue
        got = [as_python(plan) for name, plan in continue_from(file) if name == "plan"]
        number = 1 if file.name > f"{len(BOUNDARY_TYPES) + 1:02}" and train else 0
        assert got == (wanted if stage in ("capture", "joint", "autograd") else [wanted[number]])


def test_a_plan_that_was_made_of_loops_runs(tmp_path: Path) -> None:
    x, y = torch.randn(8, 16), torch.randn(16, 4)
    show(softmax, (x, y), stages=["loops"], folder=tmp_path)
    (file,) = tmp_path.iterdir()
    *_, (_, plan) = continue_from(file)
    torch.testing.assert_close(load(plan)(x, y)[0], softmax(x, y))


def test_what_no_file_can_hold_is_told_after_the_run(tmp_path: Path) -> None:
    class OfThisTest(torch.nn.Module):  # which no other process finds
        factor = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() * self.factor

    with pytest.raises(BoundaryFileError, match="CapturedFrame cannot be written"):
        show(OfThisTest(), (torch.ones(3),), stages=["capture", "loops"], folder=tmp_path)
    assert [file.stem.partition("_")[2] for file in tmp_path.iterdir()] == ["loops"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch\n\ndef f(x):\n    return x.exp().sum(-1)\n")
    saved = tmp_path / "saved"
    shown = ["show", f"{program}:f", "--inputs", "torch.ones(4, 8)", "--save", str(saved)]
    assert main([*shown, "--stage", "loops"]) == 0
    (file,) = saved.iterdir()
    capsys.readouterr()
    assert main(["continue", str(file), "--stage", "kernels"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("==== kernels ====") and "plan" not in text
    assert main(["continue", str(file), "--stage", "joint"]) == 2
    assert "'joint' is no later one" in capsys.readouterr().err
    assert main(["continue", str(program)]) == 2
    assert "no file of a boundary value" in capsys.readouterr().err
