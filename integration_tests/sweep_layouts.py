"""Where results lie: every operator of PyTorch's database, its inputs laid out in many ways.

`python integration_tests/sweep_layouts.py [OP ...] [--stage capture] [--shard I/N] [--samples N]`
lays the tensors of each sample out anew (dimensions in another order, channels last, with gaps, of
stride 0, without a batch, ...) and compares what a compiled function returns with eager: results,
their strides, the strides that the function itself reads while it runs, and the strides of
gradients. Stage `capture` runs the captured graphs as they are, `graphs` and `kernels` are those of
`sweep_operators.py`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from sweep_operators import (
    DTYPES,
    OUTCOMES,
    STAGES,
    Counting,
    NotForEager,
    Row,
    TooLong,
    against_eager,
    as_call,
    jobs_of,
    operators,
    report,
    run_jobs,
    still_to_do,
    sweep,
)
from torch import Tensor
from torch.utils import _pytree as pytree

import dovetail

# Only their memory is defined, or how large it is.
LEFT_OUT = {
    "empty_strided", "new_empty_strided",
    # Called by name, its kernel takes every row for one without gaps.
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
}  # fmt: skip
# Eager does not check whether lengths, or statistics, fit the tensor.
UNCHECKED = {
    "_segment_reduce", "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update",
}  # fmt: skip


def _ordered(x: Tensor, order: Sequence[int]) -> Tensor:
    """The same values; `order` are the dimensions from the outermost in memory."""
    inverse = [list(order).index(d) for d in range(x.dim())]
    return x.permute(list(order)).contiguous().permute(inverse)


def _reversed(x: Tensor) -> Tensor:
    return _ordered(x, range(x.dim() - 1, -1, -1))


def _first_innermost(x: Tensor) -> Tensor:
    """Of images without a batch: channels last."""
    return _ordered(x, [*range(1, x.dim()), 0]) if x.dim() > 1 else x


def _channels_last(x: Tensor) -> Tensor:
    return _ordered(x, [0, *range(2, x.dim()), 1]) if x.dim() > 2 else x


def _with_gaps(x: Tensor) -> Tensor:
    wide = x.new_zeros([2 * n for n in x.shape])
    part = wide[tuple(slice(None, None, 2) for _ in x.shape)]
    return part.copy_(x)


def _reversed_with_gaps(x: Tensor) -> Tensor:
    order = list(range(x.dim() - 1, -1, -1))
    return _with_gaps(x.permute(order)).permute(order)


def _inside(x: Tensor) -> Tensor:
    """As a part of a larger tensor, one element from each edge."""
    wide = x.new_zeros([n + 2 for n in x.shape])
    return wide[tuple(slice(1, -1) for _ in x.shape)].copy_(x)


def _first_repeated(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape) if x.numel() and x.dim() and not _whole(x) else x


def _last_repeated(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.numel() and x.dim() and not _whole(x) else x


def _whole(x: Tensor) -> bool:
    """Places, lengths and masks keep their values."""
    return not x.is_floating_point() and not x.is_complex()


def _odd_ones(x: Tensor) -> Tensor:
    """Strides that mean nothing, of the dimensions of size 1."""
    strides = [7 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
    return x.as_strided(x.shape, strides)


def _many(x: Tensor) -> Tensor:
    """Images made of a vector or a matrix; no two numbers are alike."""
    lead = (2, 3, *[4] * (2 - x.dim()))
    images = x.expand(*lead, *x.shape)
    if _whole(x):
        return images
    steps = torch.linspace(0.8, 1.0, math.prod(lead)).view(*lead, *[1] * x.dim())
    return images * steps.to(x.dtype)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "reversed": _reversed,
    "first innermost": _first_innermost,
    "channels last": _channels_last,
    "gaps": _with_gaps,
    "reversed gaps": _reversed_with_gaps,
    "inside": _inside,
    "first repeated": _first_repeated,
    "last repeated": _last_repeated,
    "odd ones": _odd_ones,
}
# What else a sample is changed in.
CHANGES = {
    "one reversed": "reversed",  # the first tensor alone
    # (many operators have samples of one dimension only)
    "images reversed": "reversed",
    "images first innermost": "first innermost",
    "images channels last": "channels last",
    "images gaps": "gaps",
    "images reversed, no gradient": "reversed",
    "images out reversed": "reversed",
    "reversed, no gradient": "reversed",
    "channels last, no gradient": "channels last",
    "no batch": "first innermost",
    "two of one": "channels last",  # one dimension of size 1 more, in front
    "out": "plain",
    "out reversed": "reversed",
    "out channels last": "channels last",
    "out gaps": "gaps",
}
KINDS = (*LAYOUTS, *CHANGES)


def laid_out(sample: Any, kind: str) -> Any:
    """A sample whose tensors lie otherwise."""
    layout = LAYOUTS[CHANGES.get(kind, kind)]
    flat, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    done: dict[int, Tensor] = {}

    def laid(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            return value
        if kind == "one reversed" and done:
            return value
        if id(value) not in done:
            plain = value.detach()
            if kind == "no batch" and not done and plain.dim() and len(plain):
                plain = plain[0]
            elif kind == "two of one" and not done:
                plain = plain[None]
            elif kind.startswith("images") and not done and plain.dim() < 3:
                plain = _many(plain)
            learns = value.requires_grad and not kind.endswith("no gradient") and "out" not in kind
            done[id(value)] = layout(plain).requires_grad_(learns)
        return done[id(value)]

    first, args, kwargs = pytree.tree_unflatten([laid(v) for v in flat], spec)
    process = sample.output_process_fn_grad
    return types.SimpleNamespace(
        input=first,
        args=args,
        kwargs=kwargs,
        output_process_fn_grad=None if process is None else lambda r: process(r[0]),
    )


def _strides(result: Any) -> list[str]:
    """What a program may read of each tensor."""
    if isinstance(result, Tensor):
        if result.layout is not torch.strided:
            return []
        return [f"{tuple(result.shape)} {tuple(result.stride())} {result.storage_offset()}"]
    if isinstance(result, (tuple, list)):
        return [text for each in result for text in _strides(each)]
    return []


class Reading:
    """An operator of the database that tells its results' strides, too."""

    def __init__(self, op: Any, out: bool) -> None:
        self.op = op
        self.out = out
        self.name = op.name

    def get_op(self) -> Callable[..., Any]:
        """The function."""
        function, out = self.op.get_op(), self.out

        def reading(first: Any, *args: Any, **kwargs: Any) -> Any:
            if out:
                into = torch.empty(0, dtype=first.dtype)
                result = function(first, *args, **kwargs, out=into)
                return result, _strides(result), _strides(into)
            result = function(first, *args, **kwargs)
            return result, _strides(result)

        return reading


