"""Dtypes of operands: what is promoted to what, and what is refused, as in eager.

The tables are drawn from: a part in each run, by the seed that is printed; all with `-m slow`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dovetail_prims import FakeMode, from_real
from dovetail_prims.decompositions import core_aten_table
from dtype_calls import DTYPES, Call, calls, converted, differs, disagreement, functions
from sweep_operators import operators
from torch import Tensor

import dovetail

sys.path.append(str(Path(__file__).parents[1] / "packages" / "prims" / "tests"))
from eager_oracle import Expander

TABLE = core_aten_table()

# Entry of `op_db`, or its beginning: why what is raised differs.
ACCEPTED = {
    "div.": "a division by zero, which only the data tells",
    "floor_divide": "a division by zero, which only the data tells",
    "fmod": "a division by zero, which only the data tells",
    "remainder": "a division by zero, which only the data tells",
    "__rmod__": "a division by zero, which only the data tells",
    "nn.functional.max_unpool": "its indices depend on the data",
    "addbmm": "in place, eager gives a result of other sizes than what it writes to",
    "masked_scatter": "sizes: a mask larger than what is written to",
    "nn.functional.bilinear": "eager refuses bool for sizes from some on only",
    "nn.functional.max_pool1d": "without a gradient eager has a kernel of its own",
    "tensor_split": "its sections are data",
    "to_sparse": "gives a tensor without strides",
}


def _seed(request: pytest.FixtureRequest) -> int:
    seed = int(torch.randint(2**31, ()))
    print(f"seed {seed} ({request.node.name})")
    return seed


def _accepted(name: str) -> bool:
    return any(name.startswith(known) for known in ACCEPTED)


def _drawn(share: float, seed: int) -> list[Call]:
    draw = random.Random(seed)
    table = functions()
    every = [call for name, (count, f) in sorted(table.items()) for call in calls(name, count, f)]
    return [call for call in every if draw.random() < share]


def _wrong(call: Call) -> str | None:
    """What our shape rule and decomposition say otherwise than eager; None if nothing."""
    eager = call.run()
    with FakeMode():
        fake = call.run(lambda x: from_real(x.clone()))
    if isinstance(eager, Exception) or isinstance(fake, Exception):
        same = type(eager) is type(fake)
        return None if same else f"{call}: eager {eager!r}, fake {fake!r}"
    if not isinstance(eager, Tensor):
        return None
    wanted = eager.dtype, eager.shape, eager.stride()
    if (fake.dtype, fake.shape, fake.stride()) != wanted:
        return f"{call}: eager {wanted}, fake {fake.dtype, fake.shape, fake.stride()}"
    with Expander(TABLE):
        ours = call.run()
    found = differs(eager, ours)
    return None if found is None else f"{call}: {found}"


def _check_promotion(share: float, seed: int) -> None:
    drawn = _drawn(share, seed)
    wrong = [text for text in map(_wrong, drawn) if text is not None]
    print(f"{len(drawn)} calls")
    assert not wrong, "\n".join(wrong[:20])


def test_promotion_by_rules_and_decompositions(request: pytest.FixtureRequest) -> None:
    _check_promotion(0.1, _seed(request))


@pytest.mark.slow
def test_promotion_by_rules_and_decompositions_of_all(request: pytest.FixtureRequest) -> None:
    _check_promotion(1.0, _seed(request))


def _compiled_together(several: list[Call]) -> list[str]:
    """What a function of all these calls, compiled, gives otherwise than eager."""
    tensors = [tuple(x for x in c.operands if isinstance(x, Tensor)) for c in several]

    def together(*given: Any) -> list[Any]:
        results = []
        for call, own in zip(several, given, strict=True):
            left = iter(own)
            operands = [next(left) if isinstance(x, Tensor) else x for x in call.operands]
            results.append(call.function(*operands))
        return results

    compiled = dovetail.compile(together, fullgraph=True)(
        *(tuple(x.clone() for x in own) for own in tensors)
    )
    pairs = zip(several, compiled, strict=True)
    found = [(call, differs(call.run(), ours)) for call, ours in pairs]
    return [f"{call}: {text}" for call, text in found if text is not None]


def _of_kernels(drawn: list[Call]) -> list[Call]:
    """Those that eager computes and we have kernels for."""
    real = [c for c in drawn if not any(isinstance(x, complex) for x in c.operands)]
    real = [
        c for c in real if not any(isinstance(x, Tensor) and x.dtype.is_complex for x in c.operands)
    ]
    return [c for c in real if isinstance(c.run(), Tensor)]


def test_promotion_compiled(request: pytest.FixtureRequest) -> None:
    seed = _seed(request)
    drawn = _of_kernels(_drawn(0.01, seed))
    several = random.Random(seed).sample(drawn, 40)
    wrong = _compiled_together(several)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_promotion_compiled_of_all(request: pytest.FixtureRequest) -> None:
    seed = _seed(request)
    drawn = _of_kernels(_drawn(0.1, seed))
    wrong = []
    for start in range(0, len(drawn), 100):
        wrong += _compiled_together(drawn[start : start + 100])
    print(f"{len(drawn)} calls")
    assert not wrong, "\n".join(wrong[:20])


def _check_refusals(names: list[str], dtypes: list[torch.dtype], seed: int) -> None:
    known = operators()
    count, wrong = 0, []
    for name in names:
        info = known[name]
        if _accepted(name) or not info.dtypes:
            continue
        for dtype in dtypes:
            for form, function, sample in converted(name, info, dtype, seed):
                count += 1
                text = disagreement(function, sample)
                if text is not None:
                    wrong.append(f"{name}, {form}, {dtype}: {text}")
    print(f"{count} calls")
    assert not wrong, "\n".join(wrong[:40])


def test_refused_dtypes_of_some_operators(request: pytest.FixtureRequest) -> None:
    seed = _seed(request)
    draw = random.Random(seed)
    known = operators()
    from torch.testing._internal.opinfo.core import BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo

    kinds = (BinaryUfuncInfo, ReductionOpInfo, UnaryUfuncInfo)
    names = sorted(name for name, info in known.items() if isinstance(info, kinds))
    _check_refusals(draw.sample(names, 60), draw.sample(list(DTYPES), 4), seed)


@pytest.mark.slow
def test_refused_dtypes_of_all_operators(request: pytest.FixtureRequest) -> None:
    _check_refusals(sorted(operators()), list(DTYPES), _seed(request))
