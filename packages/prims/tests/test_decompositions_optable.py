"""The op table tells of every op."""

from dovetail_prims import optable
from dovetail_prims.decompositions import core_aten_table
from dovetail_prims.opsets import CORE_ATEN


def test_every_op_has_a_row_that_says_something():
    rows = optable.rows()
    names = [row[0] for row in rows]
    assert len(names) == len(set(names))
    assert set(CORE_ATEN) <= set(names)
    assert len(rows) == len(CORE_ATEN) + len(core_aten_table())
    assert not [row[0] for row in rows if not row[2]]


def test_markdown():
    text = optable.as_markdown()
    assert (
        "| `gelu.default` | decomposed | x Φ(x), or its tanh approximation. | activations |" in text
    )
    assert "| `add.Tensor` | pointwise, two operands | in PRIMS |  |" in text
