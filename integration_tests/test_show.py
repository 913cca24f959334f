"""`dovetail show`: the text of each stage for one function."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from dovetail_prims.artifact_log import ROOT, is_wanted

from dovetail.cli import main
from dovetail.logs import ARTIFACTS
from dovetail.show import STAGES, show

_FILE = """
import torch

def f(x, y):
    return torch.softmax(x @ y, dim=-1).sum(0)

example_inputs = (torch.randn(8, 16), torch.randn(16, 4))

if __name__ == "__main__":
    raise AssertionError("the file is loaded, not run")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "shown_function.py").write_text(_FILE)
    return tmp_path / "shown_function.py"


def _headings(text: str) -> list[str]:
    return [line.strip("= ").partition(":")[0] for line in text.splitlines() if line[:4] == "===="]


def test_each_stage_is_an_artifact() -> None:
    assert {name for names in STAGES.values() for name in names} <= ARTIFACTS.keys()


def test_boundaries_in_order(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = [*logging.getLogger(ROOT).handlers]
    for _ in range(2):  # (compiled for itself: a second time, too)
        assert main(["show", f"{file}:f"]) == 0
        text = capsys.readouterr().out
        stages = ["capture", "capture", "autograd", "loops", "kernels", "plan"]
        assert _headings(text) == stages
        assert "x is a torch.Tensor: float32, cpu, sizes (8, 16)" in text
        assert "aten.mm" in text and "def run_graph(arg0, arg1):" in text
    assert not is_wanted("output_code") and logging.getLogger(ROOT).handlers == handlers


def test_a_backward_and_the_inputs_of_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = "torch.ones(3, 5), torch.ones(5, 7)"
    assert main(["show", f"{file}:f", "--inputs", inputs, "--train", "--stage", "kernels"]) == 0
    text = capsys.readouterr().out
    assert _headings(text) == ["kernels", "kernels"]  # of the forward, and of the backward
    assert "i0 < 3" in text


def test_passes_say_where_nothing_changed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{file}:f", "--stage", "passes"]) == 0
    text = capsys.readouterr().out
    after = [line for line in text.splitlines() if line.startswith("after ")]
    assert after[0] == "after lower:" and "after fuse:" in after
    assert "(unchanged)" in text and text.count("extern buf") == 1


def test_one_kernel(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{file}:f", "--kernel", "exp_"]) == 0
    text = capsys.readouterr().out
    assert _headings(text) and 'extern "C" void' in text
    assert main(["show", f"{file}:f", "--kernel", "no such kernel"]) == 0
    assert not capsys.readouterr().out


def test_what_cannot_be_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (
        ("nowhere.py:f", "there is no file"),
        (f"{file}:g", "has no 'g'"),
        (str(file), "is not FILE.py:FUNCTION"),
    ):
        assert main(["show", given]) == 2
        assert said in capsys.readouterr().err
    file.write_text(_FILE.replace("example_inputs", "others"))
    assert main(["show", f"{file}:f"]) == 2
    assert "--inputs" in capsys.readouterr().err
    with pytest.raises(KeyError):
        show(torch.sin, (torch.ones(2),), stages=["nothing"])
