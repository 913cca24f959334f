"""What the steps of this package compute: each function is captured as a frame of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def flat_gradient(params: Sequence[Tensor], maximize: bool) -> Tensor:
    """The gradients of all parameters, one behind another: `[n]`, complex numbers as pairs."""
    flat = []
    for param in params:
        grad = param.new_zeros(param.numel()) if param.grad is None else param.grad
        flat.append((torch.view_as_real(grad) if grad.is_complex() else grad).view(-1))
    gradient = torch.cat(flat)
    return -gradient if maximize else gradient


def move(params: Sequence[Tensor], direction: Tensor, step: float) -> None:
    """Add `step` times the direction (`[n]`) to the parameters."""
    start = 0
    for param in params:
        place = torch.view_as_real(param) if param.is_complex() else param
        place.add_(direction[start : start + place.numel()].view(place.shape), alpha=step)
        start += place.numel()


def difference(
    gradient: Tensor, before: Tensor, direction: Tensor, step: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """How gradient and place changed (`[n]` each), the product of these changes, its inverse, and
    the product by the square of the gradient's: the scale of the first Hessian."""
    change = gradient - before
    taken = direction * step
    product = change.dot(taken)
    return change, taken, product, 1.0 / product, product / change.dot(change)


def measures(gradient: Tensor, direction: Tensor, step: float) -> Tensor:
    """The largest parts of the gradient and of the step taken: `[2]`, of double precision."""
    largest = gradient.abs().max(), (direction * step).abs().max()
    return torch.stack(largest).double()


def newest_first(
    gradient: Tensor, changes: Sequence[Tensor], steps: Sequence[Tensor], inverses: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """The first loop of L-BFGS over a part of the history, and its factors, oldest first."""
    factors = []
    for change, step, inverse in zip(
        reversed(changes), reversed(steps), reversed(inverses), strict=True
    ):
        factor = step.dot(gradient) * inverse
        gradient = gradient - factor * change
        factors.append(factor)
    return gradient, factors[::-1]


def oldest_first(
    direction: Tensor,
    changes: Sequence[Tensor],
    steps: Sequence[Tensor],
    inverses: Sequence[Tensor],
    factors: Sequence[Tensor],
) -> Tensor:
    """The second loop of L-BFGS over a part of the history."""
    for change, step, inverse, factor in zip(changes, steps, inverses, factors, strict=True):
        direction = direction + (factor - change.dot(direction) * inverse) * step
    return direction


def adam_of_rows(
    param: Tensor,
    mean: Tensor,
    square: Tensor,
    places: tuple[Tensor, ...],
    gradient: Tensor,
    betas: tuple[float, float],
    rate: float,
    eps: float,
) -> None:
    """Adam where a sparse gradient has values: `gradient[i]` at `param[places][i]`.

    A place that occurs twice is written twice, with the same number.
    """
    beta1, beta2 = betas
    old = mean[places]
    new = (gradient - old) * (1 - beta1) + old
    old_square = square[places]
    new_square = (gradient**2 - old_square) * (1 - beta2) + old_square
    mean[places] = new
    square[places] = new_square
    param[places] = param[places] - rate * (new / (new_square.sqrt() + eps))


def summed_in_place(indices: Tensor, values: Tensor, sizes: Sequence[int]) -> Tensor:
    """For each value of a sparse tensor (`indices`: `[dimensions, count]`, `values`:
    `[count, ...]`) the sum of all values at its place, without knowing how many places there are.
    """
    place = indices[0]
    for dimension in range(1, len(sizes)):
        place = place * sizes[dimension] + indices[dimension]
    first = _first_of_place(place, sizes)
    return torch.zeros_like(values).index_add(0, first, values)[first]


def _first_of_place(place: Tensor, sizes: Sequence[int]) -> Tensor:
    """For each of some places a number below their count, the same for equal ones."""
    if place.device.type == "cpu":  # (where memory that is touched for the first time costs most)
        ordered, order = place.sort()
        new = torch.zeros_like(ordered)
        new[1:] = ordered[1:] != ordered[:-1]
        number = torch.empty_like(order)
        number[order] = new.cumsum(0)
        return number
    # Of the values at one place one is chosen, whichever is written last.
    chosen = torch.empty(math.prod(sizes), dtype=torch.int64, device=place.device)
    chosen[place] = torch.arange(place.shape[0], device=place.device)
    return chosen[place]
