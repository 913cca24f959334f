"""What eager refuses: the database's wrong arguments of every operator, compiled.

`python integration_tests/sweep_errors.py [OP ...] [--shard I/N] [--stage capture]` calls each
operator of PyTorch's databases with the arguments that they list as wrong, and those of its samples
in dtypes that eager has no kernel for. What eager raises, a compiled call must raise, too: an
exception of the same type. What eager takes is left out. Exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sweep_operators import Counting, _copy, by_name, operators
from torch.utils import _pytree as pytree

import dovetail

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.complex64)
STAGES = ("capture", "graphs")


def all_operators() -> dict[str, Any]:
    """Those of `op_db` and of its lists of tensors."""
    known = operators()
    from torch.testing._internal import common_methods_invocations as database

    return known | by_name(database.foreach_op_db)


def forms(op: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """An operator as a function, as a method and in place."""
    yield "function", op.get_op()
    for name, form in (("method", op.get_method()), ("in place", op.get_inplace())):
        if form is not None:
            yield name, form


def wrong_calls(op: Any, limit: int) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """(what it is, function, sample) of calls that eager may refuse."""
    if op.error_inputs_func is not None:
        for number, wrong in enumerate(op.error_inputs("cpu")):
            yield f"error {number}", op.get_op(), wrong.sample_input
    for dtype in DTYPES:
        try:
            # Samples are made for a dtype that there is a kernel for, and converted.
            made = torch.float32 if torch.float32 in op.dtypes else next(iter(op.dtypes))
            torch.manual_seed(3)
            samples = list(itertools.islice(op.sample_inputs("cpu", made), limit))
        except Exception:
            return
        for number, sample in enumerate(samples):
            changed = sample.transform(
                lambda v, made=made, dtype=dtype: (
                    v.to(dtype) if isinstance(v, torch.Tensor) and v.dtype is made else v
                )
            )
            for form, function in forms(op):
                yield f"{dtype} sample {number} {form}", function, changed


def outcome(function: Callable[..., Any], sample: Any) -> tuple[type[BaseException] | None, str]:
    """The type of what a call raises (None: nothing), and its first words."""
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    first, args, kwargs = pytree.tree_unflatten(_copy(flat), spec)
    torch.manual_seed(7)
    try:
        with torch.no_grad():
            function(first, *args, **kwargs)
    except Exception as error:
        return type(error), " ".join(str(error).split())[:150]
    return None, ""


def difference(function: Callable[..., Any], sample: Any, stage: str) -> str | None:
    """How a compiled call fails otherwise than eager ("": not at all); None where eager does not
    fail."""
    expected, message = outcome(function, sample)
    if expected is None:
        return None

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    backend: Any = "eager" if stage == "capture" else Counting(stage)
    compiled = dovetail.compile(call, dynamic=False, backend=backend)
    raised, text = outcome(compiled, sample)
    dovetail.reset()
    if raised is expected:
        return ""
    name = "nothing" if raised is None else f"{raised.__name__} ({text})"
    return f"eager {expected.__name__} ({message}), compiled {name}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of the databases (default: all)")
    parser.add_argument("--stage", choices=STAGES, default="graphs")
    parser.add_argument("--samples", type=int, default=1, help="of each operator and dtype")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, step = map(int, options.shard.split("/"))
    known = all_operators()
    counts: collections.Counter[str] = collections.Counter()
    for name in (options.ops or sorted(known))[first::step]:
        wrong = 0
        for what, function, sample in wrong_calls(known[name], options.samples):
            found = difference(function, sample, options.stage)
            if found is None:
                counts["eager takes"] += 1
                continue
            counts["different" if found else "equal"] += 1
            wrong += bool(found)
            if found:
                print(f"{name}: {what}: {found}", flush=True)
        counts["operators that differ" if wrong else "operators right"] += 1
    print(dict(counts))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
