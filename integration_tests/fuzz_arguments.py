"""Arguments that do not fit: every operator of PyTorch's database, against eager.

`python integration_tests/fuzz_arguments.py --seed 0 --calls 30` takes, for each operator of
`op_db`, sample arguments and spoils one of them: another rank, a size off by one, an index or a
number out of range, another dtype. The compiled call must raise what eager raises (an exception of
the same class), or give a result of the same shapes and dtypes. `--replay SEED:OPERATOR:NUMBER`
runs one call alone and prints both outcomes. Operators run in child processes: what ends one
(eager's own kernels may) is reported as `crash` with the call that did.

How a call is compiled is drawn with it: `static`; `dynamic` (sizes are symbols from the first call
on); or `warm` (dynamic, after a call that fits, so that guards must see what does not). Stage
`graphs` runs the decomposed graphs as they are; stage `kernels` compiles and runs the kernels, with
`--sanitize` under GCC's address sanitizer, which ends the process (a `crash`) where a kernel
touches what is not its own.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

import torch
from sweep_operators import _copy, operators
from torch.utils import _pytree as pytree

import dovetail

MODES = ("static", "dynamic", "warm")
BACKENDS = {"graphs": "aot_eager", "kernels": "inductor"}
DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64,
          torch.complex64)  # fmt: skip
KINDS = ("rank", "size", "index", "number", "dtype")
SAMPLES = 12
# Random numbers, memory that nothing has written, and what runs for seconds.
SKIPPED_PREFIXES = ("empty", "new_empty", "_native_batch_norm_legit")
_UNCHECKED = "eager's kernel reads what lies beyond; here it is checked"
ACCEPTED: dict[tuple[str, str], str] = {
    ("_segment_reduce.lengths", "index"): _UNCHECKED,
    ("_segment_reduce.offsets", "index"): _UNCHECKED,
    ("_segment_reduce.lengths", "size"): _UNCHECKED,
    ("_segment_reduce.offsets", "size"): _UNCHECKED,
    ("index_copy", "size"): "eager refuses one of no elements by the view that its kernel makes",
    ("index_fill", "size"): "eager refuses one of no elements by the view that its kernel makes",
    ("_batch_norm_with_update", "rank"): _UNCHECKED,
    ("_batch_norm_with_update", "size"): _UNCHECKED,
    ("native_batch_norm", "rank"): "eager takes a weight of more dimensions for a vector",
    ("native_batch_norm", "size"): "eager refuses an input without elements here only",
    ("addmv", "size"): "eager gives one of self's sizes for a matrix without rows",
    ("repeat", "number"): "eager takes a negative count beside a dimension of no elements",
}
"""Differences that stay, by operator and kind ("*": all), with the reason."""


@dataclass(frozen=True)
class Call:
    """One spoilt call: which it is, how it is spoilt, and how it is compiled."""

    seed: int
    op: str
    number: int
    kind: str
    mode: str
    what: str

    def name(self) -> str:
        """What `--replay` takes."""
        return f"{self.seed}:{self.op}:{self.number}"


@dataclass(frozen=True)
class Outcome:
    """What a call raised (the class's name, "" for nothing) with its words, or what it gave."""

    raised: str
    text: str

    def same(self, other: Outcome) -> bool:
        """Whether both raised the same class, or gave the same shapes and dtypes."""
        return self.raised == other.raised and (bool(self.raised) or self.text == other.text)


# --- spoiling -------------------------------------------------------------------------------------


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _of_rank(x: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, str]:
    """One dimension more or less."""
    if x.dim() and rng.random() < 0.5 and all(x.shape):
        d = rng.randrange(x.dim())
        return x.select(d, 0), f"without dimension {d}"
    d = rng.randrange(x.dim() + 1)
    n = rng.choice((1, 2))
    return torch.stack([x] * n, d), f"{n} of it along a new dimension {d}"


def _of_size(x: torch.Tensor, rng: random.Random) -> tuple[torch.Tensor, str] | None:
    """One dimension longer or shorter by one, of one element, or of none."""
    if not x.dim() or not all(x.shape):
        return None
    d = rng.randrange(x.dim())
    n = x.shape[d]
    wanted = rng.choice([m for m in (n - 1, n + 1, n + 1, 1, 0, 2 * n) if m != n])
    if wanted <= n:
        return x.narrow(d, 0, wanted), f"size {n} of dimension {d} made {wanted}"
    longer = torch.cat([x] * 2, d).narrow(d, 0, wanted)
    return longer, f"size {n} of dimension {d} made {wanted}"


def _of_index(
    x: torch.Tensor, rng: random.Random, sizes: Sequence[int]
) -> tuple[torch.Tensor, str] | None:
    """One element beyond a size of some argument, on either side."""
    if x.dtype not in (torch.int64, torch.int32) or not x.numel():
        return None
    size = rng.choice(sizes) if sizes else 3
    value = rng.choice((-1, -size, -size - 1, size, size + 1, 3 * size + 7))
    x = x.clone()
    at = rng.randrange(x.numel())
    x.view(-1)[at] = value
    return x, f"element {at} made {value}"


def spoilt(flat: list[Any], kind: str, rng: random.Random) -> tuple[list[Any], str] | None:
    """The arguments with one of them spoilt, and how; None where none can be."""
    sizes = sorted({n for v in flat if _is_strided(v) for n in v.shape})
    if kind == "number":
        at = [i for i, v in enumerate(flat) if type(v) is int]
    elif kind == "index":
        at = [
            i
            for i, v in enumerate(flat)
            if _is_strided(v) and v.dtype in (torch.int64, torch.int32) and v.numel()
        ]
    else:
        at = [i for i, v in enumerate(flat) if _is_strided(v)]
    if not at:
        return None
    i = rng.choice(at)
    value = flat[i]
    found: tuple[Any, str] | None
    if kind == "number":
        number = rng.choice((value - 1, value + 1, -value - 1, value + 5, -7, 0))
        found = number, f"{value} made {number}"
    elif kind == "rank":
        found = _of_rank(value.detach(), rng)
    elif kind == "size":
        found = _of_size(value.detach(), rng)
    elif kind == "index":
        found = _of_index(value.detach(), rng, sizes)
    else:
        dtype = rng.choice([d for d in DTYPES if d is not value.dtype])
        found = value.detach().to(dtype), f"{value.dtype} made {dtype}"
    if found is None:
        return None
    return [*flat[:i], found[0], *flat[i + 1 :]], f"argument {i}: {found[1]}"


@dataclass(frozen=True)
class Spoilt:
    """A call with its function and arguments: those that fit, and those that do not."""

    call: Call
    function: Callable[..., Any]
    spec: Any
    fitting: list[Any]
    flat: list[Any]


def _samples(op: Any, seed: int) -> list[Any]:
    dtype = torch.float32 if torch.float32 in op.dtypes else sorted(op.dtypes, key=str)[0]
    torch.manual_seed(seed)
    return list(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES))


