"""Gradients and roundings over PyTorch's own operator database.

`python integration_tests/sweep_accuracy.py --what gradcheck --shard 0/4 --json rows.jsonl` holds
the gradients of each operator's compiled float64 samples against finite differences
(`torch.autograd.gradcheck`; `--what second`: those of the gradients, `gradgradcheck`). `--what
error` runs float32 samples compiled by Dovetail and by `torch.compile` in one process, and compares
their errors against a float64 run: `wrong` where ours is the larger by more than a rounding.
`--table rows.jsonl` writes the counts. Operators run in child processes, as in sweep_operators.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import signal
import sys
import warnings
from typing import Any

import torch
from sweep_operators import (
    OUTCOMES,
    UNDEFINED,
    Counting,
    Row,
    TooLong,
    _over,
    _reason,
    _row,
    _run,
    _widened,
    operators,
    sweep,
)
from torch.autograd.gradcheck import GradcheckError
from torch.utils import _pytree as pytree

import dovetail

KINDS = ("gradcheck", "second", "error")


def gradcheck(op: Any, sample: Any, second: bool, how: Counting | None) -> str:
    """What is wrong with the gradients of one call, compiled by a backend (None: eager), by finite
    differences."""
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor) and v.requires_grad]
    if not places:
        return ""
    process = sample.output_process_fn_grad
    wrapped = op.gradcheck_wrapper or (lambda function, *args, **kwargs: function(*args, **kwargs))
    function = op.get_op()

    def call(*tensors: torch.Tensor) -> Any:
        values = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        torch.manual_seed(7)
        result = wrapped(compiled, first, *args, **kwargs)
        result = result if process is None else process(result)
        leaves = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor)]
        return tuple(v for v in leaves if v.requires_grad)

    def plain(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    # PyTorch's wrappers of masked functions ask for the name.
    plain.__name__ = getattr(function, "__name__", "plain")
    compiled = plain
    if how is not None:
        compiled = dovetail.compile(plain, dynamic=False, backend=how)
    check = torch.autograd.gradgradcheck if second else torch.autograd.gradcheck
    try:
        check(
            call,
            [flat[i] for i in places],
            fast_mode=True,
            nondet_tol=op.gradcheck_nondet_tol or 1e-12,
            check_batched_grad=False,
        )
    except GradcheckError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _eager_fails(op: Any, sample: Any, second: bool) -> bool:
    """Whether finite differences refute eager's gradients as well, or cannot be taken."""
    try:
        return bool(gradcheck(op, sample, second, None))
    except Exception:
        return True


class _NoRightAnswer(Exception):
    """What a float64 run gives says nothing of a float32 run."""


def errors(op: Any, sample: Any) -> str:
    """Where our largest error against float64 is more than `torch.compile`'s, in the result and the
    gradients of one float32 call."""
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    function, process = op.get_op(), sample.output_process_fn_grad

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    ours = dovetail.compile(call, dynamic=False)
    theirs = torch.compile(call, dynamic=False)  # noqa: TID251 - what is measured against
    exact = pytree.tree_leaves(_run(function, _widened(flat), spec, process, True))
    if _draws_by_type(function, flat, spec):
        raise _NoRightAnswer("draws other numbers in float64 than in float32")
    runs = [pytree.tree_leaves(_run(f, list(flat), spec, process, True)) for f in (ours, theirs)]
    worst = ""
    for index, (reference, a, b) in enumerate(zip(exact, *runs, strict=True)):
        if not isinstance(a, torch.Tensor) or not a.is_floating_point():
            continue
        if a.shape != reference.shape or b.shape != reference.shape:
            continue
        size = float(reference.abs().nan_to_num(0, 0, 0).max()) if reference.numel() else 0.0
        mine, other = (_distance(x, reference) for x in (a, b))
        if mine > 1.1 * other + 4 * torch.finfo(a.dtype).eps * size:
            worst = f"result {index}: error {mine:.2e}, torch.compile's {other:.2e} of {size:.2e}"
    return worst


def _draws_by_type(function: Any, flat: list[Any], spec: Any) -> bool:
    """Whether a call is a sampler whose numbers are others in float64 (`rand_like`): eager's own
    results are then as far apart as the numbers are large."""
    torch.manual_seed(7)
    before = torch.get_rng_state()
    narrow, _ = _run(function, list(flat), spec, None, False)
    if torch.equal(torch.get_rng_state(), before):
        return False
    wide, _ = _run(function, _widened(flat), spec, None, False)
    pairs = zip(pytree.tree_leaves(narrow), pytree.tree_leaves(wide), strict=True)
    return any(
        isinstance(a, torch.Tensor)
        and a.is_floating_point()
        and a.numel() > 0
        and _distance(a, b) > 1e-2 * float(b.detach().abs().nan_to_num(0, 0, 0).max())
        for a, b in pairs
    )


