"""`where` with numbers for branches: shapes, strides and dtypes as PyTorch's, of any sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dovetail_prims.fake.from_real import from_real

aten = torch.ops.aten
CONDITION = torch.tensor([[True], [False], [True]])
CASES: dict[str, tuple[Any, ...]] = {
    "a float": (aten.where.ScalarSelf, 1.5, torch.ones(4)),
    "a float beside half": (aten.where.ScalarSelf, 2.0, torch.ones(4, dtype=torch.float16)),
    "a float beside ints": (aten.where.ScalarSelf, 2.5, torch.ones(4, dtype=torch.int32)),
    "infinity": (aten.where.ScalarSelf, float("-inf"), torch.ones(2, 3, 5)),
    "a bool": (aten.where.ScalarOther, torch.ones(2, 3, 4).transpose(0, 2)[:, :3, :1], True),
    "float and int": (aten.where.Scalar, 1.0, 2),
    "ints": (aten.where.Scalar, 1, 2),
    "bools": (aten.where.Scalar, True, False),
}


@pytest.mark.parametrize("case", CASES)
def test_as_pytorch(case: str) -> None:
    op, *branches = CASES[case]
    real = op(CONDITION, *branches)
    given = [from_real(v) if isinstance(v, torch.Tensor) else v for v in (CONDITION, *branches)]
    fake = op(*given)
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)
