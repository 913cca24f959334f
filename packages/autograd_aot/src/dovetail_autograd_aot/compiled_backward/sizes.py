"""One graph for several sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from dovetail_autograd_aot.compiled_backward.program import Program

Found = tuple[Callable[..., Sequence[Any]], tuple[Any, ...]]


class Family:
    def __init__(self) -> None:
        self.graphs = 0

    def find(self, program: Program, tensors: Sequence[Tensor]) -> Found | None:
        return None

    def compile(
        self, program: Program, tensors: Sequence[Tensor], compiler: Any
    ) -> tuple[Callable[..., Sequence[Any]], tuple[Any, ...], GraphModule]:
        module = program.module()
        run = compiler(module, [t.detach() for t in tensors])
        self.graphs += 1
        return run, (), module

    def is_symbolic(self, run: Any) -> bool:
        return False
