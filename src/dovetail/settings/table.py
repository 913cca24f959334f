"""The one table of settings, and what a set of values means."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping

from dovetail.settings import torch_settings

# Older names of settings.
_ALIASES: Mapping[str, str] = {
    "cache_size_limit": "recompile_limit",
    "accumulated_cache_size_limit": "accumulated_recompile_limit",
}

TABLE: Mapping[str, torch_settings.Setting] = {
    name: torch_settings.Setting(name, module, default, meaning)
    for module, rows in torch_settings.TORCH_SETTINGS.items()
    for meaning, defaults in rows
    for name, default in defaults.items()
}
NAMES: tuple[str, ...] = (*TABLE, *_ALIASES)
# Those that calls of `compile` ask for.
OF_CALLS: tuple[torch_settings.Setting, ...] = tuple(
    row
    for row in TABLE.values()
    if isinstance(row.meaning, torch_settings.SetsOption | torch_settings.SetsArgument)
)
GROUPS: frozenset[str] = frozenset(name.split(".")[0] for name in TABLE if "." in name)


def find_setting(name: str) -> torch_settings.Setting | None:
    """The setting of this name, or of this older one."""
    return TABLE.get(_ALIASES.get(name, name))


def near_names(name: object, known: Iterable[str]) -> str:
    """ "did you mean ...? ", or nothing, if no name is near."""
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""


def check_value(setting: torch_settings.Setting, value: object) -> None:
    """Raise for a value that cannot be had: TypeError for one of another type than the default,
    where the setting has an effect; ValueError where only the default can be had."""
    meaning = setting.meaning
    if isinstance(meaning, torch_settings.Refused) and value != setting.default:
        raise ValueError(f"{setting.name}={value!r} cannot be honoured: {meaning.reason}")
    if isinstance(
        meaning, torch_settings.SetsOption | torch_settings.SetsSwitch | torch_settings.SetsArgument
    ):
        wanted = type(setting.default)
        numbers = wanted is float and type(value) is int
        if type(value) is not wanted and not numbers:
            raise TypeError(
                f"{setting.name} takes {wanted.__name__}, got {type(value).__name__} {value!r}"
            )


def ineffective(setting: torch_settings.Setting, value: object) -> str | None:
    """What to warn of: the setting is accepted, and nothing follows from it."""
    if isinstance(setting.meaning, torch_settings.ChangesNothing) and value != setting.default:
        return f"{setting.name}={value!r} changes nothing here: {setting.meaning.reason}"
    return None


class Teller:
    """Warns of what changes nothing, of each setting once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, name: str, text: str | None, stacklevel: int) -> None:
        """Warn, if there is a text, and nothing was told of this name."""
        if text is not None and name not in self._told:
            self._told.add(name)
            warnings.warn(text, UserWarning, stacklevel + 1)


def options_of(values: Mapping[str, object]) -> dict[str, object]:
    """The fields of `dovetail.Options` that settings give. Where several switch one on, one of
    them is enough."""
    found: dict[str, object] = {}
    for name, value in values.items():
        setting = find_setting(name)
        if setting is not None and isinstance(setting.meaning, torch_settings.SetsOption):
            field = setting.meaning.field
            found[field] = True if found.get(field) is True else value
    return found


def switches_of(values: Mapping[str, object]) -> dict[str, bool]:
    """The fields of capture's `Switches` that settings switch on."""
    found: dict[str, bool] = {}
    for name, value in values.items():
        setting = find_setting(name)
        if setting is not None and isinstance(setting.meaning, torch_settings.SetsSwitch):
            switch = setting.meaning.switch
            found[switch] = found.get(switch, False) or bool(value)
    return found
