"""Dovetail's back half as a backend of torch.compile: `torch.compile(model, backend="dovetail")`.

PyTorch's front end captures; autograd_aot, inductor and runtime are ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from dovetail_autograd_aot.trace.input_storages import of_sizes
from dovetail_capture import takes_symbolic_graphs
from dovetail_guards.process_lock import ProcessLock
from dovetail_prims.conditionals import run_plainly
from torch import Tensor
from torch.fx import GraphModule

from dovetail.config import options_set
from dovetail.foreign_sizes import adopt_sizes
from dovetail.options import resolve_options
from dovetail.pipeline import CompilerBackend

Run = Callable[..., Any]
Aliasing = tuple[tuple[int, int], ...]


def aliasing_of(inputs: Sequence[Any]) -> Aliasing | None:
    """Which inputs lie in one storage, and where in it; None if each has its own. (torch.compile
    does not guard that inputs share no memory.)"""
    tensors = [v for v in inputs if isinstance(v, Tensor) and v.layout is torch.strided]
    storages = [t.untyped_storage()._cdata for t in tensors]
    if len(set(storages)) == len(storages):
        return None
    number = {storage: i for i, storage in enumerate(dict.fromkeys(storages))}
    return tuple(
        (number[s], int(t.storage_offset())) for s, t in zip(storages, tensors, strict=True)
    )


@dataclass
class PerAliasing:
    """A compiled graph that writes to its inputs, `compiled` for inputs that share memory as
    `aliasing` says. Where they share it in another way `compile_for` compiles the graph anew, for
    the sizes of that call, and from `limit` such versions on the graph runs uncompiled."""

    gm: GraphModule
    aliasing: Aliasing | None
    compiled: Run
    compile_for: Callable[[GraphModule, Sequence[Any]], Run]
    limit: int
    _others: dict[Any, Run] = field(default_factory=dict)
    _lock: ProcessLock = field(default_factory=ProcessLock)

    def __call__(self, *inputs: Any) -> Any:
        """Run the version that fits how these inputs share memory."""
        aliasing = aliasing_of(inputs)
        if aliasing == self.aliasing:
            return self.compiled(*inputs)
        return self._other(aliasing, inputs)(*inputs)

    def _other(self, aliasing: Aliasing | None, inputs: Sequence[Any]) -> Run:
        key = aliasing, tuple((v.shape, v.stride()) if isinstance(v, Tensor) else v for v in inputs)
        with self._lock:
            found = self._others.get(key)
            if found is None and len(self._others) < self.limit:
                found = self.compile_for(of_sizes(self.gm, inputs), inputs)
                self._others[key] = found
            elif found is None:
                warnings.warn(
                    f"a graph that writes to its inputs met {self.limit} ways in which they share "
                    "memory; it runs uncompiled where they share it in yet another one",
                    stacklevel=4,
                )
                found = run_plainly(self.gm)
            return found


@takes_symbolic_graphs
def dovetail_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile the graph that torch.compile captured (entry point `torch_dynamo_backends`).

    `mode` and `options` are those of `dovetail.compile`; torch.compile passes them on. What they do
    not say is as `dovetail.config` says when the graph is compiled. Symbolic sizes stay symbolic,
    and what is decided about them becomes a guard of torch.compile's.
    """
    backend = CompilerBackend(resolve_options(mode, options, options_set()))
    try:
        adopted = adopt_sizes(gm, example_inputs)
        examples = example_inputs if adopted is None else adopted[1]
        compiled = backend(gm, examples)
        if adopted is not None:
            adopted[0].tell_guards()
        if not backend.writes_inputs:
            return compiled
        limit = backend.options.recompile_limit
        return PerAliasing(gm, aliasing_of(examples), compiled, backend, limit)
    except Exception as error:
        return backend.uncompiled(gm, error)