def calls(
    name: str, op: Any, seed: int, limit: int, kinds: Sequence[str] = KINDS
) -> Iterator[Spoilt]:
    """The spoilt calls of one operator."""
    try:
        samples = _samples(op, seed)
    except Exception:
        return
    for number in range(limit):
        rng = random.Random(f"{seed}:{name}:{number}")
        if not samples:
            return
        sample = rng.choice(samples)
        forms = [op.get_op(), op.get_op(), *filter(None, (op.get_inplace(),))]
        function = rng.choice(forms)
        kind, mode = rng.choice(kinds), rng.choice(MODES)
        arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
        flat, spec = pytree.tree_flatten(arguments)
        flat = [v.detach() if isinstance(v, torch.Tensor) else v for v in flat]
        found = spoilt(flat, kind, rng)
        if found is None:
            continue
        changed, what = found
        if function is not op.get_op():
            what += ", in place"
        call = Call(seed, name, number, kind, mode, what)
        yield Spoilt(call, function, spec, flat, changed)


# --- one call -------------------------------------------------------------------------------------


def outcome(function: Callable[..., Any], flat: list[Any], spec: Any) -> Outcome:
    """What one call gives or raises."""
    first, args, kwargs = pytree.tree_unflatten(_copy(flat), spec)
    torch.manual_seed(7)
    try:
        with torch.no_grad():
            result = function(first, *args, **kwargs)
    except Exception as error:
        return Outcome(type(error).__name__, " ".join(str(error).split())[:200])
    leaves = pytree.tree_leaves(result)
    shapes = (
        f"{v.dtype} {tuple(v.shape)}" if isinstance(v, torch.Tensor) else type(v).__name__
        for v in leaves
    )
    return Outcome("", "; ".join(shapes))


def compiled_outcome(one: Spoilt, stage: str) -> Outcome:
    """What the compiled call gives or raises."""
    function, spec = one.function, one.spec

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    mode = one.call.mode
    compiled = dovetail.compile(call, dynamic=mode != "static", backend=BACKENDS[stage])
    if mode == "warm":
        outcome(compiled, one.fitting, spec)
    found = outcome(compiled, one.flat, spec)
    dovetail.reset()
    return found


# --- many -----------------------------------------------------------------------------------------


def names() -> list[str]:
    """The operators that are called."""
    return [n for n in sorted(operators()) if not n.startswith(SKIPPED_PREFIXES)]


