"""Every operator of PyTorch's database as one compiled function for all of its samples.

`python integration_tests/sweep_sizes.py [OP ...] [--shard I/N] [--samples N] [--stage graphs]`
compiles each operator with symbolic sizes and calls it with sample after sample, those whose
tensors have as many dimensions by one function, and two of each kind by another: sizes, layouts and
other arguments change from call to call, and what a graph assumes of them without a guard shows.
Results, gradients and written-to inputs are compared with eager as in `sweep_operators.py`. Exits
with 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from sweep_operators import (
    DTYPES,
    STAGES,
    Counting,
    NotForEager,
    TooLong,
    against_eager,
    as_call,
    operators,
)
from torch.utils import _pytree as pytree

import dovetail

SECONDS = 90  # of processor time for an operator


def _dimensions(sample: Any) -> tuple[Any, ...]:
    """What the samples of one compiled function have in common."""
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    return str(spec), *(x.dim() if isinstance(x, torch.Tensor) else None for x in leaves)


def differences(op: Any, dtype: torch.dtype, stage: str, limit: int) -> Iterator[str]:
    """For each call of what another sample's call has compiled, what is wrong with it (nothing:
    ""). At most `limit` samples of each kind take part."""
    differentiable = dtype.is_floating_point or dtype.is_complex
    grads = op.supports_autograd and differentiable and dtype in op.backward_dtypes
    torch.manual_seed(3)
    kinds = collections.defaultdict(list)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=grads)):
        kinds[_dimensions(sample)].append((number, sample))
    mixed = [pair for samples in kinds.values() for pair in samples[:2]]
    for samples in (*kinds.values(), mixed):
        if len(samples) == 1:
            continue
        compiled = dovetail.compile(as_call(op), dynamic=True, backend=Counting(stage))
        first = True
        for number, sample in itertools.islice(samples, limit):
            try:
                difference = against_eager(op, sample, compiled, grads)
            except NotForEager:
                continue
            except Exception as error:
                difference = type(error).__name__, str(error)[:300]
            if difference is not None:
                yield f"sample {number}: {difference[0]}: {difference[1]}"
            elif not first:
                yield ""
            first = False
        dovetail.reset()


def _over(signum: int, frame: Any) -> None:
    raise TooLong


def run(names: Sequence[str], dtype: str, stage: str, limit: int) -> collections.Counter[str]:
    """Sweeps operators and prints what is wrong; how many were right, wrong, cut off, or have no
    two samples to be called one after the other; and how many calls of other samples were right."""
    known = operators()
    counts: collections.Counter[str] = collections.Counter()
    signal.signal(signal.SIGPROF, _over)
    for name in names or sorted(known):
        if DTYPES[dtype] not in known[name].dtypes:
            continue
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            found = list(differences(known[name], DTYPES[dtype], stage, limit))
            wrong = [text for text in found if text]
            counts["wrong" if wrong else "right" if found else "alone"] += 1
            counts["right calls"] += len(found) - len(wrong)
            for text in wrong[:3]:
                print(f"{name}: {text}", flush=True)
        except TooLong:
            counts["cut off"] += 1
            print(f"{name}: more than {SECONDS} s", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return counts


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of op_db (default: all)")
    parser.add_argument("--stage", choices=STAGES, default="kernels")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--samples", type=int, default=8, help="of each kind")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, step = map(int, options.shard.split("/"))
    names = (options.ops or sorted(operators()))[first::step]
    counts = run(names, options.dtype, options.stage, options.samples)
    print(dict(counts))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
