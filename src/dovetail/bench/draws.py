"""Errors of a case over several draws of its weights and inputs.

The largest of some million errors, and which of two programs rounds luckier, is chance for one
draw; a mean over several tells programs apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.bench import measure
from dovetail.bench.models import Case


@dataclass(frozen=True)
class Spread:
    """How the numbers of a tensor are spread; new ones stay between the least and the largest."""

    mean: float
    deviation: float
    least: float
    largest: float


@dataclass(frozen=True)
class Errors:
    """Of one draw: the largest error and the root mean square of the worst tensor, both relative
    (`measure.largest_error`, `measure.mean_error`)."""

    largest: float
    rms: float


def errors_of(values: Sequence[Tensor], reference: Sequence[Tensor]) -> Errors:
    """Of one step's tensors beside the same step's in float64."""
    return Errors(measure.largest_error(values, reference), measure.mean_error(values, reference))


def mean_errors(errors: Sequence[Errors]) -> Errors:
    """The mean of each error over the draws."""
    return Errors(
        statistics.mean(e.largest for e in errors), statistics.mean(e.rms for e in errors)
    )


def spreads_of(case: Case) -> Mapping[str, Spread]:
    """How each parameter and each input of floating-point numbers is spread, by its name."""
    return {name: _spread(tensor) for name, tensor in _drawn(case).items()}


def _drawn(case: Case) -> dict[str, Tensor]:
    """The weights and the inputs of floating-point numbers; complex ones as pairs."""
    named = {
        f"model.{name}": parameter.detach() for name, parameter in case.model.named_parameters()
    }
    named |= {n: v for n, v in case.inputs.items() if isinstance(v, Tensor)}
    pairs = {n: torch.view_as_real(v) if v.is_complex() else v for n, v in named.items()}
    return {n: v for n, v in pairs.items() if v.is_floating_point() and v.numel() > 1}


def _spread(tensor: Tensor) -> Spread:
    wide = tensor.double()
    return Spread(*(float(v) for v in (wide.mean(), wide.std(), wide.min(), wide.max())))


def redraw(case: Case, spreads: Mapping[str, Spread], seed: int) -> None:
    """Write new numbers into a case's weights and inputs, spread as they were; what is all one
    number (a norm's weights), or infinite (a mask), stays."""
    torch.manual_seed(seed)
    for name, tensor in _drawn(case).items():
        spread = spreads[name]
        if 0 < spread.deviation < math.inf:
            drawn = torch.randn_like(tensor, dtype=torch.float32) * spread.deviation + spread.mean
            tensor.copy_(drawn.clamp_(spread.least, spread.largest))
    for value in case.inputs.values():
        if isinstance(value, Tensor) and value.dtype == torch.int64 and value.max() > 1:  # tokens
            value.copy_(torch.randint(0, int(value.max()) + 1, value.shape))


def over_draws(
    case: Case, twin: Case, draws: int, errors: Callable[[], tuple[Errors, ...] | None]
) -> tuple[Errors, ...] | None:
    """Mean errors over `draws` draws, the first of the numbers that `case` holds.

    `twin` is a copy of the case, which shares its inputs and is given the same weights; `errors`
    runs both and gives each system's, or None if there is nothing to compare with.
    """
    spreads = spreads_of(case)
    found: list[tuple[Errors, ...]] = []
    for seed in range(draws):
        if seed:
            redraw(case, spreads, seed)
            redraw(twin, spreads, seed)
        of_draw = errors()
        if of_draw is None:
            return None
        found.append(of_draw)
    return tuple(mean_errors(of_system) for of_system in zip(*found, strict=True))
