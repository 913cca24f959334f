"""Every operator of PyTorch's own operator database, compiled, against eager.

`python integration_tests/sweep_operators.py --stage graphs --shard 0/4 --json rows.jsonl` compiles
each operator's sample inputs with `dovetail.compile(fullgraph=True)` on the CPU and compares
outputs, written-to inputs and gradients with eager. Stage `graphs` runs the traced and decomposed
graphs as they are (and makes a plan of each, so that it is known what becomes a kernel); stage
`kernels` compiles and runs the kernels. `--table rows.jsonl ... > OPERATOR_SWEEP.md` writes the
table. Operators run in child processes, under a limit of processor time each.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.util
import itertools
import json
import operator
import re
import signal
import subprocess
import sys
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from dovetail_prims.graphs.backend_traits import BackendTraits
from torch.utils import _pytree as pytree

import dovetail

DTYPES = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
    "int64": torch.int64, "bool": torch.bool, "complex64": torch.complex64,
}  # fmt: skip
STAGES = ("graphs", "kernels")
# The worst of an operator's samples is the operator's outcome.
OUTCOMES = ("wrong", "crash", "error", "time", "break", "layout", "ok", "no sample")
# Results are not defined by the inputs: only shape, strides and dtype are compared.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty",
             "new_empty_strided"}  # fmt: skip
# Only the library knows how large the memory is that it asks for its own backward.
OPAQUE = {"aten.mkldnn_rnn_layer.default"}


class TooLong(BaseException):
    """An operator's time is over."""


@dataclass(frozen=True)
class Row:
    """One line of the table. `text` says what is wrong with the first sample that is worst."""

    op: str
    dtype: str
    stage: str
    samples: int
    outcome: str
    text: str = ""
    graphs: int = 0
    kernels: int = 0
    extern: tuple[str, ...] = ()


@dataclass
class Counting:
    """A backend that counts graphs, kernels and library calls, and runs the graphs as they are or
    as kernels."""

    stage: str
    graphs: int = 0
    kernels: int = 0
    extern: set[str] = field(default_factory=set)
    backend_traits: ClassVar[BackendTraits] = BackendTraits(symbolic=True)

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        from dovetail.options import Options
        from dovetail.pipeline import CompilerBackend

        self.graphs += 1
        outer = self

        class Backend(CompilerBackend):
            def compile_functional(
                self, gm: Any, example_inputs: Sequence[Any], place: str = "", label: str = ""
            ) -> Any:
                if outer.stage == "kernels":
                    artifact = super().compile_functional(gm, example_inputs, place, label)
                    outer.count(artifact.plan)
                    return artifact
                from dovetail_inductor import compile_graph

                plan = compile_graph(gm, example_inputs)
                outer.count(plan)
                return types.SimpleNamespace(run=Checked(gm).run, plan=plan)

        return Backend(Options())(gm, example_inputs)

    def count(self, plan: Any) -> None:
        """Add up one plan's steps."""
        for step in plan.steps:
            if type(step).__name__ in ("LaunchCpp", "LaunchTriton"):
                self.kernels += 1
            elif type(step).__name__ == "CallAten":
                self.extern.add(step.op.removeprefix("aten::"))


class BrokenPromise(Exception):
    """A node's value is not laid out as its shape rule promised."""


class Checked(torch.fx.Interpreter):
    """Runs a graph node by node, holding each value against what its shape rule said."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)

    def run_node(self, node: torch.fx.Node) -> Any:
        value = super().run_node(node)
        of = node.args[0] if node.target is operator.getitem else node
        if node.op == "call_function" and str(getattr(of, "target", "")) not in OPAQUE:
            promised = node.meta.get("val")
            pairs = zip(pytree.tree_leaves(promised), pytree.tree_leaves(value), strict=False)
            for promise, real in pairs:
                if not isinstance(real, torch.Tensor) or not isinstance(promise, torch.Tensor):
                    continue
                if any(isinstance(n, torch.SymInt) for n in (*promise.shape, *promise.stride())):
                    continue  # only the data tells: plans check it when they run
                same = promise.shape == real.shape and promise.dtype == real.dtype
                if not same or (real.numel() > 1 and not _same_strides(promise, real)):
                    raise BrokenPromise(
                        f"{node.target}: {_layout(promise)} promised, {_layout(real)} came"
                    )
        return value


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    sides = zip(a.shape, a.stride(), b.stride(), strict=True)
    return all(x == y for size, x, y in sides if size > 1)


def _layout(x: torch.Tensor) -> str:
    return f"{x.dtype} {tuple(x.shape)} {tuple(x.stride())}"


# --- the database --------------------------------------------------------------------------------


def stand_in_for_expecttest() -> None:
    """Let PyTorch's test utilities be imported without `expecttest`."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # They name it at import; the databases themselves have no use for it.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in


