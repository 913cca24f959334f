"""A sample of the sweeps of models and databases; the whole of them by their commands."""

from __future__ import annotations

import unittest
from pathlib import Path

import pytest
import sweep_capture
import sweep_cpython
import sweep_databases
import sweep_docstrings
import sweep_models
from family_sweep import families_of

CAPTURED = [
    ("transformers", "distilbert"), ("transformers", "qwen2"), ("transformers", "bart"),
    ("transformers", "mixtral"), ("transformers", "clip"), ("timm", "convnext_atto"),
]  # fmt: skip
COMPILED = [
    ("transformers", "distilbert"), ("transformers", "qwen2"), ("timm", "convnext_atto"),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "family"), CAPTURED, ids=[name for _, name in CAPTURED])
def test_captured_as_one_graph(suite: str, family: str) -> None:
    row = sweep_capture.sweep_one(suite, family)
    assert row.outcome == "ok", row


@pytest.mark.parametrize(("suite", "family"), COMPILED, ids=[name for _, name in COMPILED])
def test_compiled_with_gradients(suite: str, family: str) -> None:
    row = sweep_models.sweep_one(suite, family)
    assert row.outcome == "ok", row


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["transformers", "timm"])
def test_no_wrong_result_and_no_internal_error(suite: str) -> None:
    rows = list(sweep_capture.SWEEP.rows(suite, families_of(suite), 60, "dovetail"))
    wrong = [row for row in rows if row.outcome in ("not equal", "error")]
    assert not wrong, wrong
    assert sum(row.outcome == "ok" for row in rows) >= 60


# (database/entry, dtype, outcome of all its cases, how many are taken)
DATABASE_ENTRIES = [
    ("modules/nn.BatchNorm2d.train", "float32", "ok", 3),
    ("modules/nn.LSTM.eval", "float32", "ok", 2),
    ("modules/nn.TransformerDecoderLayer.train", "bfloat16", "ok", 1),
    ("modules/nn.LazyConv2d.train", "float64", "ok", 2),
    ("modules/nn.FractionalMaxPool3d.train", "float32", "ok", 6),
    ("optimizers/AdamW", "float32", "ok", 2),
    ("optimizers/LBFGS", "float32", "break", 1),
    ("functions/SelectAutogradFunction", "float32", "ok", 1),
    ("functions/ForwardHasDefaultArgsAutogradFunction", "float32", "ok", 1),
    ("custom/NumpySplitCopyWithIntCustomOp", "float32", "ok", 1),
    ("custom/NumpyNonzeroCustomOp", "int64", "ok", 1),
    ("higher-order/map.nested", "float32", "ok", 1),
    ("higher-order/auto_functionalize.simple", "float32", "ok", 1),
]


@pytest.mark.parametrize(("name", "dtype", "outcome", "limit"), DATABASE_ENTRIES)
def test_database_entry(name: str, dtype: str, outcome: str, limit: int) -> None:
    row = sweep_databases.sweep_one(name, dtype, stage="graphs", limit=limit)
    assert row.outcome == outcome and row.samples, row


@pytest.mark.parametrize("name", ["modules/nn.Conv2d.train", "optimizers/SGD"])
@pytest.mark.parametrize("condition", ["dynamic", "gaps"])
def test_database_entry_otherwise(name: str, condition: str) -> None:
    row = sweep_databases.sweep_one(name, "float32", "graphs", condition, limit=2)
    assert row.outcome == "ok" and row.samples, row


EXAMPLES = ("torch.vmap", "torch.Tensor.scatter_add_", "torch.nn.MultiheadAttention")


def test_examples_of_docstrings(tmp_path: Path) -> None:
    programs = {name: text for name, text in sweep_docstrings.programs() if name in EXAMPLES}
    found = {n: sweep_docstrings.check(n, text, tmp_path) for n, text in programs.items()}
    assert found["torch.vmap"] == ("ok", ""), found
    assert not [n for n, (outcome, _) in found.items() if outcome in ("differs", "error")], found


def test_what_cpython_tests() -> None:
    module = pytest.importorskip("test.test_contextlib")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(module.TestExitStack)
    tests = list(sweep_cpython.cases(suite))
    assert len(tests) > 20
    for test in tests:
        if sweep_cpython.outcome(test)[0] == "ok":
            assert sweep_cpython.outcome(sweep_cpython.captured(test)) == ("ok", "")
