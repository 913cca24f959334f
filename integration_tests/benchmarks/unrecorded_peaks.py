"""Peak memory of one call that no CUDA graph replays, beside eager's and torch.compile's.

`python integration_tests/benchmarks/unrecorded_peaks.py llama-1b-16 resnet18-1 bert-base-1` takes
cases of the suite; needs a GPU. (Recordings hold their memory in pools, which hides what a call
needs.)
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

import dovetail
from dovetail.bench.measure import peak_bytes
from dovetail.bench.models import resolve


def main(names: list[str]) -> None:
    """Print a line for each case and system, in MiB above what is held before the call."""
    for name in names:
        case = resolve(name)(False)
        model = case.model.to("cuda", torch.bfloat16).eval()
        inputs = {key: _on_gpu(value) for key, value in case.inputs.items()}
        systems = {
            "eager": model,
            "torch.compile": torch.compile(model),
            "dovetail": dovetail.compile(model, options={"launch_bound_cudagraphs": False}),
        }
        for system, run in systems.items():
            with torch.no_grad():
                for _ in range(3):
                    run(**inputs)
                peak = peak_bytes(partial(run, **inputs), "cuda") / 2**20
            print(f"{name} {system} {peak:.4f} MiB", flush=True)


def _on_gpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to("cuda", torch.bfloat16 if value.is_floating_point() else None)


if __name__ == "__main__":
    main(sys.argv[1:])
