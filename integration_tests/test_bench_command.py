"""The command line: its errors, its table, and one whole run on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.bench.driver import Failure, Row
from dovetail.bench.table import ratios, render
from dovetail.bench.worker import Figures
from dovetail.cli import main


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
    def row(system: str, cold: float, speedup: float) -> Row:
        return Row(
            "m",
            False,
            system,
            cold,
            cold / 2,
            Figures(cold, 0.01, 0.02, speedup, 1.0, 2**20, 2**20, 0.0, 1e-7, 1e-7),
        )

    rows = [row("torch.compile", 20.0, 1.0), row("dovetail", 5.0, 2.0)]
    text = render([*rows, Failure("m", True, "dovetail", "no compiler")])
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "FAILED" in text and "1.0 MiB" in text
    assert "first call 4.0x faster" in ratios(rows) and "steady state 2.00x" in ratios(rows)


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
