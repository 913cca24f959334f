"""The examples of PyTorch's own docstrings, compiled, against eager.

`python integration_tests/sweep_docstrings.py [NAME ...] [--shard I/N] [--dynamic]` makes each
docstring's examples one function, which returns all that it names, and calls it twice in eager and
twice compiled: values, dtypes, strides, requires_grad, leaves and gradients are compared. Examples
that need a GPU, files or a network are left out, and so is what eager does not do twice alike
(memory that nobody wrote). Exits with 1 if any differs.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import doctest
import importlib
import inspect
import io
import re
import signal
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import dovetail

MODULES = (
    "torch", "torch.Tensor", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.fft",
    "torch.special", "torch.func", "torch.autograd", "torch.autograd.functional",
    "torch.autograd.forward_ad", "torch.autograd.graph", "torch.distributions", "torch.optim",
    "torch.optim.lr_scheduler", "torch.optim.swa_utils", "torch.utils.checkpoint",
    "torch.nn.utils", "torch.nn.utils.rnn", "torch.nn.utils.parametrize",
    "torch.nn.utils.parametrizations", "torch.nn.utils.prune", "torch.nn.init",
    "torch.nn.attention", "torch.nn.attention.bias", "torch.nested", "torch.sparse",
    "torch.masked", "torch.signal.windows", "torch.library", "torch.utils._pytree", "torch.random",
    "torch.amp", "torch.overrides", "torch.fx", "torch.quasirandom",
)  # fmt: skip
IMPORTS = """\
import math, random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor, autograd, optim, tensor
from torch.distributions import *
from torch.func import *
from torch.nn.utils import *
from torch.optim import *
from torch.optim.lr_scheduler import *
model = nn.Linear(4, 4)
"""
LEFT_OUT = re.compile(
    r"cuda|\bxpu\b|mps|distributed|hub\.|multiprocessing|input\(|open\(|\.save\(|\.load\(|download"
    r"|DataLoader|rpc|sleep|torchvision|torchaudio|torch\.compile|profile|set_default_d"
    r"|manual_seed|initial_seed|torch\.jit|quantize|empty(_like|_strided)?\("  # (not written to)
)
SECONDS = 60  # for a call
PLAIN = (int, float, complex, str, bool, type(None), torch.Size, torch.dtype)


def documented() -> Iterator[tuple[str, str]]:
    """Names with their docstrings, those of classes' methods included."""
    for module in MODULES:
        found = torch.Tensor if module == "torch.Tensor" else importlib.import_module(module)
        for name in sorted(n for n in dir(found) if not n.startswith("_")):
            value = getattr(found, name, None)
            if inspect.ismodule(value):
                continue
            yield f"{module}.{name}", inspect.getdoc(value) or ""
            if inspect.isclass(value) and found is not torch.Tensor:
                for own, method in sorted(vars(value).items()):
                    if not own.startswith("_") and isinstance(method.__doc__, str):
                        yield f"{module}.{name}.{own}", inspect.getdoc(method) or ""


def programs() -> Iterator[tuple[str, str]]:
    """Each docstring's examples, once, as the text of a module with a function `f`."""
    seen: set[str] = set()
    for name, doc in documented():
        try:
            examples = doctest.DocTestParser().get_examples(re.sub(r"# *xdoctest:.*", "", doc))
        except ValueError:  # indented as doctest does not take it
            continue
        lines = [_named(e.source.strip("\n"), number) for number, e in enumerate(examples)]
        body = "\n".join(f"    {line}" for text in lines for line in text.split("\n"))
        if not lines or body in seen or LEFT_OUT.search(body):
            continue
        seen.add(body)
        start = f"{IMPORTS}\ndef f():\n    torch.manual_seed(3)\n"
        yield name, f"{start}{body}\n    return dict(locals())\n"


def _named(source: str, number: int) -> str:
    """A statement that keeps what an expression gives, under a name."""
    with contextlib.suppress(SyntaxError):
        compile(source, "example", "eval")
        if not source.startswith("print"):
            return f"_{number} = (\n{source}\n)"
    return source


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """What can be compared in a value."""
    if isinstance(value, (torch.Tensor, *PLAIN)):
        yield value
    elif depth < 6 and isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, depth + 1)
    elif depth < 6 and isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from leaves(value[key], depth + 1)
    elif isinstance(value, torch.nn.Module):
        yield from value.state_dict().values()


