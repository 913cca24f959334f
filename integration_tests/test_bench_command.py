"""The command line: its errors, its table, and one whole run on a small model."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dovetail.bench import measure
from dovetail.bench.driver import Failure, Row
from dovetail.bench.measure import Errors, over_draws
from dovetail.bench.models import Case
from dovetail.bench.table import ratios, render
from dovetail.bench.worker import Figures
from dovetail.cli import main

GPU_SUITE = Path(__file__).parent / "benchmarks" / "gpu_suite.py"


def row(system: str, cold: float, speedup: float, model: str = "m", train: bool = False) -> Row:
    figures = Figures(cold, 0.01, 0.02, speedup, 1.0, 2**20, 2**20, 0.0, 1e-7, 1e-7)
    return Row(model, train, system, cold, cold / 2, figures)


def test_unknown_model_and_mode(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "brt"]) == 2
    assert "bert" in capsys.readouterr().err
    assert main(["bench", "bert", "--mode", "max-autotun"]) == 2
    assert "'max-autotune'" in capsys.readouterr().err


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "opt", "--small"]) == 0
    text = capsys.readouterr().out
    assert "1 graph" in text and "scaled_dot_product_attention" in text
    assert main(["explain", "op"]) == 2
    assert "known: " in capsys.readouterr().err


def test_table_holds_rows_ratios_and_failures() -> None:
    rows = [row("torch.compile", 20.0, 1.0), row("dovetail", 5.0, 2.0)]
    text = render([*rows, Failure("m", True, "dovetail", "no compiler")])
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "FAILED" in text and "1.0 MiB" in text
    assert "first call 4.0x faster" in ratios(rows) and "steady state 2.00x" in ratios(rows)
    slower = replace(
        rows[0], figures=replace(rows[0].figures, steady_s=3 * rows[1].figures.steady_s)
    )
    assert "steady state 3.00x" in ratios([slower, rows[1]], on_gpu=True)


@pytest.mark.long
def test_a_small_run_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    status = main(
        ["bench", "opt", "--small", "--infer", "--rounds", "2", "--seconds", "0.2",
         "--systems", "eager", "dovetail", "--json", str(out)]
    )  # fmt: skip
    assert status == 0, capsys.readouterr()
    rows = {r["system"]: r for r in json.loads(out.read_text())["rows"]}
    ours = rows["dovetail"]["figures"]
    assert ours["graphs"] == 1 and ours["breaks"] == 0 and ours["kernels"] > 0
    assert ours["error_eager"] < 1e-4
    assert rows["dovetail"]["warm_s"] < rows["dovetail"]["cold_s"]


def test_what_the_gpu_suite_says_of_all_cases() -> None:
    spec = importlib.util.spec_from_file_location("gpu_suite", GPU_SUITE)
    assert spec is not None and spec.loader is not None
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    rows = [
        row("torch.compile", 20.0, 1.0), row("dovetail", 5.0, 4.0),
        row("torch.compile", 10.0, 2.0, train=True), row("dovetail", 10.0, 1.0, train=True),
        row("dovetail", 1.0, 9.0, "alone"), Failure("alone", False, "torch.compile", "broke"),
    ]  # fmt: skip
    said = suite.geometric_means(rows, False)
    assert said.startswith("2 cases,") and "steady state 1.41x, first call 2.0x faster" in said
    assert "worst m train 0.50x" in said and "beside eager m train 1.00x" in said
    assert suite.geometric_means(rows[:1], False) == "no case ran under both"


@pytest.mark.long
def test_the_gpu_suite_runs_small_on_the_cpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(GPU_SUITE), "--device", "cpu", "--dtype", "float32", "--small",
         "--model", "opt", "--systems", "dovetail", "--rounds", "2", "--seconds", "0.1",
         "--draws", "2", "--jobs", "2", "--json-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "default.json").read_text())["rows"]
    assert [(r["system"], r["train"]) for r in rows] == [("dovetail", False), ("dovetail", True)]
    assert all(r["figures"]["graphs"] == 1 and r["figures"]["error_eager"] < 1e-4 for r in rows)


def test_errors_are_scaled_by_each_tensor() -> None:
    one, large = torch.tensor([1.0, -1.0, 2.0, 0.0]), torch.tensor([100.0, 0.0])
    values = [one + torch.tensor([0.0, 0.0, 0.1, 0.0]), large + torch.tensor([0.0, 1.0])]
    assert measure.largest_error(values, [one, large]) == pytest.approx(0.05)
    root = 0.1 / 6**0.5  # the mean squares' roots are 0.05 and 6**0.5 / 2
    assert measure.mean_error(values, [one, large]) == pytest.approx(root)
    with pytest.raises(ValueError, match="2 values beside 1"):
        measure.mean_error(values, [one])


def test_what_is_not_a_number_is_no_small_error() -> None:
    one = torch.tensor([1.0, -1.0])
    wrong = torch.tensor([1.0, float("nan")])
    assert measure.largest_error([wrong, one], [one, one]) == math.inf
    assert measure.mean_error([wrong, one], [one, one]) == math.inf
    assert measure.mean_error([one, wrong], [one, one]) == math.inf


def test_errors_are_means_over_draws() -> None:
    linear, norm = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    model = torch.nn.Sequential(linear, norm)
    inputs = {"input": torch.rand(8, 4), "mask": torch.tensor([0.0, -math.inf])}
    case = Case(model, inputs, torch.sum)
    twin = Case(copy.deepcopy(model), inputs, torch.sum)
    seen: list[torch.Tensor] = []

    def errors() -> tuple[Errors, ...]:
        for own, other in zip(model.parameters(), twin.model.parameters(), strict=True):
            assert torch.equal(own, other)
        assert torch.equal(model(inputs["input"]), twin.model(inputs["input"]))
        assert 0 <= inputs["input"].min() and inputs["input"].max() <= 1
        assert torch.equal(norm.weight, torch.ones(4)) and inputs["mask"].isinf().any()
        seen.append(linear.weight.detach().clone())
        return (Errors(float(len(seen)), 1.0), Errors(0.0, 2.0 * len(seen)))

    assert over_draws(case, twin, 3, errors) == (Errors(2.0, 1.0), Errors(0.0, 4.0))
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    assert over_draws(case, twin, 3, lambda: None) is None


def test_an_error_of_what_is_nearly_zero_is_not_relative_to_it() -> None:
    large, tiny = torch.full((4,), 10.0), torch.full((4,), 1e-9)
    assert measure.mean_error([large, 2 * tiny], [large, tiny]) == pytest.approx(1e-7)
    assert measure.largest_error([large, 2 * tiny], [large, tiny]) == pytest.approx(1e-7)
