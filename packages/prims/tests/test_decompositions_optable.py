"""The op table tells of every op, and the committed page is the one that is made."""

from pathlib import Path

import optable
import pytest
import torch
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.dialects.opsets import CORE_ATEN, EXTERN, PRIMS

PAGE = Path(__file__).parents[1] / "OPS.md"


def test_every_op_has_a_row_that_says_something():
    rows = optable.rows()
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))
    assert set(CORE_ATEN) <= set(names)
    partly = {str(op) for op in core_aten_table()} & {f"aten.{name}" for name in CORE_ATEN}
    assert len(rows) == len(CORE_ATEN) + len(core_aten_table()) - len(partly)
    assert not [row[0] for row in rows if not row[3]]
    computed = set(PRIMS) - set(EXTERN)
    assert not [n for n in computed if optable.meaning(n) == "PyTorch's own kernel"]


def test_what_decomposes_says_to_what():
    rows = {row[0]: row for row in optable.rows()}
    own = [n for n, row in rows.items() if not row[4]]
    # Entries that only hand an argument on, or are made of Python numbers.
    assert len(own) <= 6, own
    assert rows["gelu.default"][4] == "_to_copy, add.Tensor, erf, mul.Tensor, tanh"
    assert "amax" in rows["_softmax.default"][4] and "exp" in rows["_softmax.default"][4]
    assert rows["add.Tensor"][4] == "in PRIMS"
    assert rows["relu.default"][4].startswith("full") or "maximum" in rows["relu.default"][4]


def test_the_page_is_up_to_date():
    text = PAGE.read_text()
    if f"torch {torch.__version__.split('+')[0]}." not in text:
        pytest.skip("made with another torch, whose schemas differ")
    assert text == optable.as_markdown(), f"run python tests/optable.py > {PAGE.name}"
