"""The settings of this process, by torch.compile's names: `dovetail.config.recompile_limit = 16`.

Here are those of `torch._dynamo.config`, `torch._inductor.config`, `torch._functorch.config` and
`torch.compiler.config` that programs use (`settings`): some are `compile`'s options or arguments,
some are accepted and change nothing (one warning says why), some are refused with the reason. A
call of `compile` takes these for what it is not told itself. What the program sets in torch's own
modules holds here too, unless it is set here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from dovetail_capture.environment.torch_switches import Switches, set_switches
from dovetail_capture.stance import stance_changed

from dovetail.settings.store import Patch, Settings, attribute
from dovetail.settings.table import GROUPS, TABLE, options_of, switches_of


def _changed(given: Mapping[str, object]) -> None:
    set_switches(Switches(**switches_of(given)))
    stance_changed()


SETTINGS = Settings(_changed)


def patch(
    arg1: str | Mapping[str, object] | None = None, arg2: object = None, **kwargs: object
) -> Patch:
    """Settings for a `with` block or for calls of a decorated function: `patch("name", value)`,
    `patch({"triton.cudagraphs": True})` or `patch(name=value)`."""
    values: dict[str, object] = dict(kwargs)
    if isinstance(arg1, str):
        values[arg1] = arg2
    elif arg1 is not None:
        values.update(arg1)
    return Patch(SETTINGS, values)


def get_config_copy() -> dict[str, object]:
    """All settings with their values."""
    return SETTINGS.all()


def setting(name: str) -> Any:
    """The value of a setting: set here, or in torch's own module, or the default."""
    return SETTINGS.get(name)


def options_set() -> dict[str, Any]:
    """The options of ours that were set for the process, here or in torch's own modules."""
    return options_of(SETTINGS.given())


def default_dynamic() -> bool | None:
    """What `dynamic=None` means by the settings."""
    if not setting("assume_static_by_default"):
        return True
    automatic = setting("automatic_dynamic_shapes") and setting("dynamic_shapes")
    return None if automatic else False


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return attribute(SETTINGS, name)


class _SettingsModule(ModuleType):
    """This module: assigning to an attribute sets a setting."""

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            SETTINGS.set({name: value})

    def __dir__(self) -> list[str]:
        plain = {name for name in TABLE if "." not in name}
        return sorted({*super().__dir__(), *plain, *GROUPS})


sys.modules[__name__].__class__ = _SettingsModule
