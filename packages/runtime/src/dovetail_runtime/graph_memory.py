"""Where CUDA graphs are recorded: a stream, and the memory that they and cuBLAS work in.

A recording takes its memory from what all graphs of a pool work in, one after the other, or (what
lives on when another graph is replayed) from a pool of its own. PyTorch keeps cuBLAS's workspaces
for each stream and thread, and anybody may have them freed (torch.compile does whenever it records
a graph). What is recorded goes on writing to them. So ours lie in a pool that nothing else is taken
from, on a stream that nobody else gets.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

from dovetail_runtime.artifact import CompiledArtifact
from dovetail_runtime.native import executor_module

PoolHandle = torch.cuda._POOL_HANDLE


def shared_pool(user: object, device: torch.device) -> PoolHandle:
    """A pool of PyTorch's allocator that is there as long as `user` lives, and longer while a graph
    that was captured into it does."""
    handle = torch.cuda.graph_pool_handle()
    _begin(device, handle)
    _end(device, handle)
    release = weakref.finalize(user, torch._C._cuda_releasePool, device.index, handle)
    release.atexit = False
    return handle


@contextmanager
def own_memory_where_told(
    device: torch.device, own: PoolHandle, shared: PoolHandle
) -> Iterator[Callable[[bool], None]]:
    """While this thread captures a graph into the pool `own`: memory is taken from the
    pool `shared`, but from `own` from when the function given is called with True until it is
    called with False."""
    current = own

    def take_from(handle: PoolHandle) -> None:
        nonlocal current
        if handle == current:
            return
        # One of the two is always begun: an allocator that sees no capture under way may do what a
        # capture forbids.
        _begin(device, handle)
        torch._C._cuda_releasePool(device.index, handle)  # it is held by its user or its graph
        _end(device, current)
        current = handle

    take_from(shared)
    try:
        yield lambda apart: take_from(own if apart else shared)
    finally:
        take_from(own)  # which the end of the capture ends


@contextmanager
def undone_if_it_fails(
    device: torch.device, handle: PoolHandle, stream: torch.cuda.Stream
) -> Iterator[None]:
    """Around a capture on a stream into a pool. Of one that the driver has refused (an operator
    waits for the GPU) PyTorch neither ends nor releases the pool, and its generators of random
    numbers go on as if in a capture: nobody could draw from them again."""
    try:
        yield
    except BaseException:
        try:
            _end(device, handle)
        except RuntimeError:  # it was ended: what failed came later
            pass
        else:
            torch._C._cuda_releasePool(device.index, handle)
        with suppress(RuntimeError):  # (the first error is the one to tell of)
            _capture_next_to_nothing(device, stream)
        raise


def _capture_next_to_nothing(device: torch.device, stream: torch.cuda.Stream) -> None:
    """The end of a capture that succeeds tells the generators that it is over. (PyTorch warns of a
    graph without any kernel.)"""
    number = torch.zeros((), device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        number.add_(1)


def _begin(device: torch.device, handle: PoolHandle) -> None:
    torch._C._cuda_beginAllocateCurrentThreadToPool(device.index, handle)


def _end(device: torch.device, handle: PoolHandle) -> None:
    torch._C._cuda_endAllocateToPool(device.index, handle)


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
