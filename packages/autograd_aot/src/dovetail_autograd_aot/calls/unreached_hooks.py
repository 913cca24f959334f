"""Hooks on what a backward does not reach.

Of a compiled graph's inputs some may get no gradient: only outputs that the loss does not use lead
to them. In eager the engine does not come there at all. Here it comes with None, as the compiled
graph is one node, and would call the user's hooks, which expect a tensor. So in such a pass these
hooks are called only if a gradient comes (from elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dovetail_autograd_aot.native import nodes_module

Hook = Callable[..., Any]


@dataclass
class _Waiting:
    """Hooks that were replaced; called by the engine at the end of the pass."""

    replaced: list[tuple[dict[Any, Hook], Any, Hook, Hook]] = field(default_factory=list)

    def replace(self, hooks: dict[Any, Hook], guarded: Callable[[Hook], Hook]) -> None:
        """Put guarded hooks in the places of those of a dictionary."""
        for key, hook in list(hooks.items()):
            made = guarded(hook)
            hooks[key] = made
            self.replaced.append((hooks, key, made, hook))

    def __call__(self) -> None:
        """Everything as it was, but what was removed since."""
        for hooks, key, made, hook in reversed(self.replaced):
            if hooks.get(key) is made:
                hooks[key] = hook


def call_only_with_gradients(nodes: Sequence[Any]) -> None:
    """In the pass of the engine that runs, call the hooks on these nodes, which get None, and on
    those below them only if there is a gradient."""
    waiting = _Waiting()
    native = nodes_module()
    for node in native.hooked_below(list(nodes)):
        for kind, _, hooks in native.hooks(node):
            if hooks is None:
                continue  # (a hook of C++, which knows of gradients that are not there)
            if kind == "accumulated":
                waiting.replace(hooks, _if_accumulated(node.variable))
            else:
                waiting.replace(hooks, _if_given)
    if waiting.replaced:
        torch.autograd.Variable._execution_engine.queue_callback(waiting)


def _if_given(hook: Hook) -> Hook:
    """Of a tensor's hook, or one of a node, which take a gradient or tuples of them."""

    def guarded(*given: Any) -> Any:
        incoming = given[-1]
        some = incoming if isinstance(incoming, tuple) else (incoming,)
        return None if all(gradient is None for gradient in some) else hook(*given)

    return guarded


def _if_accumulated(variable: Tensor) -> Callable[[Hook], Hook]:
    before = variable.grad
    version = None if before is None else before._version

    def guard(hook: Hook) -> Hook:
        def guarded(tensor: Tensor) -> Any:
            now = tensor.grad
            if now is before and (now is None or now._version == version):
                return None
            return hook(tensor)

        return guarded

    return guard
