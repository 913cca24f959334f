"""The front door: `compile` with torch.compile's arguments and their meaning, and what else takes a
backend by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict, TypeVar, Unpack, overload

import dovetail_autograd_aot
import dovetail_capture
import torch
from dovetail_capture import OptimizedModule, call_through, optimize

from dovetail import config
from dovetail.backends.registry import Backend, get_default_backend, lookup_backend
from dovetail.options import Options

F = TypeVar("F", bound=Callable[..., Any])


class Arguments(TypedDict, total=False):
    """The arguments of `compile` beside the model."""

    fullgraph: bool
    dynamic: bool | None
    backend: str | Backend | None
    mode: str | None
    options: Mapping[str, Any] | None
    disable: bool
    recompile_limit: int | None
    isolate_recompiles: bool
    name: str | None
    dynamic_shapes: None


@overload
def compile(model: F, **settings: Unpack[Arguments]) -> F: ...


@overload
def compile(model: None = None, **settings: Unpack[Arguments]) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    name: str | None = None,
    dynamic_shapes: None = None,
) -> Any:
    """Compile a function or an `nn.Module`; also a decorator, with or without arguments.

    Args:
        model: the function or module. A module comes back as a module that shares its parameters, a
            class as itself, with the calls of its instances compiled.
        fullgraph: raise an error, naming the user's line, instead of breaking the graph.
        dynamic: None compiles for the sizes of the first call, and for any size where sizes (or
            int arguments) change later; True compiles for any size at once, False anew for each
            (up to `recompile_limit`). `mark_dynamic` and `mark_static` speak of single dimensions.
        backend: a name of `list_backends()`, or `(gm, example_inputs) -> callable`; None is
            that of `set_default_backend`, by default "dovetail".
        mode: one of "default", "lite", "reduce-overhead", "max-autotune",
            "max-autotune-no-cudagraphs" (`list_mode_options` tells what they set).
        options: single options by name (`dovetail.Options`), instead of a mode. A backend that is
            not ours is given mode and options as keywords, without what is for capture.
        disable: give `model` back as it is.
        recompile_limit: the option of that name, beside a mode too. Calls of `compile` that share
            what is compiled count together.
        isolate_recompiles: compile for this call of `compile` alone. By default all calls for the
            same code (one `def`, or modules of one class and structure) with the same arguments
            share what is compiled, and what `report` tells of it: the layers of a model may be
            compiled one by one, and a function again in each step. Backends that are callables are
            told apart by `==`. Modules whose weights are relied on to stay where they are (options
            `cudagraphs` and `constant_weights`) share nothing.
        name: what `report` calls it.
        dynamic_shapes: None; `mark_dynamic` and `mark_static` say it of tensors.

    What is not said here is as `dovetail.config` says.

    Raises:
        ValueError: an unknown mode, backend or option; the message names the near ones.
        RuntimeError: both mode and options.
        ImportError: the package of a backend is not installed.
    """
    if model is None:
        settings = {name: value for name, value in locals().items() if name != "model"}
        return lambda decorated: compile(decorated, **settings)
    if not callable(model):
        raise TypeError(f"compile takes a function or a module, got {type(model).__name__}")
    if dynamic_shapes is not None:
        raise ValueError("dynamic_shapes cannot be honoured: mark tensors, by mark_dynamic")
    if backend is None:
        backend = get_default_backend()
    resolved, chosen = lookup_backend(backend, mode, options)
    chosen = _with_limit(chosen, recompile_limit, "recompile_limit" in (options or {}))
    if dynamic is None:
        dynamic = config.default_dynamic()
    if disable:
        return model
    compiled = optimize(
        model,
        resolved,
        fullgraph=fullgraph,
        dynamic=dynamic,
        recompile_limit=chosen.recompile_limit,
        guard_filter_fn=chosen.guard_filter_fn,
        on_error=chosen.on_error,
        state_dict_prefix=chosen.state_dict_prefix,
        isolate_recompiles=isolate_recompiles or _holds_weights(model, chosen),
        backend_key=_key_of(backend, mode, options, chosen),
    )
    if name is not None:
        if isinstance(compiled, type):
            compiled.compile_name = name  # type: ignore[attr-defined]
        else:
            compiled.__dict__["compile_name"] = name
    return compiled


def _with_limit(chosen: Options, limit: int | None, has_own: bool) -> Options:
    """The options with the limit of recompilations that a call, or else the process, asks for.
    `has_own`: they name one themselves, which counts before the process's."""
    if limit is None and not has_own:
        limit = config.setting("recompile_limit")
    if limit is None or limit == chosen.recompile_limit:
        return chosen
    if type(limit) is not int or limit < 1:
        raise ValueError(f"recompile_limit must be an int of at least 1, got {limit!r}")
    return replace(chosen, recompile_limit=limit)


def compile_in_place(module: torch.nn.Module, **settings: Unpack[Arguments]) -> None:
    """Compile the calls of `module` itself, as `nn.Module.compile` does.

    Hooks of the module are part of what is compiled. Its state dict stays as it is; copies and
    pickles of it are not compiled. `settings` are `compile`'s arguments beside the model.

    Raises what `compile` does, and TypeError for what is not a module.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"compile_in_place takes a module, got {type(module).__name__}")
    if isinstance(module, OptimizedModule):
        module = module._orig_mod
    call = module._call_impl
    compiled = compile(call, **settings)
    if compiled is call:  # disabled
        module._compiled_call_impl = None
    else:
        call_through(module, compiled)


def _key_of(
    backend: str | Backend, mode: str | None, options: Mapping[str, Any] | None, chosen: Options
) -> tuple[Any, ...] | None:
    """What tells whether two calls have the same backend, where the backends that they make do not
    tell it."""
    if callable(backend) and mode is None and not options:
        return None
    return backend, mode, dict(options or {}), chosen


def _holds_weights(model: Any, options: Options) -> bool:
    """Does what is compiled for a module hold its weights, or where they lie?"""
    module = getattr(model, "__self__", model)
    return isinstance(module, torch.nn.Module) and (options.cudagraphs or options.constant_weights)


def compiled_autograd(
    *,
    backend: str | Backend = "dovetail",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> dovetail_autograd_aot.compiled_autograd:
    """A context in which `backward()` and `torch.autograd.grad` run as one compiled graph each:
    of compiled and eager pieces, with hooks and the accumulation of gradients.

    Make it once and enter it for every step; it holds the compiled passes, and its `report` tells
    what became of each. The arguments are those of `compile`.
    """
    chosen, _ = lookup_backend(backend, mode, options)
    return dovetail_autograd_aot.compiled_autograd(chosen)


class set_stance(dovetail_capture.set_stance):
    __doc__ = dovetail_capture.set_stance.__doc__

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        backend = (
            lookup_backend(force_backend)[0] if isinstance(force_backend, str) else force_backend
        )
        super().__init__(
            stance, skip_guard_eval_unsafe=skip_guard_eval_unsafe, force_backend=backend
        )
