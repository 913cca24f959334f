"""Breadth of capture: every model family of transformers and timm that a tiny config can build.

`python integration_tests/sweep_capture.py transformers bert gpt2 ...` (or `timm`, names left out:
all) captures each family's forward as one graph (`fullgraph=True`), runs the graph as it is, and
compares outputs with eager bit for bit. A table comes out: ok, not equal, break and its reason,
internal error, or why the family could not be built (which says nothing about capture).
`--system torch.compile` does the same with torch.compile's front end.
"""

from __future__ import annotations

from typing import Any

import torch
from dovetail_capture import GraphBreakError, optimize
from family_sweep import Row, Sweep, first_line, where_raised
from model_families import TooLong, build, leaves

SYSTEMS = ("dovetail", "torch.compile")


class Graphs:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.count += 1
        return gm


def _captured(model: Any, system: str, backend: Graphs) -> Any:
    if system == "dovetail":
        return optimize(model, backend, fullgraph=True)
    return torch.compile(model, backend=backend, fullgraph=True)  # noqa: TID251


def _refused(error: Exception) -> bool:
    """True for a graph break made into an error: ours, or the other front end's."""
    return isinstance(error, GraphBreakError) or type(error).__name__ in (
        "Unsupported",
        "UserError",
    )


def sweep_one(suite: str, family: str, system: str = SYSTEMS[0]) -> Row:
    """Build, run eager, capture, compare."""
    try:
        model, inputs, expected = build(suite, family)
    except TooLong:
        return Row(suite, family, "not built", "time limit")
    except Exception as error:
        return Row(suite, family, "not built", first_line(error))
    backend = Graphs()
    captured = _captured(model, system, backend)
    try:
        for _ in range(2):
            torch.manual_seed(1)
            with torch.no_grad():
                actual = captured(**inputs)
            left, right = list(leaves(expected)), list(leaves(actual))
            if len(left) != len(right) or type(expected) is not type(actual):
                return Row(suite, family, "not equal", f"{len(left)} and {len(right)} tensors")
            for index, (a, b) in enumerate(zip(left, right, strict=True)):
                if a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num()):
                    return Row(suite, family, "not equal", f"tensor {index} of {len(left)}")
    except TooLong:
        return Row(suite, family, "error", "time limit in capture")
    except Exception as error:
        if _refused(error):
            return Row(suite, family, "break", " ".join(str(error).split())[:700])
        return Row(suite, family, "error", where_raised(error))
    return Row(suite, family, "ok", f"{backend.count} graph" + "s" * (backend.count != 1))


SWEEP = Sweep(__file__, __doc__ or "", sweep_one, 60, "system", SYSTEMS)

if __name__ == "__main__":
    SWEEP.main()
