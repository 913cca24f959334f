"""`compile`: the front door, with torch.compile's arguments and their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from dovetail_capture import optimize

from dovetail.backends import Backend, lookup_backend
from dovetail.options import resolve_options

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    model: F,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Backend = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> F: ...


@overload
def compile(
    model: None = None,
    *,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    backend: str | Backend = ...,
    mode: str | None = ...,
    options: Mapping[str, Any] | None = ...,
    disable: bool = ...,
) -> Callable[[F], F]: ...


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "dovetail",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compile a function or an `nn.Module`; also a decorator, with or without arguments.

    Args:
        model: the function or module. A module comes back as a module that shares its parameters.
        fullgraph: raise an error, naming the user's line, instead of breaking the graph.
        dynamic: None compiles for the sizes of the first call, and for any size where sizes (or
            int arguments) change later; True compiles for any size at once, False anew for each
            (up to `recompile_limit`). `mark_dynamic` and `mark_static` speak of single dimensions.
        backend: a name of `list_backends()`, or `(gm, example_inputs) -> callable`.
        mode: one of "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs".
        options: single options by name (`dovetail.Options`), instead of a mode.
        disable: give `model` back as it is.

    Raises:
        ValueError: an unknown mode, backend or option; the message names the near ones.
    """
    if model is None:

        def decorate(decorated: F) -> F:
            return compile(
                decorated,
                fullgraph=fullgraph,
                dynamic=dynamic,
                backend=backend,
                mode=mode,
                options=options,
                disable=disable,
            )

        return decorate
    if not callable(model):
        raise TypeError(f"compile takes a function or a module, got {type(model).__name__}")
    chosen = resolve_options(mode, options)
    resolved = lookup_backend(backend, chosen)
    if disable:
        return model
    return optimize(
        model,
        resolved,
        fullgraph=fullgraph,
        dynamic=dynamic,
        recompile_limit=chosen.recompile_limit,
        guard_filter_fn=chosen.guard_filter_fn,
    )
