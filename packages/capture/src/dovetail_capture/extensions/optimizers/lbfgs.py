"""L-BFGS: the closure and the arithmetic are compiled, Python decides.

The algorithm is that of Nocedal and Wright, Numerical Optimization, 7.2, with PyTorch's conditions
and its state. The history is gone through in stretches of a few fixed lengths, so that a longer
one needs no new graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import LBFGS
from torch.optim.lbfgs import _strong_wolfe

from dovetail_capture.extensions.optimizers import step_parts as parts

_STRETCHES = (16, 4, 1)  # of the history: one graph each
_SEARCHES = (None, "strong_wolfe")
_KEPT = ("d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss")


def can_drive(optimizer: LBFGS) -> bool:
    """Is there something to step by, and in a known way? (PyTorch's own step says so if not.)"""
    known = len(optimizer.param_groups) == 1 and bool(optimizer._params)
    return known and optimizer.param_groups[0]["line_search_fn"] in _SEARCHES


def lbfgs_step(optimizer: LBFGS, closure: Callable[[], Any]) -> Any:
    """`LBFGS.step` of an optimizer that `can_drive` accepts."""
    return _Step(optimizer, torch.enable_grad()(closure)).run()


class _Step:
    """One step: some iterations of the search, from the state that the last step left. Where a
    subclass has methods of its own, they are called."""

    def __init__(self, optimizer: LBFGS, closure: Callable[[], Any]) -> None:
        self.optimizer: Any = optimizer
        self.closure = closure
        self.group = optimizer.param_groups[0]
        self.params: list[Tensor] = optimizer._params
        self.maximize = bool(self.group.get("maximize", False))
        self.state: dict[str, Any] = optimizer.state[self.params[0]]

    def run(self) -> Any:
        """The loss before the step, as the closure gave it."""
        state, group = self.state, self.group
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = self.closure()
        self.loss = self._number(first)
        evaluations = 1
        state["func_evals"] += 1
        self.gradient = self._gradient()
        if self.gradient.abs().max() <= group["tolerance_grad"]:
            return first
        for name in _KEPT:
            setattr(self, name, state.get(name))
        rate = group["lr"]
        self.rate = rate.squeeze() if isinstance(rate, Tensor) else rate
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            self._turn()
            slope = self.gradient.dot(self.d)
            if slope > -group["tolerance_change"]:
                break
            made = self._advance(slope, group["max_eval"] - evaluations, iteration)
            evaluations += made
            state["func_evals"] += made
            if iteration == group["max_iter"] or evaluations >= group["max_eval"]:
                break
            if self._is_done():
                break
        for name in _KEPT:
            state[name] = getattr(self, name)
        return first

    # What is kept from step to step, under PyTorch's names.
    d: Tensor  # the direction, [n]
    t: Any  # how far to go
    old_dirs: list[Tensor]  # changes of the gradient, [n] each, oldest first
    old_stps: list[Tensor]  # changes of the parameters
    ro: list[Tensor]  # the inverses of their products
    H_diag: Any
    prev_flat_grad: Tensor | None
    prev_loss: float

    def _number(self, loss: Any) -> float:
        return -float(loss) if self.maximize else float(loss)

    def _gradient(self) -> Tensor:
        sparse = any(p.grad is not None and p.grad.is_sparse for p in self.params)
        if sparse or self._has_own("_gather_flat_grad"):  # (no input of a graph is sparse)
            return cast(Tensor, self.optimizer._gather_flat_grad())
        return parts.flat_gradient(self.params, self.maximize)

    def _move(self, t: Any, direction: Tensor) -> None:
        if self._has_own("_add_grad"):
            self.optimizer._add_grad(t, direction)
        else:
            parts.move(self.params, direction, float(t))

    def _has_own(self, name: str) -> bool:
        return getattr(type(self.optimizer), name) is not getattr(LBFGS, name)

    def _turn(self) -> None:
        """The direction of the next iteration, from the history."""
        if self.state["n_iter"] == 1:
            self.d = self.gradient.neg()
            self.old_dirs, self.old_stps, self.ro, self.H_diag = [], [], [], 1
            norm: Any = self.gradient.abs().sum()
            self.t = min(1.0, 1.0 / norm) * self.rate
        else:
            self._remember()
            self.d = self._direction()
            self.t = self.rate
        if self.prev_flat_grad is None:
            self.prev_flat_grad = self.gradient.clone(memory_format=torch.contiguous_format)
        else:
            self.prev_flat_grad.copy_(self.gradient)
        self.prev_loss = self.loss

    def _remember(self) -> None:
        assert self.prev_flat_grad is not None
        change, taken, product, inverse, scale = parts.difference(
            self.gradient, self.prev_flat_grad, self.d, float(self.t)
        )
        if product > 1e-10:
            if len(self.old_dirs) == self.group["history_size"]:
                for kept in (self.old_dirs, self.old_stps, self.ro):
                    kept.pop(0)
            self.old_dirs.append(change)
            self.old_stps.append(taken)
            self.ro.append(inverse)
            self.H_diag = scale

    def _direction(self) -> Tensor:
        stretches = list(_stretches(len(self.old_dirs)))
        factors = self.state.setdefault("al", [None] * self.group["history_size"])
        direction = self.gradient.neg()
        for part in stretches:
            direction, factors[part] = parts.newest_first(
                direction, self.old_dirs[part], self.old_stps[part], self.ro[part]
            )
        direction = direction * self.H_diag
        for part in reversed(stretches):
            direction = parts.oldest_first(
                direction, self.old_dirs[part], self.old_stps[part], self.ro[part], factors[part]
            )
        return direction

    def _advance(self, slope: Tensor, most: int, iteration: int) -> int:
        """Go along the direction; how often the closure was called for it."""
        if self.group["line_search_fn"] is not None:
            start = self.optimizer._clone_param()
            self.loss, self.gradient, self.t, made = _strong_wolfe(  # type: ignore[no-untyped-call]
                self._there, start, self.t, self.d, self.loss, self.gradient, slope, max_ls=most
            )
            self._move(self.t, self.d)
            return int(made)
        self._move(self.t, self.d)
        if iteration == self.group["max_iter"]:
            return 0  # (what would be computed is computed again by the next step)
        self.loss = self._number(self.closure())
        self.gradient = self._gradient()
        return 1

    def _there(self, start: list[Tensor], t: Any, direction: Tensor) -> tuple[float, Tensor]:
        """Loss and gradient at a place along the direction; the parameters are left as they are."""
        if self._has_own("_directional_evaluate"):
            loss, gradient = self.optimizer._directional_evaluate(self.closure, start, t, direction)
            return loss, gradient
        self._move(t, direction)
        loss = self._number(self.closure())
        gradient = self._gradient()
        self.optimizer._set_param(start)
        return loss, gradient

    def _is_done(self) -> bool:
        steepest, farthest = parts.measures(self.gradient, self.d, float(self.t)).tolist()
        if steepest <= self.group["tolerance_grad"]:
            return True
        least: float = self.group["tolerance_change"]
        return farthest <= least or abs(self.loss - self.prev_loss) < least


def _stretches(length: int) -> Iterator[slice]:
    """A history of some length in stretches, newest first."""
    end = length
    for size in _STRETCHES:
        while end >= size:
            yield slice(end - size, end)
            end -= size
