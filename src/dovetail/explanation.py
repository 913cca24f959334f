"""`dovetail.explain`: what becomes of a function, before code is generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dovetail_capture
from dovetail_autograd_aot import AotLog, SavedSet, aot_compile
from dovetail_capture import Explanation as CaptureExplanation
from dovetail_capture import takes_symbolic_graphs
from dovetail_prims.decompositions import core_aten_table
from torch.fx import GraphModule

from dovetail.options import resolve_options
from dovetail.pipeline import cut


@dataclass(frozen=True)
class Explanation(CaptureExplanation):
    """What capture made of one call, and AOT autograd of its graphs."""

    autograd: AotLog

    @property
    def saved(self) -> tuple[SavedSet, ...]:
        """What each graph with a backward saves for it, newest last."""
        return tuple(self.autograd.saved)

    def as_text(self, *, verbose: bool = False) -> str:
        """What was captured and saved, for people; with `verbose` all of it."""
        saved = self.autograd.lines(named=verbose)
        return "\n".join([super().as_text(verbose=verbose), *saved])


def explain(
    target: Any, *, dynamic: bool | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Explanation]:
    """`explain(f)(*args)` runs `f` once, its graphs traced and cut in forward and backward but
    not compiled, and tells about it: graphs, breaks, guards, replaced code, saved values.

    `options` are those of `compile`.
    """
    chosen = resolve_options(None, options)

    def run(*args: Any, **kwargs: Any) -> Explanation:
        log = AotLog()

        @takes_symbolic_graphs
        def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            return aot_compile(
                gm,
                example_inputs,
                forward_compiler=lambda graph, inputs: graph.forward,
                decompositions=core_aten_table(),
                partition=lambda joint: cut(joint, chosen),
                log=log,
            )

        found = dovetail_capture.explain(target, dynamic=dynamic, backend=backend)(*args, **kwargs)
        parts = {f.name: getattr(found, f.name) for f in fields(CaptureExplanation)}
        return Explanation(**parts, autograd=log)

    return run
