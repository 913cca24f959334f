"""What a process takes of the GPU's memory while it runs a model, pools of CUDA graphs included.

python integration_tests/benchmarks/held_memory.py bert-base-1 resnet50-64 [--mode reduce-overhead]
    [--train] [--jobs N]

Each system has a process of its own; needs a GPU. After some steps what nothing uses is given back
to the driver; `held` is what torch's allocator has reserved then (the graphs' pools, gradients),
`most` the most that it has reserved while two more steps run; MiB above the parameters and inputs.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from dovetail.bench.worker import SYSTEMS, Spec, build_case, compile_by, step_of

STEPS = 12
"""Until every graph that is to be recorded is."""


def measured(spec: Spec) -> str:
    """The line of one system."""
    case = build_case(spec)
    call = case.model if spec.system == "eager" else compile_by(spec, case.model)
    before = _reserved()
    step = step_of(case, call, spec)
    for _ in range(STEPS):
        step()
        torch.cuda.synchronize()
    held = _reserved() - before
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_reserved() - before
    kind = "training" if spec.train else "inference"
    return f"{spec.model} {kind}: {spec.system}: held {_mib(held)}, most {_mib(most)}"


def _reserved() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def main() -> None:
    """Print a line for each case and system."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--mode", default="reduce-overhead")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--jobs", type=int, default=3, help="processes at once")
    parser.add_argument("--system", choices=SYSTEMS, help="of this process alone")
    given = parser.parse_args()
    if given.system is not None:
        mode = None if given.mode == "default" else given.mode
        for model in given.models:
            spec = Spec(
                given.system, model, given.train, "cuda", mode, "bfloat16", False, 0.0, False
            )
            print(measured(spec), flush=True)
        return
    command = [sys.executable, __file__, "--mode", given.mode]
    if given.train:
        command.append("--train")

    def run(model: str, system: str) -> None:
        line = subprocess.run(
            [*command, "--system", system, model], check=True, stdout=subprocess.PIPE, text=True
        )
        print(line.stdout, end="", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        futures = [pool.submit(run, model, system) for model in given.models for system in SYSTEMS]
        for future in futures:
            future.result()


if __name__ == "__main__":
    main()
