"""A worker process that runs Triton kernels interpreted: see `kernel_interpreter.py`."""

from __future__ import annotations

from typing import Any

import torch
import watched_memory  # beside this script
from dovetail_runtime.triton_worker import load_source, serve


def interpret_kernel(job: dict[str, Any], directory: str) -> dict[str, Any]:
    """Run on CPU tensors read from `arguments`, and write them to `results`."""
    function = load_source(job["source"], job["symbol"], directory)
    scope = function.fn.__globals__
    if "libdevice" in scope:
        scope["libdevice"] = watched_memory.DeviceLibrary()
    for name in {"gdc_wait", "gdc_launch_dependents"} & scope.keys():
        scope[name] = lambda: None  # one launch after the other
    storages, arguments = torch.load(job["arguments"], weights_only=True)
    values = [
        torch.empty(0, dtype=getattr(torch, a["dtype"])).set_(
            storages[a["storage"]].untyped_storage(), a["offset"], a["shape"], a["stride"]
        )
        if isinstance(a, dict)
        else a
        for a in arguments
    ]
    positional = [name for name, kind in job["signature"] if kind != "constexpr"]
    named = dict(zip(positional, values, strict=True)) | dict(job["constexprs"])
    with watched_memory.watching(watched_memory.MemoryWatch(storages, job["scatters"])):
        function[tuple(job["grid"])](**named)
    torch.save(storages, job["results"])
    return {}


if __name__ == "__main__":
    serve(interpret_kernel)