def operators() -> dict[str, Any]:
    """All entries of `op_db` by name (with the variant's name after a dot)."""
    stand_in_for_expecttest()
    from torch.testing._internal import common_methods_invocations as database

    # The database seeds random operators by a context that no graph can hold: `_run` seeds.
    database.wrapper_set_seed = _call
    return by_name(database.op_db)


def by_name(entries: Sequence[Any]) -> dict[str, Any]:
    """`OpInfo`s by name, with the variant's name after a dot."""
    found: dict[str, Any] = {}
    for op in entries:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        found[name] = op
    return found


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _copy(values: list[Any]) -> list[Any]:
    """Tensors over copies of their storages: strides and aliasing stay."""
    storages: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_quantized:
            return value.detach().clone().requires_grad_(value.requires_grad)
        storage = value.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        copy = torch.empty(0, dtype=value.dtype, device=value.device)
        copy.set_(  # type: ignore[call-overload]
            storages[storage._cdata], value.storage_offset(), value.shape, value.stride()
        )
        if value.is_conj():
            copy = copy.conj()
        if value.is_neg():
            copy = torch._neg_view(copy)
        return copy.requires_grad_(value.requires_grad)

    return [copied(v) for v in values]


# --- comparing -----------------------------------------------------------------------------------


def _different(
    expected: torch.Tensor, actual: torch.Tensor, exact: Callable[[], Any], shaken: Any = None
) -> str:
    """How values differ: "" if they are close, or as near to float64's as eager's are, or as far
    from eager's as eager's own with inputs `shaken` by a rounding."""
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, check_stride=False)
        return ""
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reference = exact()
    inexact = expected.is_floating_point() or expected.is_complex()
    if inexact and reference is not None and reference.shape == expected.shape:
        wide = torch.complex128 if expected.is_complex() else torch.float64
        reference = reference.to(wide)
        same = (actual == expected) | (actual.isnan() & expected.isnan())
        ours = (actual.to(wide) - reference).abs()[~same]
        eagers = (expected.to(wide) - reference).abs().nan_to_num(0.0, 0.0)
        size = reference.abs().nan_to_num(0.0, 0.0).max()
        # Rounding is as large as the largest terms of a sum, not as its result.
        bound = 3 * eagers.max() + 4 * torch.finfo(expected.dtype).eps * size
        if bool((ours <= bound).all()):
            return ""
    moved = shaken() if shaken is not None and expected.dtype.itemsize >= 4 else None
    if moved is not None and moved.shape == expected.shape and moved.dtype == expected.dtype:
        if bool((actual - expected).abs().max() <= 2 * (moved - expected).abs().max()):
            return ""
    return " ".join(lines[:3])