def _distance(x: torch.Tensor, reference: torch.Tensor) -> float:
    gap = (x.detach().double() - reference.detach().double()).abs()
    gap = gap[gap.isfinite()]
    return float(gap.max()) if gap.numel() else 0.0


def sweep_one(name: str, op: Any, kind: str, limit: int) -> Row:
    """The first samples of one operator."""
    dtype = torch.float32 if kind == "error" else torch.float64
    outcome, text, count = "no sample", "", 0
    wanted = op.supports_gradgrad if kind == "second" else op.supports_autograd
    if dtype not in op.dtypes or not (wanted or kind == "error") or name in UNDEFINED:
        return Row(name, str(dtype)[6:], kind, 0, outcome, "not differentiable there")
    torch.manual_seed(3)
    samples = op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd)
    for sample in itertools.islice(samples, limit):
        try:
            if kind == "error":
                why = errors(op, sample)
            else:
                why = gradcheck(op, sample, kind == "second", Counting("graphs"))
            found = "wrong" if why else "ok"
        except _NoRightAnswer as reason:
            return Row(name, str(dtype)[6:], kind, 0, "no sample", str(reason))
        except Exception as error:
            found, why = "error", _reason(error)
        finally:
            dovetail.reset()
            torch.compiler.reset()
        if found != "ok" and kind != "error" and _eager_fails(op, sample, kind == "second"):
            continue
        count += 1
        if OUTCOMES.index(found) < OUTCOMES.index(outcome):
            outcome, text = found, f"sample {count - 1}: {why}" if why else ""
    return Row(name, str(dtype)[6:], kind, count, outcome, text)


def run_here(jobs: list[tuple[str, str]], kind: str, limit: int, seconds: int) -> None:
    """Sweep in this process; a JSON line each."""
    known = operators()
    signal.signal(signal.SIGPROF, _over)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, dtype in jobs:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            row = sweep_one(name, known[name], kind, limit)
        except TooLong:
            row = Row(name, dtype, kind, 0, "time", f"more than {seconds} s of processor time")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print("ROW " + json.dumps(row.__dict__), flush=True)
        if row.outcome == "time":
            return


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of op_db (default: all)")
    parser.add_argument("--what", choices=KINDS, default="gradcheck")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60, help="processor time for an operator")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    parser.add_argument("--json", help="append the rows to this file, and skip what it has")
    parser.add_argument("--here", action="store_true", help="take jobs from standard input")
    parser.add_argument("--table", nargs="+", help="write the counts of these files of rows")
    arguments = parser.parse_args()
    if arguments.table:
        print(as_markdown(arguments.table), end="")
        return
    if arguments.here:
        request = json.load(sys.stdin)
        jobs = [(name, dtype) for name, dtype in request["jobs"]]
        run_here(jobs, request["stage"], request["limits"]["all"], request["seconds"])
        return
    dtype = "float32" if arguments.what == "error" else "float64"
    jobs = [(name, dtype) for name in arguments.ops or sorted(operators())]
    if arguments.json:
        try:
            with open(arguments.json) as lines:
                have = {(r["op"], r["stage"]) for r in map(json.loads, lines)}
        except FileNotFoundError:
            have = set()
        jobs = [job for job in jobs if (job[0], arguments.what) not in have]
    first, step = map(int, arguments.shard.split("/"))
    totals: collections.Counter[str] = collections.Counter()
    limits = {"all": arguments.samples}
    for row in sweep(jobs[first::step], arguments.what, limits, arguments.seconds, script=__file__):
        totals[row.outcome] += 1
        print(f"{row.op:40} {row.samples:3} {row.outcome:8} {row.text}", flush=True)
        if arguments.json:
            with open(arguments.json, "a") as out:
                out.write(json.dumps(row.__dict__) + "\n")
    print(dict(totals))


def as_markdown(paths: list[str]) -> str:
    """Counts, and what is not ok."""
    found: dict[tuple[str, str], Row] = {}
    for path in paths:
        with open(path) as lines:
            found |= {(row.op, row.stage): row for row in map(_row, map(json.loads, lines))}
    shown = [o for o in OUTCOMES if o not in ("break", "layout", "crash")]
    lines = ["## Gradients by finite differences, errors beside torch.compile's", "",
             "| what | operators | samples | " + " | ".join(shown) + " |",
             "|" + " --- |" * (3 + len(shown))]  # fmt: skip
    for kind in KINDS:
        mine = [r for r in found.values() if r.stage == kind]
        if mine:
            counts = collections.Counter(r.outcome for r in mine)
            cells = [kind, len(mine), sum(r.samples for r in mine), *(counts[o] for o in shown)]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| op | what | outcome | first |", "| --- | --- | --- | --- |"]
    for row in sorted(found.values(), key=lambda r: (OUTCOMES.index(r.outcome), r.op)):
        if row.outcome not in ("ok", "no sample"):
            text = row.text.replace("|", "\\|")
            lines.append(f"| {row.op} | {row.stage} | {row.outcome} | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
