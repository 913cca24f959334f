"""The pass `choose_attention`: the tiles of attention's kernels, as measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dovetail_runtime.plan import Plan

from dovetail_inductor.loop_ir.attention_loops import AttentionLoops, AttentionTiles
from dovetail_inductor.loop_ir.loops import ExternCall, Strided
from dovetail_inductor.options import InductorOptions
from dovetail_inductor.products.choose_products import Choice, Problem, Tuner, fastest, plan_of
from dovetail_inductor.products.products import Form
from dovetail_inductor.scheduler.kernels import KernelGraph

SHARED_BYTES = 227 * 1024  # of a multiprocessor of an H100, for one program
_SIDES = ((128, 64), (128, 32), (64, 64), (64, 128), (64, 32))
_WARPS = (4, 8)
_STAGES = (2, 3, 4)

Key = tuple[tuple[str, str], ...]


def choose_attention(graph: KernelGraph, options: InductorOptions, tuner: Tuner) -> KernelGraph:
    """Measure the tiles of each call and put the fastest in their place. Equal calls are measured
    once; the kernels of one call, one after another."""
    steps = list(graph.steps)
    most = max((len(c.attention.tiles) for c in _calls(steps).values() if c.attention), default=0)
    for kernel in range(most):
        same: dict[Key, list[int]] = {}
        for position, call in _calls(steps).items():
            if call.attention is not None and len(call.attention.tiles) > kernel:
                same.setdefault(_key(call, graph, kernel, options), []).append(position)
        problems = [
            _problem(key, replace(graph, steps=tuple(steps)), positions[0], kernel, options)
            for key, positions in same.items()
        ]
        measured = zip(problems, tuner.measure(problems), strict=True) if problems else ()
        for problem, seconds in measured:
            positions = same[problem.key]
            forms = _forms(_calls(steps)[positions[0]], kernel)
            best = fastest(seconds)
            what = f"{_describe(forms[0])}, kernel {kernel + 1}"
            tuner.note(Choice(what, len(positions), best, problem.names, seconds))
            for position in positions:
                steps[position] = _forms(_calls(steps)[position], kernel)[best]
    return replace(graph, steps=tuple(steps))


def _calls(steps: Sequence[object]) -> dict[int, ExternCall]:
    """The calls of attention, by their positions."""
    found = {at: step for at, step in enumerate(steps) if isinstance(step, ExternCall)}
    # (Tiles for few queries are chosen by a rule.)
    return {at: c for at, c in found.items() if c.attention and not c.attention.tiles[0].parts}


def _loops(call: ExternCall) -> AttentionLoops:
    assert call.attention is not None
    return call.attention


def _forms(call: ExternCall, kernel: int) -> list[ExternCall]:
    """The call with other tiles for one of its kernels; as it is first."""
    loops = _loops(call)
    own = loops.tiles[kernel]
    found = [call]
    width = max(tensor.shape[-1] for tensor in call.tensors()[:3])
    for tiles in _candidates(width, loops.body.gradient is not None, kernel):
        if tiles != own:
            every = (*loops.tiles[:kernel], tiles, *loops.tiles[kernel + 1 :])
            found.append(replace(call, attention=replace(loops, tiles=every)))
    return found


def _candidates(width: int, backward: bool, kernel: int) -> list[AttentionTiles]:
    """Tiles whose operands fit in shared memory and whose sums fit in registers."""
    found = []
    for queries, keys in _SIDES:
        if backward and kernel == 0:
            queries, keys = keys, queries
        stays, passes = (keys, queries) if backward and kernel == 0 else (queries, keys)
        for warps in _WARPS:
            # float32 sums and tiles of scores, of 255 registers a thread
            sums = stays * width * (2 if backward and kernel == 0 else 1)
            registers = (sums + queries * keys * (2 if backward else 1)) / (32 * warps)
            if registers > 255 or stays < 16 * warps:
                continue
            for stages in _STAGES:
                # of 2 bytes each; and a tile of shares on its way to the second product
                kept = stays * width * 2 * (2 if backward else 1) + queries * keys * 2
                if kept + passes * width * 2 * 2 * stages <= SHARED_BYTES:
                    found.append(AttentionTiles(queries, keys, warps, stages))
    return found


def _key(call: ExternCall, graph: KernelGraph, kernel: int, options: InductorOptions) -> Key:
    """What a measurement depends on: the text of the kernels, and how operands lie."""
    buffers = [graph.buffers[name] for name in sorted(call.reads())]
    device = buffers[0].device
    target, machine = options.target_of(device), options.machine_of(device)
    emitted = target.emit_attention(call, graph.buffers, machine)
    return (
        ("attention", str(kernel)),
        ("kernels", ", ".join(one.kernel.symbol for one in emitted if one.kernel is not None)),
        ("operands", repr([(b.shape, b.stride, b.offset, str(b.dtype)) for b in buffers])),
        ("candidates", repr([_loops(c).tiles for c in _forms(call, kernel)])),
    )


def _problem(
    key: Key, graph: KernelGraph, position: int, kernel: int, options: InductorOptions
) -> Problem:
    call = _calls(graph.steps)[position]
    forms = _forms(call, kernel)
    names = tuple(_loops(form).tiles[kernel].as_text() for form in forms)

    def plans(forms: Sequence[ExternCall]) -> list[Plan]:
        alone = (Form({position: (form,)}, frozenset({position})) for form in forms)
        return [plan_of(graph, {position}, form, options) for form in alone]

    return Problem(key, names, partial(plans, forms))


def _describe(call: ExternCall) -> str:
    operands = call.tensors()
    q, v = operands[0], operands[2]
    assert isinstance(q, Strided)
    name = call.op.rpartition("::")[2]
    return f"attention {name} of {'x'.join(map(str, q.shape))} by {v.shape[-2]}"
