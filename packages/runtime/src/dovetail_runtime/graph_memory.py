"""Where a recording takes its memory: from what all graphs of a pool work in, one after the other,
or (what lives on when another graph is replayed) from a pool of its own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

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
