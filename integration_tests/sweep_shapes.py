"""Breadth of symbolic sizes: the families of the capture sweep, called with several shapes.

`python integration_tests/sweep_shapes.py transformers bert gpt2 ...` (or `timm`; names left out:
all) compiles each family's model (evaluation mode, gradients on) and calls it with its inputs, with
other batches and lengths where eager takes them, and with the first ones again. Outputs and
parameter gradients of every call are compared with eager as in `sweep_models.py`; the text tells
how many graphs were compiled. `--backend aot_eager` (the default) leaves code generation out.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from typing import Any

import torch
from family_sweep import Row, Sweep, first_line, where_raised
from model_families import TooLong, build
from sweep_models import difference, step
from torch import Tensor, nn

import dovetail

Inputs = dict[str, Any]
OTHERS = ((3, 3), (5, 6))
"""Batches, and by how many tokens longer than the first inputs."""
_LONGEST = 1.5
"""Seconds of eager's step."""


def _batch_of(inputs: Inputs) -> int:
    return next(v.shape[0] for v in inputs.values() if isinstance(v, Tensor) and v.dim())


def _grown(inputs: Inputs, batch: int, longer: int) -> Inputs:
    """As many rows, and sequences of token ids (with what is as long as them) that much longer."""
    rows = _batch_of(inputs)
    lengths = {
        v.shape[1]
        for name, v in inputs.items()
        if isinstance(v, Tensor) and v.dim() == 2 and name.endswith("input_ids")
    }

    def grown(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        if value.shape[0] == rows:
            value = value[torch.arange(batch) % rows]
        if longer and value.dim() >= 2 and value.shape[1] in lengths:
            value = value[:, torch.arange(value.shape[1] + longer) % value.shape[1]]
        return value

    return {name: grown(value) for name, value in inputs.items()}


def accepted(model: nn.Module, inputs: Inputs) -> Iterator[Inputs]:
    """The other inputs that eager takes: batches and lengths, else batches alone."""
    for batch, longer in OTHERS:
        for more in dict.fromkeys((longer, 0)):
            other = _grown(inputs, batch, more)
            try:
                step(model, model, other)
            except Exception:  # (it may be a model of one batch, or of one length)
                continue
            yield other
            break


def sweep_one(suite: str, family: str, backend: str = "aot_eager") -> Row:
    """Build, run eager, compile, compare."""
    try:
        model, inputs, _ = build(suite, family)
        eager = copy.deepcopy(model)
        start = time.perf_counter()
        step(eager, eager, inputs)
        if time.perf_counter() - start > _LONGEST:
            return Row(suite, family, "not built", "a step takes too long for several shapes")
        others = list(accepted(eager, inputs))
    except TooLong:
        return Row(suite, family, "not built", "time limit")
    except Exception as failure:
        return Row(suite, family, "not built", first_line(failure))
    if not others:
        return Row(suite, family, "not built", "eager takes no other batch and no other length")
    compiled = dovetail.compile(model, backend=backend)
    calls = [inputs, *others, inputs, *others]
    try:
        for number, given in enumerate(calls):
            expected, again = (step(eager, eager, given) for _ in range(2))
            if any(not torch.equal(a, b) for a, b in zip(expected, again, strict=True)):
                if difference(eager, given, again, expected):
                    return Row(suite, family, "not built", "eager differs from call to call")
            what = difference(eager, given, step(model, compiled, given), expected)
            if what:
                return Row(suite, family, "not equal", f"call {number}: {what}")
    except TooLong:
        return Row(suite, family, "error", "time limit in compiling")
    except Exception as failure:
        return Row(suite, family, "error", where_raised(failure))
    report = dovetail.report(compiled)
    text = f"{len(others) + 1} shapes, {report.graphs} graphs"
    if report.recompiles and report.graphs > 2:
        return Row(
            suite, family, "break", f"{text}: {' '.join(report.recompiles[-1].split())[:300]}"
        )
    return Row(suite, family, "ok", text)


SWEEP = Sweep(__file__, __doc__ or "", sweep_one, 240, "backend", ("aot_eager", "dovetail"))

if __name__ == "__main__":
    SWEEP.main()
