"""Where a model's step goes on the CPU: our plans step by step, beside eager's ops.

python integration_tests/benchmarks/profile_steps.py MODEL [--train] [--dump FOLDER] [--small]

Steps of the same kernel or op on the same shapes are one row. `--dump` writes the source of every
kernel to a folder, as SYMBOL.cpp.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from dovetail_runtime.plan import CppKernel, Plan
from torch.profiler import ProfilerActivity, profile

import dovetail.pipeline
from dovetail.bench.models import Case
from dovetail.bench.worker import Spec, build_case, step_of

sys.path.insert(0, str(Path(__file__).parents[2] / "packages" / "runtime" / "benchmarks"))
from step_times import StepTime, step_times

Seen = list[tuple[Plan, list[torch.Tensor]]]


def remember(seen: Seen) -> Callable[..., Any]:
    """A `load` whose plans leave their inputs in `seen` when they run."""
    load = dovetail.pipeline.load

    class Remembered:
        def __init__(self, plan: Plan, **options: Any) -> None:
            self.plan = plan
            self._run = load(plan, **options).run

        def run(self, *inputs: Any) -> Any:
            seen.append((self.plan, [t.clone() for t in inputs]))
            return self._run(*inputs)

    return Remembered


def table(rows: list[StepTime], top: int) -> None:
    """Steps by total time."""
    groups: dict[tuple[Any, ...], list[StepTime]] = defaultdict(list)
    for row in rows:
        groups[row.name, row.shapes].append(row)
    order = sorted(groups.items(), key=lambda g: -sum(r.seconds for r in g[1]))
    for (name, shapes), group in order[:top]:
        total = sum(r.seconds for r in group)
        rate = sum(r.nbytes for r in group) / total / 1e9
        text = " ".join("x".join(map(str, s)) for s in shapes)
        print(f"{total * 1e3:9.2f} ms {len(group):4d}x {rate:6.1f} GB/s  {name:36s} {text[:150]}")


def main() -> None:
    """Profile one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--dump", type=Path)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    spec = Spec(
        system="dovetail",
        model=arguments.model,
        train=arguments.train,
        device="cpu",
        mode=None,
        dtype="float32",
        small=arguments.small,
        steady_s=0.0,
        overhead=False,
    )
    case = build_case(spec)
    eager = step_of(Case(case.model, case.inputs, case.loss), case.model, spec)
    eager()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        eager()
    seen: Seen = []
    dovetail.pipeline.load = remember(seen)
    step_of(case, dovetail.compile(case.model, fullgraph=True), spec)()
    for plan, inputs in seen:
        if arguments.dump is not None:
            arguments.dump.mkdir(parents=True, exist_ok=True)
            for kernel in plan.kernels:
                if isinstance(kernel, CppKernel):
                    (arguments.dump / f"{kernel.symbol}.cpp").write_text(kernel.source)
        rows = step_times(plan, inputs)
        print(f"\n{plan.name}: {sum(r.seconds for r in rows) * 1e3:.1f} ms in {len(rows)} steps")
        table(rows, arguments.top)
    print("\neager, self CPU time (with the profiler's own overhead)")
    events = sorted(profiled.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    print(f"{total / 1e3:9.2f} ms in all")
    for event in events[: arguments.top]:
        print(f"{event.self_cpu_time_total / 1e3:9.2f} ms {event.count:4d}x  {event.key}")


if __name__ == "__main__":
    main()