def run_here(
    ops: Sequence[str], seed: int, limit: int, stage: str, kinds: Sequence[str], out: Any
) -> None:
    """Call operators in this process; a line of JSON before each call and after it."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = operators()
    for name in ops:
        for one in calls(name, known[name], seed, limit, kinds):
            about = {**vars(one.call), "name": one.call.name()}
            print(json.dumps({"begin": about}), file=out, flush=True)
            expected = outcome(one.function, one.flat, one.spec)
            print(json.dumps({"eager": vars(expected)}), file=out, flush=True)
            found = compiled_outcome(one, stage)
            row = {"same": expected.same(found), "eager": vars(expected), "ours": vars(found)}
            print(json.dumps({"end": row}), file=out, flush=True)
        print(json.dumps({"done": name}), file=out, flush=True)


def sanitized(cache: str) -> dict[str, str]:
    """The environment in which kernels are compiled for the address sanitizer, and run with it."""
    libraries = []
    for name in ("libasan.so", "libstdc++.so"):  # (the second, so that it can see what is thrown)
        command = ["g++", f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        libraries.append(found.stdout.strip())
    return {
        "DOVETAIL_CXX": "g++ -fsanitize=address -fno-omit-frame-pointer",
        "DOVETAIL_CACHE_DIR": cache,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0,alloc_dealloc_mismatch=0",
    }


def sweep(
    ops: Sequence[str],
    seed: int,
    limit: int,
    stage: str,
    kinds: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """The rows of all calls, from child processes: a new one after each that ends too soon."""
    left = list(ops)
    while left:
        command = [sys.executable, __file__, "--here", "--seed", str(seed), "--calls", str(limit),
                   "--stage", stage, "--kinds", *kinds, "--ops", *left[:60]]  # fmt: skip
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert child.stdout is not None
        begun: dict[str, Any] | None = None
        done = 0
        for line in child.stdout:
            try:
                said = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "begin" in said:
                begun = said["begin"]
            elif "eager" in said and begun is not None:
                begun["eager"] = said["eager"]
            elif "end" in said and begun is not None:
                yield {**begun, **said["end"]}
                begun = None
            elif "done" in said:
                done += 1
        code = child.wait()
        if begun is not None:
            crash = {"raised": "crash", "text": code}
            ours = crash if "eager" in begun else {"raised": "", "text": "not called"}
            yield {"eager": crash, **begun, "ours": ours, "same": ours is not crash}
            done += 1
        elif done == 0:
            raise RuntimeError(f"a child ended with {code} before its first call")
        left = left[done:]


def is_accepted(row: dict[str, Any]) -> str | None:
    """The reason why a difference stays, if there is one."""
    return ACCEPTED.get((row["op"], row["kind"])) or ACCEPTED.get((row["op"], "*"))


def as_text(row: dict[str, Any]) -> str:
    """A difference in one line."""
    eager, ours = (
        f"{one.get('raised') or 'gives'}: {one.get('text')}" for one in (row["eager"], row["ours"])
    )
    head = f"{row['name']} {row['kind']} {row['mode']} ({row['what']})"
    return f"{head}\n    eager {eager}\n    ours  {ours}"


def _short(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.numel() <= 6:
        return value
    return f"<{value.dtype} {tuple(value.shape)}>"


def replay(name: str, stage: str, kinds: Sequence[str]) -> None:
    """Run one call alone."""
    seed, op, number = name.split(":")
    found = calls(op, operators()[op], int(seed), int(number) + 1, kinds)
    one = next(call for call in found if call.call.number == int(number))
    arguments = pytree.tree_unflatten(one.flat, one.spec)
    print(one.call)
    print(
        pytree.tree_map(
            lambda v: v if not isinstance(v, torch.Tensor) else (v.dtype, v.shape), arguments
        )
    )
    print("eager:", outcome(one.function, one.flat, one.spec))
    print("ours: ", compiled_outcome(one, stage))


def told(row: dict[str, Any], file: TextIO | None) -> str:
    """Which of the counted kinds a row is of; differences are printed, all rows go to `file`."""
    if file is not None:
        print(json.dumps(row), file=file, flush=True)
    if row["same"]:
        raised = row["eager"].get("raised")
        return "eager crashes" if raised == "crash" else "both raise" if raised else "both give"
    if is_accepted(row):
        return "accepted"
    print(as_text(row), flush=True)
    return "different"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", nargs="*", help="names of the database (default: all)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--calls", type=int, default=30, help="of each operator")
    parser.add_argument("--stage", choices=BACKENDS, default="graphs")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    parser.add_argument("--json", type=Path, help="all rows go here, too")
    parser.add_argument("--replay", help="SEED:OPERATOR:NUMBER")
    parser.add_argument("--sanitize", action="store_true", help="kernels by the address sanitizer")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay:
        replay(options.replay, options.stage, options.kinds)
        return 0
    settings = (options.seed, options.calls, options.stage, options.kinds)
    if options.here:
        run_here(options.ops, *settings, sys.stdout)
        return 0
    print(f"seed {options.seed}", flush=True)
    first, step = map(int, options.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    file = options.json.open("a") if options.json else None
    with tempfile.TemporaryDirectory() as cache:
        environment = sanitized(cache) if options.sanitize else {}
        for row in sweep((options.ops or names())[first::step], *settings, environment):
            counts[told(row, file)] += 1
    print(f"{counts.total()} calls: {dict(counts)}")
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
