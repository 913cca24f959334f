"""Random programs on tensors whose strides change from call to call, compared with eager.

`python integration_tests/strided_programs.py 0 500 aot_eager` runs the programs of 500 seeds and
prints what differs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

import dovetail

Step = Callable[[Tensor], Tensor]

# From the number of a call to a tensor of 3 dimensions that is a part of another.
LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "rows": lambda n: torch.randn(4, 3, n + 1)[..., :-1],
    "chunk": lambda n: torch.randn(4, n, 24)[..., 8:16],
    "middle": lambda n: torch.randn(4, n + 2, 6)[:, 1:-1],
    "columns": lambda n: torch.randn(4, 3, n)[..., 1:3],
    "repeated": lambda n: torch.randn(4, 1, n + 1)[..., :-1].expand(4, 3, n),
    "transposed": lambda n: torch.randn(4, n + 3, 6)[:, :n].transpose(1, 2),
    "permuted": lambda n: torch.randn(n + 1, 4, 3)[:n].permute(1, 2, 0),
    "gaps": lambda n: torch.randn(20 * n + 60).as_strided((4, 3, n), (5 * n + 7, n + 2, 1), 3),
}
STEPS: dict[str, Step] = {
    "affine": lambda x: x * 2 + 1,
    "turned": lambda x: x.sin().transpose(0, 1),
    "contiguous": lambda x: x.contiguous(),
    "with its sum": lambda x: x + x.sum(-1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "slice": lambda x: x[:, 1:],
    "product": lambda x: x.transpose(-1, -2) @ x,
    "clone": lambda x: x.clone(),
    "cat": lambda x: torch.cat([x, x], -1),
    "cumsum": lambda x: x.cumsum(-1),
    "by layout": lambda x: x * 2 if x.is_contiguous() else x * 3,
    "view": lambda x: x.view(x.shape),
    "centred": lambda x: x - x.mean(0, keepdim=True),
    "flip": lambda x: x.flip(-1),
    "pad": lambda x: F.pad(x, (1, 0)),
    "by its stride": lambda x: x * (1 + x.stride(0) % 5),
    "like zeros": lambda x: torch.zeros_like(x) + x,
    "relu": lambda x: x.clone().relu_(),
    "stack": lambda x: torch.stack([x, x * 2]),
}


@dataclass(frozen=True)
class StridedProgram:
    """What one seed stands for."""

    layout: str
    steps: tuple[str, ...]
    writes: bool
    needs_gradient: bool
    returns_view: bool
    lengths: tuple[int, ...]

    @staticmethod
    def of(seed: int) -> StridedProgram:
        r = random.Random(seed)
        layout = r.choice(list(LAYOUTS))
        steps = tuple(r.choice(list(STEPS)) for _ in range(r.randint(1, 4)))
        writes = r.random() < 0.25 and layout != "repeated"
        gradient = r.random() < 0.5 and not writes
        lengths = tuple(r.sample(range(5, 12), 5)) if r.random() < 0.5 else (5, 6, 7, 8, 9)
        return StridedProgram(layout, steps, writes, gradient, r.random() < 0.2, lengths)

    def __call__(self, x: Tensor) -> Any:
        if self.writes:
            x.mul_(1.5)
        y = x
        for name in self.steps:
            y = STEPS[name](y)
        return (y, x[0]) if self.returns_view else y


def _seen(fn: Callable[..., Any], program: StridedProgram, x: Tensor) -> list[Any]:
    """What a call gives, with layouts, and what it has written or its gradient."""
    memory = (x if x._base is None else x._base).detach().clone()
    memory.requires_grad_(program.needs_gradient)
    given = memory.as_strided(x.shape, x.stride(), x.storage_offset())
    results = tree_leaves(fn(given))
    seen: list[Any] = []
    for y in results:
        shared = y.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
        seen += [y.detach(), y.stride(), shared]
    if results[0].requires_grad:
        weights = torch.arange(results[0].numel()).remainder(7).view(results[0].shape)
        gradient = torch.autograd.grad((results[0] * weights).sum(), memory)[0]
        seen += [gradient, gradient.stride()]
    return [*seen, memory.detach()]


def check(seed: int, backend: str) -> int:
    """Compare the calls of a seed's program; gives the number of graphs. Raises AssertionError."""
    program = StridedProgram.of(seed)
    torch.manual_seed(seed)
    dovetail.reset()
    compiled = dovetail.compile(lambda x: program(x), backend=backend)
    for length in program.lengths:
        x = LAYOUTS[program.layout](length)
        try:
            wanted = _seen(program, program, x)
        except Exception as error:
            try:
                _seen(compiled, program, x)
            except type(error):
                return 0
            raise AssertionError(f"{program}: nothing raised for {error!r}") from error
        for mine, theirs in zip(_seen(compiled, program, x), wanted, strict=True):
            if isinstance(theirs, Tensor):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=str(program))
            else:
                assert mine == theirs, (program, length, mine, theirs)
    report = dovetail.report(compiled)
    assert not report.breaks, (program, report.breaks)
    return report.graphs


def main(first: int, count: int, backend: str) -> None:
    """Check some seeds and print what differs."""
    graphs: dict[int, int] = {}
    for seed in range(first, first + count):
        try:
            found = check(seed, backend)
        except AssertionError as error:
            print(f"seed {seed}: {str(error)[:500]}", flush=True)
        else:
            graphs[found] = graphs.get(found, 0) + 1
    print(f"{count} programs from seed {first}; programs by number of graphs: {graphs}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
