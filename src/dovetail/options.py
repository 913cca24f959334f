"""What `compile` can be told, as one frozen type. An unknown name raises, naming the near ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from dovetail_capture.knobs import ON_ERROR, ON_ERROR_CHOICES, OnError

from dovetail.config import SETTINGS
from dovetail.settings import table
from dovetail.settings.store import known_to_torch
from dovetail.settings.torch_settings import SetsArgument, SetsSwitch


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is not known: the near ones first, then all."""
    names = sorted(known)
    return f"unknown {what} {name!r}; {table.near_names(name, names)}known: {', '.join(names)}"


@dataclass(frozen=True)
class Options:
    """Choices of one `compile` call.

    recompile_limit: compiled versions of one frame before it runs plainly, with a warning.
    cudagraphs: record each compiled graph as a CUDA graph (no effect on the CPU).
    launch_bound_cudagraphs: record, after two calls, graphs without gradients that the GPU finishes
        about as fast as the CPU launches them, if they hold little memory.
    max_autotune: on a GPU, measure kernels of ours beside the library's products of matrices, and
        run the faster ones.
    constant_weights: in calls without gradients, what is computed of parameters and buffers alone
        (casts, layouts, a batch norm's scale times the weights before it) is computed once, and
        again after a weight was written to. What its version counter does not tell is not seen:
        writes through `.data`, and a batch norm's statistics in training that is not compiled.
    guard_filter_fn: given a list of `dovetail_capture.GuardFilterEntry`, tells of each whether it
        is kept; what it drops is never checked.
    activation_memory_budget: from 0 to 1, how much of what is saved for the backward by default is
        saved; the rest is computed again. `report` and `explain` tell what is saved.
    on_error: what becomes of an error inside the compiler. "run_uncompiled": the graph, or the
        frame, runs uncompiled; a warning tells what to send, and `report` counts it. "raise": it is
        raised. DOVETAIL_ON_ERROR sets the default. Errors of the program's own are always raised,
        and under `fullgraph` those of capture: there is no whole graph then.
    fallback_random: random numbers (dropout, samplers) are eager's very numbers. They always are:
        eager's own kernels draw them, in eager's order, so this changes nothing.
    state_dict_prefix: a compiled module's names of parameters, and of its state dict, begin with
        `_orig_mod.`, as torch.compile's do; without it they are the module's own. Both forms are
        loaded in either case.
    fallback_by_default: the mode "lite": no code is generated. Each operator that the program calls
        is run by eager's own kernel, in a graph of the forward and one of the backward, so that
        results and gradients are eager's very numbers.
    """

    recompile_limit: int = 8
    cudagraphs: bool = False
    launch_bound_cudagraphs: bool = True
    max_autotune: bool = False
    constant_weights: bool = False
    guard_filter_fn: Callable[..., Any] | None = None
    activation_memory_budget: float = 1.0
    on_error: OnError = ON_ERROR
    fallback_random: bool = True
    state_dict_prefix: bool = False
    fallback_by_default: bool = False


MODES: Mapping[str, Options] = {
    "default": Options(),
    "lite": Options(fallback_by_default=True),
    "reduce-overhead": Options(cudagraphs=True),
    "max-autotune": Options(cudagraphs=True, max_autotune=True),
    "max-autotune-no-cudagraphs": Options(max_autotune=True, launch_bound_cudagraphs=False),
}


def list_options() -> list[str]:
    """The names of options that `compile` takes."""
    return [field.name for field in fields(Options)]


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """The options that a mode sets, or all modes' by name. (They are the same for `dynamic`.)

    Raises ValueError for an unknown mode.
    """
    if mode is None:
        return {name: list_mode_options(name) for name in MODES}
    if mode not in MODES:
        raise ValueError(unknown_name("mode", mode, MODES))
    default, chosen = Options(), MODES[mode]
    return {
        name: getattr(chosen, name)
        for name in list_options()
        if getattr(chosen, name) != getattr(default, name)
    }


_CALLERS = 5  # from `_ours` up to who calls `compile`


def _ours(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by our names; what torch's name for them changes nothing here is left out."""
    own = set(list_options())
    found: dict[str, Any] = {name: value for name, value in options.items() if name in own}
    by_torchs_name: dict[str, object] = {}
    for name, value in options.items():
        setting = table.find_setting(name)
        if name in own:
            continue
        if setting is not None:
            if isinstance(setting.meaning, SetsSwitch | SetsArgument):
                raise ValueError(f"{name!r} is no option of a call: set dovetail.config.{name}")
            table.check_value(setting, value)
            SETTINGS.tell(name, table.ineffective(setting, value), _CALLERS)
            by_torchs_name[name] = value
        elif known_to_torch(name):
            text = f"option {name!r} changes nothing here: it is one of torch's compiler alone"
            SETTINGS.tell(name, text, _CALLERS)
        else:
            found[name] = value  # (refused below)
    for name, value in table.options_of(by_torchs_name).items():
        found[name] = True if found.get(name) is True else value
    return found


def resolve_options(
    mode: str | None, options: Mapping[str, Any] | None, process: Mapping[str, Any] | None = None
) -> Options:
    """The options of a mode, with single options replaced: by our names, or torch's for them.
    `process` holds what is set for the process, where neither says otherwise.

    Raises ValueError for an unknown mode or option (naming the near ones) and TypeError for a
    value of the wrong type.
    """
    options = _ours(options) if options else {}
    if mode is not None and mode not in MODES:
        raise ValueError(unknown_name("mode", mode, MODES))
    chosen, plain = MODES[mode or "default"], MODES["default"]
    options = {
        **{k: v for k, v in (process or {}).items() if getattr(chosen, k) == getattr(plain, k)},
        **options,
    }
    if not options:
        return chosen
    known = {f.name: type(getattr(chosen, f.name)) for f in fields(Options)}
    for name, value in options.items():
        if name not in known:
            raise ValueError(
                f"unknown option {name!r}; {table.near_names(name, (*known, *table.NAMES))}known: "
                f"{', '.join(known)}, and Inductor's (see dovetail.config)"
            )
        if name == "guard_filter_fn":
            if value is not None and not callable(value):
                raise TypeError(f"option {name!r} takes a function, got {type(value).__name__}")
        elif name == "activation_memory_budget":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"option {name!r} takes float, got {type(value).__name__}")
            if not 0 <= value <= 1:
                raise ValueError(f"option {name!r} takes a number from 0 to 1, got {value}")
        elif name == "on_error":
            if value not in ON_ERROR_CHOICES:
                raise ValueError(
                    unknown_name("value of option 'on_error'", value, ON_ERROR_CHOICES)
                )
        elif type(value) is not known[name]:
            raise TypeError(
                f"option {name!r} takes {known[name].__name__}, got {type(value).__name__}"
            )
    return replace(chosen, **options)
