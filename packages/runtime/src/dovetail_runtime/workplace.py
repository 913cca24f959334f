"""Where CUDA graphs are recorded: a stream, and memory that cuBLAS works in there.

PyTorch keeps such workspaces for each stream and thread, and anybody may have them freed
(torch.compile does whenever it records a graph). What is recorded goes on writing to them. So ours
lie in a pool that nothing else is taken from, on a stream that nobody else gets.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.native import executor_module

# Parts of the names of operators that do not call cuBLAS (any other may), and of those that call
# cublasLt, whose workspace is another one.
_WITHOUT_CUBLAS = (
    "convolution",
    "cudnn",
    "flash_attention",
    "efficient_attention",
    "copy",
    "clone",
)
_WITH_CUBLAS_LT = ("addmm", "linear", "scaled_mm", "scaled_grouped_mm", "int_mm")
_SPOILED = "a product that needed no workspace of cuBLAS needed one where graphs are recorded"


class Workplace:
    """A stream of a device for recordings alone, and the workspaces on it."""

    def __init__(self, device: torch.device) -> None:
        raw = executor_module().new_stream(device.index)
        self.stream: torch.cuda.Stream = torch.cuda.ExternalStream(raw, device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.MemPool()
        self._spoiled = False

    @contextmanager
    def prepared(self, artifact: CompiledArtifact) -> Iterator[None]:
        """While this thread runs an artifact on the stream, which has run before: the workspaces
        that it needs are taken, if they are not there. Raises RuntimeError if it turned out to need
        others: what PyTorch took then lies where anybody may have it freed, for good."""
        if self._spoiled:
            raise RuntimeError(_SPOILED)
        called = artifact.run.aten_operators()
        if not all(_is_one_of(op, _WITHOUT_CUBLAS) for op in called):
            with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(self._memory):
                torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
                if any(_is_one_of(op, _WITH_CUBLAS_LT) for op in called):
                    _call_cublas_lt(self.stream.device)
        yield
        if not artifact.run.aten_operators() <= called:
            self._spoiled = True
            raise RuntimeError(_SPOILED)


def _is_one_of(op: str, parts: tuple[str, ...]) -> bool:
    return any(part in op for part in parts)


def _call_cublas_lt(device: torch.device) -> None:
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cuda", enabled=False):
        x = torch.zeros(16, 16, dtype=torch.bfloat16, device=device)
        torch.addmm(x[0], x, x)


@lru_cache(maxsize=1)
def _idle() -> dict[torch.device, list[Workplace]]:
    """Those whose users are gone, for the next ones: neither their streams nor their memory can be
    given back, as PyTorch's tables of workspaces know them."""
    return defaultdict(list)


def workplace_for(user: object, device: torch.device) -> Workplace:
    """A workplace that is `user`'s alone as long as it lives. `device` is the current one."""
    idle = _idle()[device]
    found = idle.pop() if idle else Workplace(device)
    weakref.finalize(user, idle.append, found)
    return found
