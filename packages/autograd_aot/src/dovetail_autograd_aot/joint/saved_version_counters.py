"""Which counters of writes eager's backward looks at, where one memory has several.

A tensor and its `.data` lie in one memory, and each has a counter of its own. Eager's backward
notices writes through tensors that share the counter of what it keeps, and no others. A graph keeps
a value, whose counter is that of the forward output, or of the input, in that memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail_prims.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction

from dovetail_autograd_aot.boundary import OtherCounters, OutputKind
from dovetail_autograd_aot.joint.primals import Primals
from dovetail_autograd_aot.outputs.output_aliasing import Classified
from dovetail_autograd_aot.trace.autograd_queries import nodes_below, share_counter
from dovetail_autograd_aot.trace.storage import TracedStorage, track_of
from dovetail_autograd_aot.trace.tracer import Tracer


def other_counters(primals: Primals, outputs: Sequence[Any], result: Classified) -> OtherCounters:
    """Where eager's backward looks at other counters than those of what a graph keeps."""
    storages = _with_several(outputs, result)
    if not storages:
        return OtherCounters()
    kept = _kept_by_eager(primals.tracer, result)
    if kept is None:
        return OtherCounters()
    known = {s: kept[s] for s in storages if s in kept}

    def is_kept(tensor: FakeTensor) -> bool:
        return any(share_counter(tensor, other) for other in known[track_of(tensor).storage])

    first = sum(info.kind is OutputKind.FRESH for info in result.infos)
    written = range(first, first + len(result.mutated))
    forward = [
        i
        for i, tensor in enumerate(result.tensors)
        if tensor is not None and i not in written and track_of(tensor).storage in known
    ]
    inputs = [i for i, primal in enumerate(primals) if primal.storage in known]
    watched = [
        i
        for i, info in enumerate(result.infos)
        if info.counter is not None and track_of(outputs[i]).storage in known
    ]
    return OtherCounters(
        results=tuple(i for i in forward if not is_kept(result.tensors[i])),  # type: ignore[arg-type]
        primals=tuple(i for i in inputs if not is_kept(primals[i].value)),
        watched=tuple(i for i in watched if is_kept(outputs[i])),
    )


def _with_several(outputs: Sequence[Any], result: Classified) -> set[TracedStorage]:
    """The storages of outputs that have another counter than what they are taken of, or than the
    whole of their storage."""
    found = {
        track_of(value).storage
        for value, info in zip(outputs, result.infos, strict=True)
        if info.counter is not None
    }
    for tensor in result.tensors:
        storage = None if tensor is None else track_of(tensor).storage
        if tensor is not None and storage is not None and storage.root is not None:
            if tensor is not storage.root and not share_counter(tensor, storage.root):
                found.add(storage)
    return {storage for storage in found if not storage.shared}


def _kept_by_eager(
    tracer: Tracer, result: Classified
) -> dict[TracedStorage, list[FakeTensor]] | None:
    """What autograd's nodes below the roots have saved, by storages; None if one does not tell."""
    found: dict[TracedStorage, list[FakeTensor]] = {}
    with tracer:
        for node in nodes_below(result.roots):
            if type(node).__name__ == "CopySlices":  # (what the operator that wrote saves)
                return None
            try:
                for value in _saved(node):
                    if isinstance(value, FakeTensor):
                        found.setdefault(track_of(value).storage, []).append(value)
            except RuntimeError:  # it was written to
                return None
    return found


def _saved(node: Any) -> Iterator[Any]:
    """What one node saved."""
    if isinstance(node, BackwardCFunction):
        yield from node.saved_tensors
        return
    kind: Any = type(node)
    for name in _names_of_saved(kind):
        value = getattr(node, name)
        yield from value if isinstance(value, (list, tuple)) else (value,)


@functools.cache
def _names_of_saved(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))
