"""The wrapper of an optimized `nn.Module`."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from dovetail_capture.wrappers import askers
from dovetail_capture.wrappers import state_dict_names as names
from dovetail_capture.wrappers.state_dict_names import INNER, Submodules

_OWN = frozenset({INNER, "_optimize", "capture_context", "forward"})
# Tables of the wrapped module that serve as the wrapper's: a name in `named_parameters` or in a
# state dict may be that of the wrapper and of an entry in one of its tables.
_SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True)
class SameSettings:
    """Compiles other functions as a module was compiled; torch.compile's `dynamo_ctx`."""

    optimize: Callable[..., Any]
    backend: Any
    settings: dict[str, Any]

    def __call__(self, target: Callable[..., Any]) -> Any:
        """The compiled form of `target`."""
        return self.optimize(target, self.backend, **self.settings)

    @property
    def callback(self) -> Any:
        """What is given the graphs."""
        return self.backend


class OptimizedModule(torch.nn.Module):
    """A module that runs another one, its attribute `_orig_mod`, with capture on.

    Parameters, buffers and submodules have the names that they have without the wrapper, in
    `named_modules` beside the wrapper itself, which has the wrapped module's name; a state dict is
    the wrapped module's, hooks included. As a child (`children`, `apply`, `to`, `train`) the
    wrapped module is `_orig_mod`. All other attributes are read from and written to the wrapped
    module, `training` included. Hooks registered here run around the whole call, hooks of the
    wrapped module as ever.

    Programs know compiled modules by torch.compile's class: once that is loaded, this is an
    instance of it to `isinstance`.
    """

    _orig_mod: torch.nn.Module
    _optimize: Callable[..., Any]

    def __init__(
        self,
        module: torch.nn.Module,
        optimized_call: Callable[..., Any],
        context: Any,
        optimize: Callable[..., Any],
    ) -> None:
        """`optimized_call` calls the module (hooks and all) with `context` switched on. `optimize`
        makes compiled forms of other modules, of copies for example."""
        # Before super().__init__, whose own attribute writes already pass through __setattr__.
        object.__setattr__(self, INNER, module)
        super().__init__()
        self._settle(module)
        object.__setattr__(self, "capture_context", context)
        object.__setattr__(self, "_optimize", optimize)
        object.__setattr__(self, "forward", optimized_call)

    def prefixed(self) -> PrefixedModule:
        """The same with the names of torch.compile's: parameters' begin with `_orig_mod.`."""
        return PrefixedModule(self._orig_mod, self.forward, self.capture_context, self._optimize)

    def _settle(self, module: torch.nn.Module) -> None:
        """Take up the wrapped module once the tables of a module are there."""
        for name in _SHARED:
            self.__dict__.pop(name, None)  # __getattr__ finds the module's
        del self.__dict__["_modules"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (
            self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
        ):
            return super().__call__(*args, **kwargs)
        # The wrapped module's __call__ does the rest, and runs the hooks on all modules: once.
        return self.forward(*args, **kwargs)

    # --- what it is taken for ---

    @property
    def __class__(self) -> type:
        """torch.compile's class where it is loaded, for `isinstance`; `type` tells the own one."""
        if self._is_asked_by(askers.READS_NAMES):
            return self._orig_mod.__class__
        return askers.torchs_class() or type(self)

    @__class__.setter
    def __class__(self, value: type) -> None:
        # Sharding makes a class of its own from the class that a module says it has.
        theirs, own = askers.torchs_class(), type(self)
        if value is theirs:
            return
        if theirs is not None and theirs in value.__bases__:
            content = {k: v for k, v in vars(value).items() if k not in ("__dict__", "__weakref__")}
            bases = tuple(own if base is theirs else base for base in value.__bases__)
            value = type(value)(value.__name__, bases, content)
        object.__dict__["__class__"].__set__(self, value)

    def _is_asked_by(self, modules: frozenset[str]) -> bool:
        """Whether code of one of these modules is what calls, two frames up or through a method
        of `nn.Module`, or through an abstract class's `__instancecheck__`."""
        return askers.is_asked_by(modules, 3)

    @property
    def dynamo_ctx(self) -> SameSettings:
        """What compiles a function with this module's settings."""
        return SameSettings(
            self._optimize, self.capture_context.backend, self.capture_context.settings
        )

    def __prepare_scriptable__(self) -> torch.nn.Module:
        # `torch.jit.script` would put what it is given in the wrapper's place in a larger module.
        raise RuntimeError(
            "torch.jit.script cannot compile a compiled module; script the module that it was "
            "compiled from, its `_orig_mod`"
        )

    # --- attributes ---

    @property
    def training(self) -> bool:
        """The wrapped module's flag."""
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        # torch.nn.Module.__init__ writes True: that must not touch the wrapped module.
        if "forward" in self.__dict__:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == INNER:
            raise AttributeError(name)
        if name == "_modules":
            return Submodules(self._orig_mod._modules, self._set_inner)
        if name in ("_parameters", "_buffers") and self._is_asked_by(askers.CHANGES_CLASS):
            return {}
        if name == "__signature__":  # of the module itself
            return inspect.signature(self._orig_mod.forward)
        if name == "_compile_kwargs":  # what Lightning Fabric compiles the module with again
            return getattr(self._orig_mod, name, None) or self._arguments()
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == INNER:
            self._set_inner(value)
        elif name in _OWN or name in self.__dict__ or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self._orig_mod, name, value)

    def _set_inner(self, module: torch.nn.Module) -> None:
        # (Libraries that unwrap a module write it back. What is called stays what was compiled.)
        object.__setattr__(self, INNER, module)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or name in self.__dict__:
            object.__delattr__(self, name)
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

    def __repr__(self) -> str:
        inner = repr(self._orig_mod).replace("\n", "\n  ")
        return f"OptimizedModule(\n  ({INNER}): {inner}\n)"

    # --- the tree of modules, and names in it ---

    def named_children(self) -> Iterator[tuple[str, torch.nn.Module]]:
        """The wrapped module, by the name `_orig_mod`."""
        if self._is_asked_by(askers.READS_NAMES):
            yield from self._orig_mod.named_children()
            return
        if self._is_asked_by(askers.FSDP):
            yield askers.LEFT_OUT, self._orig_mod
            return
        if torch.jit._trace._trace_module_map is not None:
            raise RuntimeError(
                "torch.jit.trace cannot trace a compiled module; trace the module that it was "
                "compiled from, its `_orig_mod`"
            )
        yield INNER, self._orig_mod

    def named_modules(
        self,
        memo: set[torch.nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        """This module, then all of the wrapped one, itself included, by the names that they have
        without the wrapper."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self._orig_mod.named_modules(memo, prefix, remove_duplicate)

    def _named_members(
        self, members: Any, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        # Its own are none: who goes through all modules finds the wrapped module's there.
        if recurse or self._is_asked_by(askers.READS_NAMES):
            yield from self._orig_mod._named_members(members, prefix, recurse, remove_duplicate)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> OptimizedModule:
        self._orig_mod._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Register a buffer with the wrapped module."""
        self._orig_mod.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Register a parameter with the wrapped module."""
        self._orig_mod.register_parameter(*args, **kwargs)

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """Register a submodule with the wrapped module, or, as `_orig_mod`, put it in its place."""
        if name == INNER and module is not None:
            self._set_inner(module)
        else:
            self._orig_mod.add_module(name, module)

    register_module = add_module

    def _replicate_for_data_parallel(self) -> Any:
        raise RuntimeError(
            "nn.DataParallel copies the modules inside it in each call, which a compiled module "
            "cannot be; compile the nn.DataParallel itself, or use DistributedDataParallel"
        )

    # --- state dicts ---

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's state dict."""
        if self._is_asked_by(askers.EXPECTS_PREFIX):
            kwargs.setdefault("prefix", f"{INNER}.")
        return self._orig_mod.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the wrapped module. Names may begin with `_orig_mod.`, as torch.compile's."""
        if isinstance(state_dict, Mapping) and self._drops_inner(state_dict, ""):
            versions = getattr(state_dict, "_metadata", None)
            versions = versions and names.versions_without_inner(versions)
            state_dict = names.copied(state_dict, versions)
            names.drop_inner(state_dict, "")
        return self._orig_mod.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # As a part of a module that is loaded, which goes on to the children in `_modules`.
        if self._drops_inner(state_dict, prefix):
            names.drop_inner(state_dict, prefix)
        self._orig_mod._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _drops_inner(self, state_dict: Mapping[str, Any], prefix: str) -> bool:
        return INNER not in self._modules and names.has_inner_names(state_dict, prefix)

    # --- copies ---

    def _arguments(self) -> dict[str, Any]:
        """What torch.compile takes of the backend and the settings."""
        settings = self.capture_context.settings
        taken = {name: settings[name] for name in ("fullgraph", "dynamic")}
        return {"backend": self.capture_context.backend, **taken}

    def _settings(self) -> dict[str, Any]:
        """What `optimize` was told beside the module and the backend."""
        return dict(self.capture_context.settings)

    def _copier(self) -> SameSettings:
        """Compiles another module as this one was, the kind of its names included."""
        return SameSettings(self._optimize, self.capture_context.backend, self._settings())

    def __deepcopy__(self, memo: dict[int, Any]) -> OptimizedModule:
        module = copy.deepcopy(self._orig_mod, memo)
        if id(self) in memo:  # the module refers to its wrapper
            return cast(OptimizedModule, memo[id(self)])
        copied: OptimizedModule = self._copier()(module)
        copied.__dict__.update(copy.deepcopy(self._own_hooks(), memo))
        return copied

    def __reduce__(self) -> Any:
        # Compiled code is not pickled: a copy is optimized afresh with the same settings.
        return self._copier(), (self._orig_mod,), self._own_hooks() or None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _own_hooks(self) -> dict[str, Any]:
        """What was registered here: tables of hooks that are not empty, and the kind of some."""
        return {n: v for n, v in self.__dict__.items() if "_hook" in n and v}


class PrefixedModule(OptimizedModule):
    """An `OptimizedModule` of which the wrapped module is a submodule, `_orig_mod`, as with
    torch.compile: names of parameters, and of a state dict, carry that prefix."""

    named_children = torch.nn.Module.named_children
    named_modules = torch.nn.Module.named_modules
    _named_members = torch.nn.Module._named_members  # type: ignore[assignment]
    _apply = torch.nn.Module._apply
    register_buffer = torch.nn.Module.register_buffer
    register_parameter = torch.nn.Module.register_parameter
    add_module = torch.nn.Module.add_module
    register_module = torch.nn.Module.register_module
    state_dict = torch.nn.Module.state_dict

    def _settle(self, module: torch.nn.Module) -> None:
        del self.__dict__[INNER]
        self._modules[INNER] = module

    def _set_inner(self, module: torch.nn.Module) -> None:
        self._modules[INNER] = module

    def __getattr__(self, name: str) -> Any:
        if name == INNER and "_modules" in self.__dict__:
            return self._modules[INNER]
        return super().__getattr__(name)

    def _is_asked_by(self, modules: frozenset[str]) -> bool:
        return False

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load, by names that begin with `_orig_mod.` or by those of the wrapped module."""
        if isinstance(state_dict, Mapping) and not names.has_inner_names(state_dict, ""):
            versions = getattr(state_dict, "_metadata", None)
            state_dict = names.copied(state_dict, versions and names.versions_with_inner(versions))
        return torch.nn.Module.load_state_dict(self, state_dict, *args, **kwargs)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if not names.has_inner_names(state_dict, prefix):
            names.add_inner(state_dict, prefix, {**self._parameters, **self._buffers})
        torch.nn.Module._load_from_state_dict(self, state_dict, prefix, *args, **kwargs)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "state_dict_prefix": True}


def call_through(module: torch.nn.Module, optimized_call: Any) -> None:
    """Let calls of `module` run `optimized_call`, what `optimize` made of its `_call_impl`."""

    # A function, as all that looks through a module's attributes expects there.
    @functools.wraps(module._call_impl)
    def call(*args: Any, **kwargs: Any) -> Any:
        return optimized_call(*args, **kwargs)

    call.__dict__["capture_context"] = optimized_call.capture_context
    module._compiled_call_impl = call