def difference(mine: Any, theirs: Any) -> str:
    """What differs between two values, "" if nothing does."""
    if type(mine) is not type(theirs):
        return f"a {type(mine).__name__}, not a {type(theirs).__name__}"
    if isinstance(theirs, float):
        near = abs(mine - theirs) <= 1e-5 * max(abs(mine), abs(theirs))
        return "" if mine == theirs or theirs != theirs or near else f"{mine}, not {theirs}"
    if not isinstance(theirs, torch.Tensor):
        return "" if mine == theirs else f"{mine!r}, not {theirs!r}"
    for what in ("layout", "dtype", "shape", "requires_grad", "is_leaf"):
        if getattr(mine, what) != getattr(theirs, what):
            return f"{what} {getattr(mine, what)}, not {getattr(theirs, what)}"
    if theirs.layout != torch.strided or theirs.is_nested or theirs.device.type != "cpu":
        return ""
    if mine.stride() != theirs.stride():
        return f"strides {mine.stride()}, not {theirs.stride()}"
    try:
        torch.testing.assert_close(mine.detach(), theirs.detach(), equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return difference(mine.grad, theirs.grad) if theirs.is_leaf else ""


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What differs between what two calls returned."""
    found = [f"names {sorted(mine.keys() ^ theirs.keys())}"] if list(mine) != list(theirs) else []
    for name in theirs:
        ours, wanted = list(leaves(mine.get(name))), list(leaves(theirs[name]))
        if len(ours) != len(wanted):
            found.append(f"{name}: {len(ours)} values, not {len(wanted)}")
        pairs = zip(ours, wanted, strict=False)
        found += [f"{name}: {text}" for a, b in pairs if (text := difference(a, b))]
    return found


class TooLong(BaseException):
    """An example took too long."""


def _over(signum: int, frame: Any) -> None:
    raise TooLong


@contextlib.contextmanager
def _apart(seconds: int) -> Iterator[None]:
    """For so long (0: without a limit), without printing, and with torch's state put back."""
    if seconds:
        signal.alarm(seconds)
    torch.manual_seed(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        if seconds:
            signal.alarm(0)
        torch.set_grad_enabled(True)


def check(
    name: str, text: str, folder: Path, dynamic: bool | None = None, seconds: int = 0
) -> tuple[str, str]:
    """The outcome of one docstring, and what differs; `seconds`: for each call, 0: no limit."""
    path = folder / f"{name}.py"
    path.write_text(text)

    def loaded() -> Callable[[], dict[str, Any]]:
        module = types.ModuleType(name)
        exec(compile(text, str(path), "exec"), module.__dict__)
        return module.f  # type: ignore[no-any-return]

    try:
        with _apart(seconds):
            wanted, again = loaded()(), loaded()()
    except (Exception, TooLong):
        return "eager refuses", ""
    if differences(again, wanted):
        return "not reproducible", ""
    compiled = dovetail.compile(loaded(), dynamic=dynamic)
    try:
        for call in range(2):
            with _apart(seconds):
                found = differences(compiled(), wanted)
            if found:
                return "differs", f"call {call}: {'; '.join(found[:4])}"
    except (Exception, TooLong) as error:
        return "error", f"{type(error).__name__}: {str(error)[:400]}"
    return "ok", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--dynamic", action="store_true", default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _over)
    shard, shards = map(int, args.shard.split("/"))
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, text) in enumerate(programs()):
            if number % shards != shard or (args.names and name not in args.names):
                continue
            outcome, why = check(name, text, Path(folder), args.dynamic, SECONDS)
            counts[outcome] += 1
            if why:
                print(f"{name}: {outcome}: {why}", flush=True)
    print(", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items())))
    return int(bool(counts["differs"] or counts["error"]))


if __name__ == "__main__":
    sys.exit(main())
