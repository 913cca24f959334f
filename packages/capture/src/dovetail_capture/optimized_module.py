"""The wrapper of an optimized `nn.Module`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

_OWN = frozenset({"_orig_mod", "_optimized_call", "capture_context", "forward", "training"})


class OptimizedModule(torch.nn.Module):
    """A module that runs another one with capture on.

    The wrapped module is the submodule `_orig_mod`, so parameter names and `state_dict` keys carry
    that prefix; all other attributes are read from and written to the wrapped module, `training`
    included. Hooks registered here run around the whole call, hooks of the wrapped module as ever.
    """

    _orig_mod: torch.nn.Module
    _optimized_call: Callable[..., Any]

    def __init__(
        self, module: torch.nn.Module, optimized_call: Callable[..., Any], context: Any
    ) -> None:
        """`optimized_call` calls the module (hooks and all) with `context` switched on."""
        # Before super().__init__, whose own attribute writes already pass through __setattr__.
        object.__setattr__(self, "_orig_mod", module)
        super().__init__()
        del self.__dict__["_orig_mod"]
        self._modules["_orig_mod"] = module
        object.__setattr__(self, "_optimized_call", optimized_call)
        object.__setattr__(self, "capture_context", context)
        object.__setattr__(self, "forward", optimized_call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return super().__call__(*args, **kwargs)
        # The wrapped module's __call__ does the rest, and runs the hooks on all modules: once.
        return self._optimized_call(*args, **kwargs)

    @property
    def training(self) -> bool:
        """The wrapped module's flag."""
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        # torch.nn.Module.__init__ writes True: that must not touch the wrapped module.
        if "_modules" in self.__dict__ and "_orig_mod" in self._modules:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            modules = self.__dict__.get("_modules")
            if modules is None or name not in modules:
                raise AttributeError(name)
            return modules[name]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training":
            OptimizedModule.training.__set__(self, value)  # type: ignore[attr-defined]
        elif name == "__class__":  # (sharding makes a class of its own for a module)
            object.__setattr__(self, name, value)
        elif name in _OWN or "_modules" not in self.__dict__ or name in self.__dict__:
            super().__setattr__(name, value)
        elif "_orig_mod" in self._modules:
            setattr(self._orig_mod, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self._orig_mod)})

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __getitem__(self, place: Any) -> Any:
        return self._orig_mod[place]  # type: ignore[index]

    def __bool__(self) -> bool:
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        context = self.capture_context
        module = copy.deepcopy(self._orig_mod, memo)
        if id(self) in memo:  # the module refers to its wrapper
            copied: OptimizedModule = memo[id(self)]
            return copied
        copied = _rebuild(module, context.backend, context.settings)
        copied.__dict__.update(copy.deepcopy(self._own_hooks(), memo))
        return copied

    def __reduce__(self) -> Any:
        # Compiled code is not pickled: a copy is optimized afresh with the same settings.
        context = self.capture_context
        arguments = (self._orig_mod, context.backend, context.settings)
        return _rebuild, arguments, self._own_hooks() or None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _own_hooks(self) -> dict[str, Any]:
        """What was registered here: tables of hooks that are not empty, and the kind of some."""
        return {n: v for n, v in self.__dict__.items() if "_hook" in n and v}


def _rebuild(module: torch.nn.Module, backend: Any, settings: Any) -> OptimizedModule:
    from dovetail_capture.api import optimize

    optimized = optimize(module, backend, **settings)
    assert isinstance(optimized, OptimizedModule)
    return optimized
