"""Where the elements of a reshaped tensor are found: by indices, and by strides if they lie so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from dovetail_inductor.loop_ir.index import Index, constant
from dovetail_inductor.loop_ir.sizes import hint_of, is_symbolic, only_data_tells
from dovetail_inductor.lowering.values import Indices, UnsupportedGraph

Reindex = Callable[[Indices], Indices]


def reshape_groups(
    old: tuple[int, ...], new: tuple[int, ...]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Cut both shapes into matching runs of dimensions of equal product, as short as possible.

    Gives (dims of old, dims of new) pairs; dimensions of size 1 are left out. Where symbolic sizes
    do not tell that two products are equal, a run is longer: the last ones of a view always are.
    """
    a = [d for d, n in enumerate(old) if n != 1]
    b = [d for d, n in enumerate(new) if n != 1]
    groups = []
    i = j = 0
    while i < len(a) or j < len(b):
        first_i, first_j = i, j
        left = right = 1
        if i < len(a):
            left *= old[a[i]]
            i += 1
        if j < len(b):
            right *= new[b[j]]
            j += 1
        while left != right and (i < len(a) or j < len(b)):
            if (hint_of(left) < hint_of(right) and i < len(a)) or j >= len(b):
                left *= old[a[i]]
                i += 1
            else:
                right *= new[b[j]]
                j += 1
        # (Where only the data tells, the program has checked that they are equal.)
        told = not (only_data_tells(left) or only_data_tells(right))
        if told and hint_of(left) != hint_of(right):
            raise UnsupportedGraph(f"{old} seen as {new}: they have other numbers of elements")
        groups.append((tuple(a[first_i:i]), tuple(b[first_j:j])))
    return groups


def reshape_indices(old: tuple[int, ...], new: tuple[int, ...]) -> Reindex:
    """Indices into `old` from indices into `new`, elements in row-major order."""
    if 0 in old:
        return lambda indices: (constant(0),) * len(old)
    groups = reshape_groups(old, new)

    def reindex(indices: Indices) -> Indices:
        result: list[Index] = [constant(0)] * len(old)
        for old_dims, new_dims in groups:
            if len(old_dims) == 1 == len(new_dims):
                result[old_dims[0]] = indices[new_dims[0]]
                continue
            flat = constant(0)
            for d in new_dims:
                flat = flat * new[d] + indices[d]
            step = 1
            for position, d in enumerate(reversed(old_dims)):
                quotient = flat.floordiv(step)
                last = position == len(old_dims) - 1
                result[d] = quotient if last else quotient.mod(old[d])
                step *= old[d]
        return tuple(result)

    return reindex


def reshape_strides(
    shape: tuple[int, ...], stride: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Strides of the view of shape `new`, None if no strides can give it."""
    result = [1] * len(new)
    if 0 in shape:
        step = 1
        for d in reversed(range(len(new))):
            result[d] = step
            step *= new[d] if is_symbolic(new[d]) else max(new[d], 1)
        return tuple(result)
    for old_dims, new_dims in reshape_groups(shape, new):
        # The old dimensions must step through memory evenly.
        for d, e in pairwise(old_dims):
            if stride[d] != stride[e] * shape[e]:
                return None
        step = stride[old_dims[-1]]
        for d in reversed(new_dims):
            result[d] = step
            step *= new[d]
    # What a dimension of size 1 has for a stride does not matter; follow its right neighbour.
    step = 1
    for d in reversed(range(len(new))):
        if new[d] == 1:
            result[d] = step
        else:
            step = result[d] * new[d]
    return tuple(result)
