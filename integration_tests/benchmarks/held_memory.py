"""What a model takes of the GPU's memory: eager, torch.compile and Dovetail.

    python integration_tests/benchmarks/held_memory.py [MODEL ...] [--what inference training]
        [--mode reduce-overhead | --unrecorded] [--gpus N] [--jobs N]

Each system has a process of its own; the cases are the suite's, and training of what is hard on
memory (mixtures of experts, large vocabularies, embeddings), unless models are named. After some
steps what nothing uses is given back to the driver; `held` is what torch's allocator has reserved
then (pools of CUDA graphs, gradients), `most` the most that it has reserved while two more steps
run; above the parameters and inputs. With `--unrecorded`, both are instead what the allocator has
handed out, in the default mode without CUDA graphs, whose pools hide what a step needs; the
libraries' workspaces, which stay from the first call on, are in both.
Names at the end the cases where Dovetail takes most.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from gpu_suite import MODELS

from dovetail.bench.worker import SYSTEMS, Spec, build_case, compile_by, step_of

HARD = tuple(
    (model, True)
    for model in (
        "held_out:mixtral",
        "held_out_wide:qwen3_moe",
        "held_out_wide:deepseek_v3",
        "held_out_more:gemma",
        "held_out:dlrm",
    )
)
STEPS = 12
"""Until every graph that is to be recorded is."""


def measured(spec: Spec, recorded: bool) -> tuple[int, int]:
    """Bytes held between steps and the most of a step."""
    case = build_case(spec)
    call = compile_by(spec, case.model, recorded)
    count = _reserved if recorded else _allocated
    before = count()
    step = step_of(case, call, spec)
    for _ in range(STEPS if recorded else 3):
        step()
        torch.cuda.synchronize()
    held = count() - before
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    if recorded:
        return held, torch.cuda.max_memory_reserved() - before
    return held, torch.cuda.max_memory_allocated() - before


def _allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _reserved() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def main() -> None:
    """Print a line for each case and system."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*")
    both = ("inference", "training")
    parser.add_argument("--what", nargs="+", choices=both, default=both)
    parser.add_argument("--mode", default="reduce-overhead")
    parser.add_argument("--unrecorded", action="store_true", help="in the default mode")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=3, help="processes at once, of a GPU")
    parser.add_argument("--system", choices=SYSTEMS, help="of this process alone")
    given = parser.parse_args()
    if given.system is not None:
        mode = None if given.mode == "default" or given.unrecorded else given.mode
        train = given.what == ["training"]
        spec = Spec(
            given.system, given.models[0], train, "cuda", mode, "bfloat16", False, 0.0, False
        )
        print(*measured(spec, not given.unrecorded))
        return
    cases = [
        (model, "training" if train else "inference")
        for model, train in (*MODELS, *HARD)
        if not given.models or model in given.models
    ]
    known = dict((*MODELS, *HARD))
    cases += [(model, what) for model in given.models for what in both if model not in known]
    gpus: SimpleQueue[int] = SimpleQueue()
    for slot in range(given.gpus * given.jobs):
        gpus.put(slot % given.gpus)

    command = [sys.executable, __file__, "--mode", given.mode]
    if given.unrecorded:
        command.append("--unrecorded")

    def run(case: tuple[str, str], system: str) -> tuple[int, int]:
        gpu = gpus.get()
        try:
            done = subprocess.run(
                [*command, "--system", system, "--what", case[1], "--", case[0]],
                check=True, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)},
            )  # fmt: skip
        finally:
            gpus.put(gpu)
        held, most = map(int, done.stdout.split()[-2:])
        print(
            f"{case[0]} {case[1]}: {system}: held {held / 2**20:.2f} MiB, most {most / 2**20:.2f}",
            flush=True,
        )
        return held, most

    with ThreadPoolExecutor(gpus.qsize()) as pool:
        found = {
            (case, system): pool.submit(run, case, system)
            for case in cases
            if case[1] in given.what
            for system in SYSTEMS
        }
        most = {key: future.result()[1] for key, future in found.items()}
    for case in dict.fromkeys(case for case, _ in most):
        other = min(most[case, system] for system in SYSTEMS if system != "dovetail")
        if most[case, "dovetail"] > other:
            print(f"above the others: {' '.join(case)}: {most[case, 'dovetail']} beside {other}")


if __name__ == "__main__":
    main()