def compare(
    expected: Any, actual: Any, exact: Any, shaken: Any = None, *, values: bool = True
) -> tuple[str, str] | None:
    """(outcome, text) if two results differ: in structure, dtype, shape, value, strides."""
    left, left_spec = pytree.tree_flatten(expected)
    right, right_spec = pytree.tree_flatten(actual)
    if len(left) != len(right) or left_spec != right_spec:
        return "wrong", f"results {left_spec} and {right_spec}"
    layout = ""
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if not isinstance(a, torch.Tensor):
            if type(a) is not type(b) or (a != b and not (a != a and b != b)):
                return "wrong", f"result {i}: {a!r} and {b!r}"
            continue
        if not isinstance(b, torch.Tensor):
            return "wrong", f"result {i}: a tensor and {type(b).__name__}"
        if a.dtype != b.dtype or a.shape != b.shape or a.layout != b.layout:
            return "wrong", (
                f"result {i}: {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
            )
        if a.requires_grad != b.requires_grad:
            return "wrong", f"result {i}: requires_grad {a.requires_grad} and {b.requires_grad}"

        def reference(of: Any = exact, i: int = i) -> Any:
            found = pytree.tree_leaves(of()) if of is not None else []
            return found[i] if i < len(found) else None

        if values and a.layout is torch.strided and not a.is_quantized:
            text = _different(
                a.detach().resolve_conj(),
                b.detach().resolve_conj(),
                reference,
                functools.partial(reference, shaken),
            )
            if text:
                return "wrong", f"result {i}: {text}"
        if a.layout is torch.strided and a.numel() > 1 and not layout:
            if not _same_strides(a, b):
                layout = f"result {i}: {_layout(a)} and {_layout(b)}"
    return ("layout", layout) if layout else None


# --- one sample ----------------------------------------------------------------------------------


class NotForEager(Exception):
    """Eager itself refuses the sample."""


def _run(function: Any, flat: list[Any], spec: Any, process: Any, grads: bool) -> tuple[Any, Any]:
    """(result, gradients of its tensors) of one call, the same random state before it."""
    sample_input, args, kwargs = pytree.tree_unflatten(flat, spec)
    torch.manual_seed(7)
    result = function(sample_input, *args, **kwargs)
    if not grads:
        return result, None
    leaves = [v for v in flat if isinstance(v, torch.Tensor) and v.requires_grad]
    return result, gradients(process(result) if process is not None else result, leaves)


def gradients(result: Any, leaves: Sequence[torch.Tensor]) -> Any:
    """Those of all differentiable tensors in `result`, weighted by fixed random numbers, which are
    laid as the tensors are; None where there are no such tensors or no leaves."""
    outputs = [
        v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor) and v.requires_grad
    ]
    if not leaves or not outputs:
        return None
    generator = torch.Generator().manual_seed(11)
    cotangents = []
    for output in outputs:
        real = output.abs() if output.is_complex() else output
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        # (Laid as the output is: a gradient of another layout is laid as that one in eager.)
        cotangents.append(torch.empty_like(output).copy_(weight.to(real.dtype)))
    return torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)


def _widened(flat: list[Any]) -> list[Any]:
    """The arguments in float64 or complex128."""
    result = []
    for value in _copy(flat):
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            wide = torch.complex128 if value.is_complex() else torch.float64
            value = value.detach().to(wide).requires_grad_(value.requires_grad)
        elif isinstance(value, torch.dtype) and value.is_floating_point:
            value = torch.float64
        result.append(value)
    return result


def _shaken(flat: list[Any]) -> list[Any]:
    """The arguments, each number off by about its rounding."""
    result = []
    for value in _copy(flat):
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            off = 1 + torch.finfo(value.dtype).eps
            value = (value.detach() * off).requires_grad_(value.requires_grad)
        result.append(value)
    return result


def as_call(op: Any) -> Callable[..., Any]:
    """The operator as a Python function, to be compiled."""
    function = op.get_op()

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    return call


def check(op: Any, sample: Any, stage: str, grads: bool) -> tuple[tuple[str, str] | None, Counting]:
    """Compile one sample's call; how it differs from eager (None: not at all), and the counts."""
    backend = Counting(stage)
    compiled = dovetail.compile(as_call(op), fullgraph=True, dynamic=False, backend=backend)
    return against_eager(op, sample, compiled, grads), backend


