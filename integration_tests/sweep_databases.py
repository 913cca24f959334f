"""PyTorch's databases of modules, optimizers, functions of autograd, custom and higher-order
operators, compiled, against eager.

`python integration_tests/sweep_databases.py --database modules --shard 0/4 --json rows.jsonl` runs
each entry's samples with `dovetail.compile(fullgraph=True)` and compares results, gradients of
inputs and parameters, buffers, the states of optimizers and the next random numbers with eager.
What breaks a graph is compiled again in pieces and compared too: `break` says that it was right.
`--table rows.jsonl` writes the totals. Entries run in child processes, as in sweep_operators.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from database_cases import DATABASES, Case, cases, dtypes_of, entries
from sweep_operators import (
    DTYPES,
    OUTCOMES,
    STAGES,
    Counting,
    NotForEager,
    Row,
    TooLong,
    _copy,
    _reason,
    _shaken,
    _widened,
    compare,
    report,
    rows_in,
    run_jobs,
    still_to_do,
    sweep,
)
from torch.utils import _pytree as pytree

import dovetail

ALL_DTYPES = DTYPES | {"float64": torch.float64, "complex128": torch.complex128}
CONDITIONS = ("plain", "dynamic", "gaps")  # gaps: inputs that are not contiguous
# Only shapes and values of gradients are promised.
LOOSE = ("gradients", "first gradients", "second gradients", "groups")


def check(case: Case, stage: str, condition: str, *, fullgraph: bool) -> tuple[Any, Counting]:
    """How one compiled case differs from eager (None: not at all), and the counts."""
    try:
        expected = case.run(lambda f: f, _copy(case.values), _copy)
    except TooLong:
        raise
    except Exception as error:
        raise NotForEager(str(error)) from error
    backend = Counting(stage)
    dynamic = True if condition == "dynamic" else None

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = dovetail.compile(
            function, fullgraph=fullgraph, dynamic=dynamic, backend=backend
        )
        return made

    actual = case.run(compiled, _copy(case.values), _copy)

    @functools.cache
    def other(change: Any) -> dict[str, Any]:
        try:
            return case.run(lambda f: f, change(case.values), change)
        except Exception:
            return {}

    layout = None
    for part, value in expected.items():

        def of(change: Any, part: str = part) -> Any:
            with torch.enable_grad():
                return other(change).get(part)

        with torch.no_grad():
            found = compare(
                _as_computed(value, case.inside),
                _as_computed(actual[part], case.inside),
                functools.partial(of, _widened),
                functools.partial(of, _shaken),
            )
        if found is not None and (found[0] != "layout" or part not in LOOSE):
            if found[0] != "layout":
                return (found[0], f"{part}: {found[1]}"), backend
            layout = layout or (found[0], f"{part}: {found[1]}")
    return layout, backend


def _as_computed(value: Any, inside: torch.dtype | None) -> Any:
    """Floats in the precision that they were computed in."""
    if inside is None:
        return value
    return pytree.tree_map(
        lambda v: v.to(inside) if isinstance(v, torch.Tensor) and v.is_floating_point() else v,
        value,
    )


def with_gaps(case: Case) -> Case:
    """The case with inputs that are not contiguous."""
    from torch.testing._internal.common_utils import noncontiguous_like

    def spread(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            return noncontiguous_like(value)
        return value

    return dataclasses.replace(case, values=[spread(v) for v in case.values])


def outcome_of(case: Case, stage: str, condition: str) -> tuple[str, str, Counting | None]:
    """(outcome, text, counts) of one case."""
    try:
        difference, backend = check(case, stage, condition, fullgraph=True)
    except dovetail.CaptureError as error:
        if type(error).__name__ != "GraphBreakError":
            return "error", _reason(error), None
        dovetail.reset()
        difference, backend = check(case, stage, condition, fullgraph=False)
        return *(difference or ("break", " ".join(str(error).split())[:400])), backend
    return *(difference or ("ok", "")), backend


def sweep_one(
    name: str,
    dtype_name: str,
    stage: str = "kernels",
    condition: str = "plain",
    limit: int = 1000,
    device: str = "cpu",
) -> Row:
    """All cases (at most `limit`, evenly spread) of one "database/entry" in one dtype."""
    database, _, entry = name.partition("/")
    outcome, text = "no sample", ""
    count = graphs = kernels = 0
    bad: collections.Counter[str] = collections.Counter()
    torch.manual_seed(3)
    label = stage if condition == "plain" else f"{stage} {condition}"
    try:
        known = entries(database)[entry]
        found = list(cases(database, entry, known, ALL_DTYPES[dtype_name], device))
    except Exception as error:
        return Row(name, dtype_name, label, 0, "no sample", _reason(error))
    every = -(-len(found) // limit) or 1
    for index, case in itertools.islice(enumerate(found), 0, None, every):
        try:
            made = with_gaps(case) if condition == "gaps" else case
            what, why, backend = outcome_of(made, stage, condition)
        except NotForEager as error:
            text = text or f"eager: {_reason(error)}"
            continue
        except Exception as error:
            what, why, backend = "error", _reason(error), None
        finally:
            dovetail.reset()
        if backend is not None:
            graphs = max(graphs, backend.graphs)
            kernels += backend.kernels
        count += 1
        bad[what] += 1
        if OUTCOMES.index(what) < OUTCOMES.index(outcome):
            outcome, text = what, f"sample {index}: {why}" if why else ""
    if outcome not in ("ok", "no sample"):
        text = f"{bad[outcome]} of {count}, {text}"
    return Row(name, dtype_name, label, count, outcome, text, graphs, kernels)


# --- many ----------------------------------------------------------------------------------------


def jobs_of(database: str, only: Sequence[str], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """(database/entry, dtype): the dtypes that the database lists, or all where it lists none."""
    jobs = []
    for name, entry in sorted(entries(database).items()):
        listed = dtypes_of(database, entry)
        if only and not any(name == o or name.startswith(o + ".") for o in only):
            continue
        jobs += [
            (f"{database}/{name}", d) for d in dtypes if listed is None or ALL_DTYPES[d] in listed
        ]
    return jobs


def as_markdown(rows: Sequence[Row]) -> str:
    """The totals by database, stage and dtype; then what is not ok."""
    lines = ["| database | stage | dtype | entries | samples | " + " | ".join(OUTCOMES) + " |",
             "|" + " --- |" * (5 + len(OUTCOMES))]  # fmt: skip
    groups: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[row.op.split("/")[0], row.stage, row.dtype].append(row)
    for key, mine in sorted(groups.items()):
        counts = collections.Counter(r.outcome for r in mine)
        cells = [*key, len(mine), sum(r.samples for r in mine), *(counts[o] for o in OUTCOMES)]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| entry | stage | dtypes | outcome | first |", "|" + " --- |" * 5]
    same: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        if row.outcome not in ("ok", "no sample"):
            same[row.op, row.stage, row.outcome].append(row)
    for (op, stage, outcome), mine in sorted(same.items()):
        text = re.sub(r"(/[\w.+-]+)+/", "", mine[0].text).replace("|", "\\|").replace("\n", " ")
        text = text.replace("cannot capture one whole graph: ", "")
        names = ", ".join(r.dtype for r in mine)
        lines.append(f"| {op} | {stage} | {names} | {outcome} | {text} |")
    return "\n".join(lines) + "\n"


def _here(request: dict[str, Any]) -> None:
    """The jobs of a request, in this process."""
    stage, _, condition = request["stage"].partition(" ")
    one = functools.partial(_one, request["limits"], stage, condition or "plain", request["device"])
    run_jobs([(name, d) for name, d in request["jobs"]], request["stage"], request["seconds"], one)


def _one(
    limits: dict[str, int], stage: str, condition: str, device: str, name: str, dtype: str
) -> Row:
    return sweep_one(name, dtype, stage, condition, limits[dtype], device)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=list(DATABASES), action="append")
    parser.add_argument("--only", nargs="+", default=[], help="entries (default: all)")
    parser.add_argument("--stage", choices=STAGES, default="kernels")
    parser.add_argument("--condition", choices=CONDITIONS, default="plain")
    parser.add_argument("--dtypes", nargs="+", choices=list(ALL_DTYPES), default=["float32"])
    parser.add_argument("--samples", type=int, default=1000, help="of an entry and dtype")
    parser.add_argument("--seconds", type=int, default=600, help="processor time for an entry")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    parser.add_argument("--json", help="append the rows to this file, and skip what it has")
    parser.add_argument("--in-process", action="store_true", help="without a child")
    parser.add_argument("--here", action="store_true", help="take jobs from standard input")
    parser.add_argument("--table", nargs="+", help="write the table of these files of rows")
    given = parser.parse_args()
    if given.table:
        print(as_markdown(rows_in(given.table)), end="")
        return
    if given.here:
        _here(json.load(sys.stdin))
        return
    label = given.stage if given.condition == "plain" else f"{given.stage} {given.condition}"
    databases = given.database or list(DATABASES)
    jobs = [job for d in databases for job in jobs_of(d, given.only, given.dtypes)]
    jobs = still_to_do(jobs, label, given.json, given.shard)
    limits = dict.fromkeys(ALL_DTYPES, given.samples)
    if given.in_process:
        _here({"jobs": jobs, "stage": label, "limits": limits, "seconds": given.seconds,
               "device": given.device})  # fmt: skip
        return
    rows = sweep(jobs, label, limits, given.seconds, 40, script=__file__, device=given.device)
    report(rows, given.json)


if __name__ == "__main__":
    main()