def differences(
    op: Any, dtype: torch.dtype, stage: str, limit: int, kinds: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """For each sample in each layout, its name, and how it differs from eager (not at all: "")."""
    differentiable = dtype.is_floating_point or dtype.is_complex
    grads = op.supports_autograd and differentiable and dtype in op.backward_dtypes
    torch.manual_seed(3)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=grads))
    every = -(-len(found) // limit) or 1
    for number, kind in itertools.product(range(0, len(found), every), kinds):
        out = "out" in kind
        if (out and not op.supports_out) or (kind not in LAYOUTS and op.name in UNCHECKED):
            continue
        backend: Any = "eager" if stage == "capture" else Counting(stage)
        reading = Reading(op, out)
        compiled = dovetail.compile(as_call(reading), dynamic=False, backend=backend)
        with_grads = grads and not out and not kind.endswith("no gradient")
        try:
            with torch.set_grad_enabled(with_grads):
                sample = laid_out(found[number], kind)
                difference = against_eager(
                    reading, sample, compiled, with_grads, gradient_strides=True
                )
        except NotForEager:
            continue
        except Exception as error:
            difference = "error", f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            dovetail.reset()
        yield f"sample {number} {kind}", *(difference or ("ok", ""))


def sweep_one(
    name: str, dtype: str, stage: str, limit: int, kinds: Sequence[str] = KINDS, shown: int = 8
) -> Row:
    """At most `limit` samples of an operator in all layouts; `text` names the first that differ."""
    outcome = "no sample"
    count = 0
    bad: list[str] = []
    try:
        for where, found, text in differences(
            operators()[name], DTYPES[dtype], stage, limit, kinds
        ):
            count += 1
            if OUTCOMES.index(found) < OUTCOMES.index(outcome):
                outcome = found
            if found != "ok":
                bad.append(f"{where}: {found}: {text}")
    except TooLong:
        raise
    except Exception as error:
        return Row(name, dtype, stage, count, "no sample", str(error)[:200])
    text = "" if not bad else f"{len(bad)} of {count}\n    " + "\n    ".join(bad[:shown])
    return Row(name, dtype, stage, count, outcome, text)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of op_db (default: all)")
    parser.add_argument("--stage", choices=("capture", *STAGES), default="capture")
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=["float32"])
    parser.add_argument("--samples", type=int, default=4, help="of each operator, evenly spread")
    parser.add_argument("--seconds", type=int, default=240, help="processor time for an operator")
    parser.add_argument("--shard", default="0/1", help="I/N: only every N-th, from the I-th")
    parser.add_argument("--json", help="append the rows to this file, and skip what it has")
    parser.add_argument("--here", action="store_true", help="take jobs from standard input")
    options = parser.parse_args()
    if options.here:
        request = json.load(sys.stdin)
        stage, limits = request["stage"], request["limits"]
        jobs = [(name, dtype) for name, dtype in request["jobs"]]
        one = functools.partial(_one, stage, limits)
        run_jobs(jobs, stage, request["seconds"], one)
        return
    names = [name for name in options.ops or sorted(operators()) if name not in LEFT_OUT]
    jobs = still_to_do(jobs_of(names, options.dtypes), options.stage, options.json, options.shard)
    limits = dict.fromkeys(DTYPES, options.samples)
    rows = sweep(jobs, options.stage, limits, options.seconds, script=__file__)
    report(rows, options.json)


def _one(stage: str, limits: dict[str, int], name: str, dtype: str) -> Row:
    return sweep_one(name, dtype, stage, limits[dtype])


if __name__ == "__main__":
    main()