def against_eager(
    op: Any,
    sample: Any,
    compiled: Callable[..., Any],
    grads: bool,
    *,
    gradient_strides: bool = False,
) -> tuple[str, str] | None:
    """How a sample's call of what was compiled from `as_call` differs from eager: None, not at
    all. Raises `NotForEager` if eager refuses it."""
    function = op.get_op()
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    process = sample.output_process_fn_grad
    process = process if process is not None and grads else None
    mine = _copy(flat)
    theirs = _copy(flat)
    try:
        expected, expected_grads = _run(function, mine, spec, process, grads)
    except TooLong:
        raise
    except Exception as error:
        raise NotForEager(str(error)) from error
    actual, actual_grads = _run(compiled, theirs, spec, process, grads)

    def exact() -> Any:
        with torch.enable_grad():
            try:
                return _run(function, _widened(flat), spec, process, grads)
            except Exception:
                return None

    def shaken() -> Any:
        with torch.enable_grad():
            try:
                return _run(function, _shaken(flat), spec, process, grads)
            except Exception:
                return None

    def part(index: int, of: Callable[[], Any] = exact) -> Callable[[], Any]:
        return lambda: (of() or (None, None))[index]

    with torch.no_grad():
        difference = compare(
            expected,
            actual,
            part(0),
            part(0, shaken),
            values=op.name.split(".")[-1] not in UNDEFINED,
        )
        if difference is None or difference[0] == "layout":
            found = compare(expected_grads, actual_grads, part(1), part(1, shaken))
            # A gradient's strides are not promised by anyone.
            if found is not None and (gradient_strides or found[0] != "layout"):
                difference = found[0], "gradient: " + found[1]
        if difference is None or difference[0] == "layout":
            inputs = [v.detach() if isinstance(v, torch.Tensor) else v for v in mine]
            others = [v.detach() if isinstance(v, torch.Tensor) else v for v in theirs]
            if pytree.tree_any(lambda v: isinstance(v, torch.Generator), inputs):
                return difference
            found = compare(inputs, others, None)
            if found is not None:
                difference = "wrong", "inputs afterwards: " + found[1]
    return difference


