"""Settings for the whole process, by the names of torch._dynamo.config and torch._inductor.config.

    dovetail.config.recompile_limit = 16
    with dovetail.config.patch(capture_scalar_outputs=True): ...

What a name means here stands in `torch_settings.py`. A call of `compile` takes these for what it
is not told itself. What the program has set in torch's own modules counts, too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

from dovetail_capture.stance import stance_changed
from dovetail_capture.torch_switches import Switches, set_switches, torch_config

from dovetail.options import unknown_name
from dovetail.torch_settings import FRONT_END, INDUCTOR, ours_of

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS: Mapping[str, Any] = {
    "recompile_limit": 8,
    "cache_size_limit": 8,
    "suppress_errors": False,
    "capture_scalar_outputs": False,
    "capture_dynamic_output_shape_ops": False,
    "automatic_dynamic_shapes": True,
    "assume_static_by_default": True,
    "disable": False,
}
_SAME = {"cache_size_limit": "recompile_limit"}  # another name of it


class _Settings:
    """What was set, by torch's names. Replaced as a whole: a reader sees one state."""

    values: Mapping[str, Any] = {}


def setting(name: str) -> Any:
    """The value of a setting: set here, or in torch._dynamo.config, or the default."""
    if name in _Settings.values:
        return _Settings.values[name]
    theirs = torch_config(name)
    return _DEFAULTS[name] if theirs is None else theirs


def options_set() -> dict[str, Any]:
    """The options of ours that were set for the process, here or in torch._inductor.config."""
    found: dict[str, Any] = {}
    theirs = sys.modules.get("torch._inductor.config")
    is_default: Callable[[str], bool] | None = getattr(theirs, "_is_default", None)
    for name, row in INDUCTOR.items():
        if not row.option or name == "guard_filter_fn":
            continue
        if name in _Settings.values:
            found[row.option] = _Settings.values[name]
        elif is_default is not None and name in getattr(theirs, "_config", {}):
            if not is_default(name):
                found[row.option] = functools.reduce(getattr, name.split("."), theirs)
    if "activation_memory_budget" in _Settings.values:
        found["activation_memory_budget"] = _Settings.values["activation_memory_budget"]
    return found


def default_dynamic() -> bool | None:
    """What `dynamic=None` means by the settings."""
    if not setting("assume_static_by_default"):
        return True
    return None if setting("automatic_dynamic_shapes") else False


def _set(values: Mapping[str, Any]) -> None:
    """Take these values for all that is set."""
    _Settings.values = values
    captures = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
    set_switches(
        Switches(
            captures_data=any(values.get(name, False) for name in captures),
            suppress_errors=bool(values.get("suppress_errors", False)),
            disabled=bool(values.get("disable", False)),
        )
    )
    stance_changed()


def _accepted(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes as they are kept. Raises AttributeError for an unknown name, naming the near
    ones, ValueError for a setting that is refused."""
    found = {}
    for name, value in changes.items():
        table = FRONT_END if name in FRONT_END else INDUCTOR
        if name not in table:
            raise AttributeError(unknown_name("setting", name, {**FRONT_END, **INDUCTOR}))
        if ours_of(name, value, table) is not None:
            found[_SAME.get(name, name)] = value
    return found


@contextlib.contextmanager
def _patched(changes: Mapping[str, Any]) -> Iterator[None]:
    before = _Settings.values
    _set({**before, **_accepted(changes)})
    try:
        yield
    finally:
        _set(before)


def patch(changes: str | Mapping[str, Any] | None = None, value: Any = None, **named: Any) -> Any:
    """Settings for a `with` block, or for the calls of a decorated function:
    `patch(recompile_limit=2)`, `patch({"triton.cudagraphs": True})`, `patch("max_autotune", True)`.
    """
    if isinstance(changes, str):
        changes = {changes: value}
    return _patched({**(changes or {}), **named})


class _Group:
    """The settings whose names begin alike: `config.triton.cudagraphs`."""

    def __init__(self, prefix: str) -> None:
        object.__setattr__(self, "_prefix", prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules[__name__], f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys.modules[__name__], f"{self._prefix}.{name}", value)


_GROUPS = {name.partition(".")[0] for name in INDUCTOR if "." in name}


class _Config(ModuleType):
    """This module: its settings are attributes."""

    def __getattr__(self, name: str) -> Any:
        known = _SAME.get(name, name)
        if known in _DEFAULTS:
            return setting(known)
        if known in FRONT_END or known in INDUCTOR:
            return _Settings.values.get(known)
        if name in _GROUPS:
            return _Group(name)
        raise AttributeError(unknown_name("setting", name, {**FRONT_END, **INDUCTOR}))

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            _set({**_Settings.values, **_accepted({name: value})})


sys.modules[__name__].__class__ = _Config
