"""Triton kernels run on a CPU, watched (`watched_memory`), under Triton's interpreter."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from dovetail_runtime.compile_pool import CompilePool
from dovetail_runtime.plan import TritonKernel

_WORKER = Path(__file__).with_name("interpreter_worker.py")


def run_in_interpreter(
    kernel: TritonKernel, arguments: Sequence[torch.Tensor | int], grid: tuple[int, int, int]
) -> None:
    """Run one launch on CPU tensors, whose memory holds the result afterwards, under Triton's
    interpreter; a `TritonLauncher` for `ReferenceExecutor`. It is slow."""
    storages: list[torch.Tensor] = []
    numbers: dict[int, int] = {}
    described: list[dict[str, object] | int] = []
    for argument in arguments:
        if not isinstance(argument, torch.Tensor):
            described.append(argument)
            continue
        storage = argument.untyped_storage()
        if storage.data_ptr() not in numbers:
            numbers[storage.data_ptr()] = len(storages)
            storages.append(torch.empty(0, dtype=torch.uint8).set_(storage))
        described.append(
            {
                "storage": numbers[storage.data_ptr()],
                "dtype": str(argument.dtype).removeprefix("torch."),
                "offset": argument.storage_offset(),
                "shape": list(argument.shape),
                "stride": list(argument.stride()),
            }
        )
    with tempfile.TemporaryDirectory(prefix="dovetail-interpret-") as directory:
        sent, received = Path(directory) / "arguments.pt", Path(directory) / "results.pt"
        torch.save((storages, described), sent)
        job = {
            **vars(kernel),
            "arguments": str(sent),
            "results": str(received),
            "grid": grid,
        }
        _interpreter().submit(job).result()
        for mine, result in zip(storages, torch.load(received, weights_only=True), strict=True):
            mine.copy_(result)


@lru_cache(maxsize=1)
def _interpreter() -> CompilePool:
    """A process of its own: the interpreter must be chosen before Triton is imported."""
    command = [sys.executable, "-u", str(_WORKER)]
    return CompilePool(command, 1, {"TRITON_INTERPRET": "1"})
