"""A sample of the model sweeps; the whole of them by their commands."""

from __future__ import annotations

import pytest
import sweep_capture
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
