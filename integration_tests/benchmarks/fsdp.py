"""A Llama that is sharded by `fully_shard`: peak memory and milliseconds of a training step.

    python integration_tests/benchmarks/fsdp.py [--device cpu] [--layers 12] [--hidden 2048]
        [--weights policy|bfloat16|float32|autocast] [--what layers whole] [--peaks]

Eager, torch.compile and Dovetail, with each layer compiled or the whole model, two processes each
(over gloo on a CPU): all prepare at once, and are timed one after the other. `policy` keeps float32
weights and computes in bfloat16, by FSDP's mixed precision. With `--peaks`, on a GPU, what is alive
at the peak of the first process is listed, by size and by who allocated it. `saved` is what the
forward leaves, `peak` the most of a step, above what is there between steps. Exits with 1 where one
of Dovetail's is above another's (in their own way, eager in both), the peak on a GPU alone: when
gloo's threads let go of memory varies.
"""

from __future__ import annotations

import argparse
import fcntl
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from dovetail.bench.measure import seconds, synchronize
from dovetail.bench.table import machine
from dovetail.bench.worker import SYSTEMS

PROCESSES = 2
WARM_UP, TIMED = 4, 8


def model_of(given: argparse.Namespace) -> Any:
    """A Llama with random weights, the same in every process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=given.vocabulary, hidden_size=given.hidden,
        intermediate_size=given.hidden * 43 // 16, num_hidden_layers=given.layers,
        num_attention_heads=given.hidden // 64, num_key_value_heads=given.hidden // 64,
        max_position_embeddings=given.length, use_cache=False,
    )  # fmt: skip
    with torch.device(given.device):
        model = LlamaForCausalLM(config)
    return model.bfloat16() if given.weights == "bfloat16" else model


def compiled_by(system: str, target: Any) -> Any:
    """`target` compiled by a system."""
    if system == "eager":
        return target
    if system == "torch.compile":
        return torch.compile(target)
    import dovetail

    return dovetail.compile(target)


def sharded(model: Any, system: str, what: str, weights: str) -> Any:
    """The model with each layer, and what is left, sharded; compiled as a whole or its layers."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16 if weights == "policy" else None)
    layers = model.model.layers
    for i, layer in enumerate(layers):
        layers[i] = compiled_by(system, layer) if what == "layers" else layer
        fully_shard(layers[i], mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return compiled_by(system, model) if what == "whole" else model


def forward_of(given: argparse.Namespace, call: Any, rank: int) -> Callable[[], Tensor]:
    """The forward of a training step, to its loss."""
    generator = torch.Generator().manual_seed(rank)
    shape = (given.batch, given.length)
    ids = torch.randint(given.vocabulary, shape, generator=generator).to(given.device)

    def forward() -> Tensor:
        with torch.autocast(given.device, torch.bfloat16, enabled=given.weights == "autocast"):
            loss: Tensor = call(input_ids=ids, labels=ids).loss
        return loss

    return forward


def allocated_by(call: Callable[[], Any], device: str) -> tuple[int, int, Any]:
    """The bytes that are there after a call beyond what was there before, the most in between, and
    the call's result."""
    if device == "cuda":
        synchronize(device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        after, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        return after - before, most - before, result
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = call()
    results: Any = profiled.profiler
    events, stack = [], list(results.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack += event.children
        if event.tag.name == "Allocation":
            events.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = most = 0
    for _, size in sorted(events, key=lambda e: e[0]):
        now += size
        most = max(most, now)
    return now, most, result


def alive_at_peak(step: Callable[[], Any], count: int = 24) -> str:
    """What is alive at the peak of a step, by size and by the lines that allocated it."""
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    step()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    now = most = 0
    alive: dict[int, tuple[int, str]] = {}
    found: dict[int, tuple[int, str]] = {}
    for event in trace:
        if event["action"] == "alloc":
            lines = [f"{f['filename'].split('/')[-1]}:{f['line']}" for f in event["frames"][:5]]
            alive[event["addr"]] = event["size"], " < ".join(lines)
            now += event["size"]
            if now > most:
                most, found = now, dict(alive)
        elif event["action"] == "free_requested" and event["addr"] in alive:
            now -= alive.pop(event["addr"])[0]
    groups = sorted(Counter(found.values()).items(), key=lambda g: -g[0][0] * g[1])
    lines = [f"  {size / 2**20:9.2f} MiB x {n}: {where}" for (size, where), n in groups[:count]]
    return "\n".join([f"  peak of what the step allocates: {most / 2**20:.1f} MiB", *lines])


def work(rank: int, given: argparse.Namespace, port: int) -> None:
    """One of the processes: the first one prints the figures."""
    if given.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if given.device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=PROCESSES,
    )  # fmt: skip
    (what,) = given.what
    model = model_of(given)
    call = sharded(model, given.system, what, given.weights)
    forward = forward_of(given, call, rank)

    def backward(loss: Tensor) -> float:
        loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
        return float(loss.detach())

    def step() -> float:
        return backward(forward())

    start = time.perf_counter()
    step()
    synchronize(given.device)
    first = time.perf_counter() - start
    for _ in range(WARM_UP):
        loss = step()
    turns: IO[str]
    with open(given.turns, "a") as turns:
        if rank == 0:
            fcntl.flock(turns, fcntl.LOCK_EX)
        dist.barrier()
        taken = sorted(seconds(step, given.device) for _ in range(TIMED))
        dist.barrier()
    saved, _, output = allocated_by(forward, given.device)
    backward(output)
    del output
    _, peak, _ = allocated_by(step, given.device)
    if given.peaks:
        listed = alive_at_peak(step)
    if rank == 0:
        print(f"{saved} {peak} {taken[TIMED // 2]} {first} {loss}", flush=True)
        if given.peaks:
            print(listed)
    dist.destroy_process_group()


def main() -> int:
    """Print a line for each system and way; 1 if Dovetail's peak is above another's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    weights = ("policy", "bfloat16", "float32", "autocast")
    parser.add_argument("--weights", choices=weights, default="policy")
    parser.add_argument(
        "--what", nargs="+", choices=("layers", "whole"), default=["layers", "whole"]
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--turns", help=argparse.SUPPRESS)
    parser.add_argument("--system", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.system is not None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        mp.spawn(work, args=(given, port), nprocs=PROCESSES)  # type: ignore[no-untyped-call]
        return 0
    print(machine(given.device), flush=True)
    cases = [
        (w, s) for w in given.what for s in given.systems if s != "eager" or w == given.what[0]
    ]
    found: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.NamedTemporaryFile() as turns:
        command = [sys.executable, __file__, *sys.argv[1:], "--turns", turns.name]
        running = {
            (what, system): subprocess.Popen(
                [*command, "--what", what, "--system", system], stdout=subprocess.PIPE, text=True
            )
            for what, system in cases
        }
        for (what, system), process in running.items():
            told = process.communicate()[0].splitlines()
            if process.returncode:
                print(f"{what}: {system}: failed", flush=True)
                continue
            saved, peak, taken, first, loss = map(float, told[0].split())
            found[what, system] = saved, peak if given.device == "cuda" else 0
            print(
                f"{what}: {system}: saved {saved / 2**20:.2f} MiB, peak {peak / 2**20:.1f} MiB, "
                f"step {taken * 1e3:.2f} ms, first {first:.1f} s, loss {loss:.4f}",
                *told[1:],
                sep="\n",
                flush=True,
            )
    return int(
        any(
            found[what, "dovetail"][i] > bytes_of[i]
            for (other, system), bytes_of in found.items()
            for what in given.what
            for i in range(2)
            if (what, "dovetail") in found and (other == what or system == "eager")
        )
    )


if __name__ == "__main__":
    sys.exit(main())
