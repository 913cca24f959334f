"""A graph of symbolic sizes that loops cannot be made for: one compilation for each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from dovetail_guards.process_lock import ProcessLock
from dovetail_prims.sizes.at_sizes import at_sizes, exactly, symbolic_inputs
from torch.fx import GraphModule

Run = Callable[..., Any]


def _raised(gm: GraphModule, error: Exception) -> Run:
    raise error


@dataclass
class PerSize:
    """Calls like a compiled graph. `compile_at` compiles a graph of plain sizes; `tell` is told of
    each compilation, with the reason why there is not one for all sizes. Where compiling fails,
    `recover` gives what runs the graph from then on at any size, or raises."""

    gm: GraphModule
    reason: str
    compile_at: Callable[[GraphModule, Sequence[Any]], Run]
    tell: Callable[[str], None]
    recover: Callable[[GraphModule, Exception], Run] = _raised
    _varies: tuple[int, ...] = ()  # the inputs whose sizes, or values, are symbolic
    _recovered: Run | None = None
    _versions: dict[Any, Run] = field(default_factory=dict)
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def __post_init__(self) -> None:
        self._varies = symbolic_inputs(self.gm)

    def __call__(self, *inputs: Any) -> Any:
        """Run the version for the sizes of these inputs, compiled at their first call."""
        varying = (inputs[i] for i in self._varies)
        key = tuple(
            (v.shape, v.stride()) if isinstance(v, torch.Tensor) else exactly(v) for v in varying
        )
        run = self._versions.get(key, self._recovered)
        if run is None:
            with self._lock:
                run = self._versions.get(key, self._recovered)
                if run is None:
                    run = self._compile(key, inputs)
        return run(*inputs)

    def _compile(self, key: Any, inputs: Sequence[Any]) -> Run:
        shapes = [tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in inputs]
        sizes = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
        self.tell(f"compiled for the sizes {sizes} alone: {self.reason}")
        try:
            with torch.no_grad():
                run = self._versions[key] = self.compile_at(at_sizes(self.gm, inputs), inputs)
        except Exception as error:
            run = self._recovered = self.recover(self.gm, error)
        return run
