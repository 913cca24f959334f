"""What a forward leaves in the GPU's memory for its backward: eager, torch.compile and Dovetail.

    python integration_tests/benchmarks/saved_bytes.py [MODEL ...] [--dtype bfloat16] [--jobs 4]

Bytes that the allocator holds once the loss is there, beyond those before the forward: what is
saved, and the output, which is the same for all. Each system has a process of its own, and two
whole steps go before. Exits with 1 if Dovetail holds more than another (by more than 1%: blocks
are rounded up).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import torch

from dovetail.bench.models import architectures
from dovetail.bench.table import machine
from dovetail.bench.worker import SYSTEMS, Spec, build_case, compile_by, step_of

SLACK = 1.01


def held(spec: Spec) -> int:
    """Bytes held between the forward and the backward."""
    case = build_case(spec)
    call = compile_by(spec, case.model)
    step = step_of(case, call, spec)
    for _ in range(2):
        step()
    for parameter in case.model.parameters():
        parameter.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    output = call(**case.inputs)
    loss = case.loss(output)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated()
    loss.backward()  # type: ignore[no-untyped-call]
    return after - before


def measured(model: str, system: str, dtype: str) -> int | None:
    """`held` in a process of its own; None if it fails, with what it says on stderr."""
    spec = Spec(system, model, True, "cuda", None, dtype, False, 0.0, False)
    command = [sys.executable, __file__, "--worker", json.dumps(asdict(spec))]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=250)
    except subprocess.TimeoutExpired:
        return None
    return int(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def main() -> int:
    """Print the table; 1 if Dovetail holds more than another, or a system failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="default: one of each architecture")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(held(Spec(**json.loads(arguments.worker))))
        return 0
    models = arguments.models or architectures()
    print(machine("cuda"))
    print("| model | eager MiB | torch.compile MiB | Dovetail MiB |\n|---|---|---|---|")
    failed = False
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = {m: [pool.submit(measured, m, s, arguments.dtype) for s in SYSTEMS] for m in models}
        for model, row in rows.items():
            found = [future.result() for future in row]
            cells = ["-" if n is None else f"{n / 2**20:.1f}" for n in found]
            print(f"| {model} | {' | '.join(cells)} |", flush=True)
            *others, ours = found
            failed |= any(ours is None or n is None or ours > SLACK * n for n in others)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