def _reason(error: BaseException) -> str:
    """Class, first line, and where the cause was raised."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    where = traceback.extract_tb(cause.__traceback__)[-1]
    place = f"{where.filename.split('/')[-1]}:{where.lineno}"
    text = (str(cause).strip().splitlines() or [""])[0]
    return f"{type(cause).__name__}: {text[:260]} [{place}]"


def sweep_one(
    name: str, op: Any, dtype_name: str, stage: str, limit: int, device: str = "cpu"
) -> Row:
    """All samples (at most `limit`) of one operator in one dtype."""
    dtype = DTYPES[dtype_name]
    differentiable = dtype.is_floating_point or dtype.is_complex
    grads = op.supports_autograd and differentiable and dtype in op.backward_dtypes
    outcome, text = "no sample", ""
    count = graphs = kernels = 0
    extern: set[str] = set()
    torch.manual_seed(3)
    try:
        samples = list(
            itertools.islice(op.sample_inputs(device, dtype, requires_grad=grads), limit)
        )
    except TooLong:
        raise
    except Exception as error:
        return Row(name, dtype_name, stage, 0, "no sample", _reason(error))
    for sample in samples:
        try:
            difference, backend = check(op, sample, stage, grads)
            found, why = difference if difference is not None else ("ok", "")
            graphs = max(graphs, backend.graphs)
            kernels += backend.kernels
            extern |= backend.extern
        except NotForEager:
            continue
        except dovetail.CaptureError as error:
            broke = type(error).__name__ == "GraphBreakError"
            found = "break" if broke else "error"
            why = " ".join(str(error).split())[:400] if broke else _reason(error)
        except Exception as error:
            found, why = "error", _reason(error)
        finally:
            dovetail.reset()
        count += 1
        if OUTCOMES.index(found) < OUTCOMES.index(outcome):
            outcome, text = found, f"sample {count - 1}: {why}" if why else ""
    return Row(
        name, dtype_name, stage, count, outcome, text, graphs, kernels, tuple(sorted(extern))
    )


# --- many ----------------------------------------------------------------------------------------


def _over(signum: int, frame: Any) -> None:
    raise TooLong


def run_here(
    jobs: list[tuple[str, str]], stage: str, limits: dict[str, int], seconds: int, device: str
) -> None:
    """Sweep operators in this process."""
    known = operators()

    def one(name: str, dtype: str) -> Row:
        return sweep_one(name, known[name], dtype, stage, limits[dtype], device)

    run_jobs(jobs, stage, seconds, one)


def run_jobs(
    jobs: list[tuple[str, str]], stage: str, seconds: int, one: Callable[[str, str], Row]
) -> None:
    """`one(name, dtype)` for each job in this process; one JSON line each on standard output. What
    was cut off ends the process: it may have left an import half done."""
    signal.signal(signal.SIGPROF, _over)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, dtype in jobs:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            row = one(name, dtype)
        except TooLong:
            row = Row(name, dtype, stage, 0, "time", f"more than {seconds} s of processor time")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print("ROW " + json.dumps(row.__dict__), flush=True)
        if row.outcome == "time":
            return


def sweep(
    jobs: list[tuple[str, str]],
    stage: str,
    limits: dict[str, int],
    seconds: int,
    batch: int = 400,
    script: str = __file__,
    device: str = "cpu",
) -> Iterator[Row]:
    """Sweep in child processes of `batch` jobs, so that a crash costs one of them only."""
    pending = list(jobs)
    while pending:
        part, pending = pending[:batch], pending[batch:]
        request = json.dumps(
            {"jobs": part, "stage": stage, "limits": limits, "seconds": seconds, "device": device}
        )
        command = [sys.executable, script, "--here"]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        ) as child:  # fmt: skip
            assert child.stdout is not None and child.stdin is not None
            child.stdin.write(request)
            child.stdin.close()
            done = 0
            for line in child.stdout:
                if line.startswith("ROW "):
                    done += 1
                    yield _row(json.loads(line[4:]))
        if child.returncode == 0:
            pending = part[done:] + pending
        else:
            if done < len(part):
                name, dtype = part[done]
                text = f"the process ended with {child.returncode}"
                yield Row(name, dtype, stage, 0, "crash", text)
            pending = part[done + 1 :] + pending


def _row(fields: dict[str, Any]) -> Row:
    return Row(**{**fields, "extern": tuple(fields["extern"])})


def jobs_of(names: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """(operator, dtype) for every dtype that the database lists for the CPU."""
    known = operators()
    return [
        (name, dtype) for name in names for dtype in dtypes if DTYPES[dtype] in known[name].dtypes
    ]


def as_markdown(rows: Sequence[Row]) -> str:
    """The table: totals, then what is not ok, then kernels and library calls by operator."""
    lines = ["# Operators of PyTorch's operator database, compiled, against eager", ""]
    for stage in STAGES:
        mine = [r for r in rows if r.stage == stage]
        if not mine:
            continue
        lines += [f"## Totals, stage `{stage}`", "", "| dtype | operators | samples | "
                  + " | ".join(OUTCOMES) + " |", "|" + " --- |" * (3 + len(OUTCOMES))]  # fmt: skip
        for dtype in DTYPES:
            of_dtype = [r for r in mine if r.dtype == dtype]
            if of_dtype:
                counts = collections.Counter(r.outcome for r in of_dtype)
                cells = [dtype, len(of_dtype), sum(r.samples for r in of_dtype)]
                cells += [counts[o] for o in OUTCOMES]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
        lines.append("")
    lines += ["## Not ok", "", "| op | stage | dtype | outcome | first |", "|" + " --- |" * 5]
    for row in sorted(rows, key=lambda r: (OUTCOMES.index(r.outcome), r.op, r.dtype)):
        if row.outcome not in ("ok", "no sample"):
            text = re.sub(r"(/[\w.+-]+)+/", "", row.text).replace("|", "\\|").replace("\n", " ")
            text = text.replace("cannot capture one whole graph: ", "").split(" from check.")[0]
            lines.append(f"| {row.op} | {row.stage} | {row.dtype} | {row.outcome} | {text} |")
    for stage in STAGES:
        lines += _reach(rows, stage)
    lines += ["", "## Float32: kernels and library calls", "",
              "| op | samples | graphs | generated kernels | library calls |",
              "|" + " --- |" * 5]  # fmt: skip
    for row in sorted(rows, key=lambda r: r.op):
        if row.stage == rows[0].stage and row.dtype == "float32" and row.graphs:
            calls = ", ".join(row.extern)
            lines.append(f"| {row.op} | {row.samples} | {row.graphs} | {row.kernels} | {calls} |")
    return "\n".join(lines) + "\n"


def _reach(rows: Sequence[Row], stage: str) -> list[str]:
    """How many operators are generated kernels, library calls, both or neither."""
    counted: collections.Counter[str] = collections.Counter()
    for row in rows:
        if row.stage == stage and row.dtype == "float32" and row.graphs:
            kind = "views and numbers only"
            if row.kernels:
                kind = "kernels and library calls" if row.extern else "generated kernels only"
            elif row.extern:
                kind = "library calls only"
            counted[kind] += 1
    if not counted:
        return []
    lines = ["", f"## Float32, stage `{stage}`: what operators become, with their backward", "",
             "| of all samples | operators |", "| --- | --- |"]  # fmt: skip
    return lines + [f"| {kind} | {count} |" for kind, count in counted.most_common()]


def rows_in(paths: Iterable[str]) -> list[Row]:
    """The last row of each operator, dtype and stage in files of rows."""
    found: dict[tuple[str, str, str], Row] = {}
    for path in paths:
        with open(path) as lines:
            for row in map(_row, map(json.loads, lines)):
                found[row.op, row.dtype, row.stage] = row
    return list(found.values())


def still_to_do(
    jobs: list[tuple[str, str]], stage: str, path: str | None, shard: str
) -> list[tuple[str, str]]:
    """The jobs of a shard (`I/N`) whose row is not in the file."""
    try:
        have = {(r.op, r.dtype, r.stage) for r in rows_in([path] if path else [])}
    except FileNotFoundError:
        have = set()
    first, step = map(int, shard.split("/"))
    return [job for job in jobs if (*job, stage) not in have][first::step]


def report(rows: Iterable[Row], path: str | None) -> None:
    """Print rows as they come, append them to the file, and count the outcomes."""
    totals: collections.Counter[str] = collections.Counter()
    for row in rows:
        totals[row.outcome] += 1
        print(f"{row.op:44} {row.dtype:9} {row.samples:3} {row.outcome:8} {row.text}", flush=True)
        if path:
            with open(path, "a") as out:
                out.write(json.dumps(row.__dict__) + "\n")
    print(dict(totals))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of op_db (default: all)")
    parser.add_argument("--stage", choices=STAGES, default="graphs")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32"])
    parser.add_argument("--samples", type=int, default=100, help="of float32")
    parser.add_argument("--others", type=int, default=3, help="samples of the other dtypes")
    parser.add_argument("--seconds", type=int, default=60, help="processor time for an operator")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    parser.add_argument("--json", help="append the rows to this file, and skip what it has")
    parser.add_argument("--in-process", action="store_true", help="these ops, without a child")
    parser.add_argument("--here", action="store_true", help="take jobs from standard input")
    parser.add_argument("--table", nargs="+", help="write the table of these files of rows")
    arguments = parser.parse_args()
    if arguments.table:
        print(as_markdown(rows_in(arguments.table)), end="")
        return
    if arguments.here:
        request = json.load(sys.stdin)
        jobs = [(name, dtype) for name, dtype in request["jobs"]]
        settings = (request[key] for key in ("stage", "limits", "seconds", "device"))
        run_here(jobs, *settings)
        return
    limits = dict.fromkeys(DTYPES, arguments.others) | {"float32": arguments.samples}
    if arguments.in_process:
        jobs = jobs_of(arguments.ops, arguments.dtypes)
        run_here(jobs, arguments.stage, limits, arguments.seconds, arguments.device)
        return
    jobs = jobs_of(arguments.ops or sorted(operators()), arguments.dtypes)
    jobs = still_to_do(jobs, arguments.stage, arguments.json, arguments.shard)
    seconds, device = arguments.seconds, arguments.device
    report(sweep(jobs, arguments.stage, limits, seconds, device=device), arguments.json)


if __name__ == "__main__":
    main()
