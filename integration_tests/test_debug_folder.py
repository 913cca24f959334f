"""DOVETAIL_DEBUG: a folder for each graph, with every stage's text."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dovetail
from dovetail import logs


def _program(x: Tensor) -> Tensor:
    y = torch.sin(x) * 2
    print("a break")
    return torch.softmax(y.relu() @ y.t(), -1).sum()


@pytest.mark.parametrize("training", [False, True])
def test_each_stage_is_a_file(training: bool, tmp_path: Path) -> None:
    with logs.written_to(tmp_path / "out"):
        out = dovetail.compile(_program)(torch.ones(3, 4, requires_grad=training))
        if training:
            out.backward()
    folders = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        names = {path.name.split("_", 1)[1] for path in folder.iterdir()}
        assert {"graph_code.py", "guards.txt", "aot_graphs.py", "post_grad_graphs.py"} <= names
        assert {"ir_pre_fusion.txt", "ir_post_fusion.txt", "schedule.txt", "output_code"} <= names
        assert "graph_diagram.dot" in names
        assert ("graph_diagram.svg" in names) == bool(shutil.which("dot"))
        plans = list(folder.glob("*_output_code/program.py"))
        assert len(plans) == 1 + training
        for plan in plans:
            runpy.run_path(str(plan))
        for drawing in folder.glob("*.dot"):
            assert drawing.read_text().startswith("digraph {") and " -> " in drawing.read_text()
    assert "graph_breaks: print()" in (tmp_path / "out" / "events.txt").read_text()


def test_nothing_is_written_afterwards(tmp_path: Path) -> None:
    with logs.written_to(tmp_path):
        pass
    dovetail.compile(_program)(torch.ones(2, 2))
    assert not list(tmp_path.iterdir())
