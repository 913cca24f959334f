"""The settings of a process: what was set, and scopes in which something else is."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from dovetail.settings import table
from dovetail.settings.torch_settings import Setting

F = TypeVar("F", bound=Callable[..., Any])

_UNSET: Any = object()
_TORCH_MODULES: Mapping[str, str] = {
    "dynamo": "torch._dynamo.config",
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
}


class Settings:
    """What was set, by name. The values are never changed in place: who reads them sees all of a
    change or nothing. All threads share them, as torch.compile's. `changed` is called with what
    is set after each change."""

    def __init__(self, changed: Callable[[Mapping[str, object]], object]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._given: Mapping[str, object] = MappingProxyType({})
        self._teller = table.Teller()

    def get(self, name: str) -> object:
        """The value of a setting: set here, or in torch's own module, or the default.

        Raises AttributeError, naming the near ones, for an unknown name.
        """
        setting = _known(name)
        if setting.name in self._given:
            return self._given[setting.name]
        theirs = _in_torch(setting)
        return setting.default if theirs is _UNSET else theirs

    def set(self, values: Mapping[str, object], stacklevel: int = 2) -> dict[str, object]:
        """Set several at once; what they were, for `restore`.

        Raises:
            AttributeError: an unknown name.
            ValueError, TypeError: a value that cannot be had.
        """
        settings = [(_known(name), value) for name, value in values.items()]
        for setting, value in settings:
            table.check_value(setting, value)
            self._teller.tell(setting.name, table.ineffective(setting, value), stacklevel + 1)
        named = {setting.name: value for setting, value in settings}
        with self._lock:
            before = {name: self._given.get(name, _UNSET) for name in named}
            self._given = MappingProxyType({**self._given, **named})
            self._changed(self._given)
        return before

    def restore(self, before: Mapping[str, object]) -> None:
        """Set values as `set` found them."""
        with self._lock:
            kept = {name: value for name, value in self._given.items() if name not in before}
            again = {name: value for name, value in before.items() if value is not _UNSET}
            self._given = MappingProxyType({**kept, **again})
            self._changed(self._given)

    def clear(self) -> None:
        """Take back all that was set."""
        self.restore(dict.fromkeys(self._given, _UNSET))

    def given(self) -> Mapping[str, object]:
        """What was set here, or else what the program set for torch.compile, of what has an
        effect."""
        return {**_given_to_torch(), **self._given}

    def tell(self, name: str, text: str | None, stacklevel: int) -> None:
        """Warn, once for each name, of a setting that changes nothing."""
        self._teller.tell(name, text, stacklevel + 1)

    def all(self) -> dict[str, object]:
        """All settings with their values."""
        return {name: self.get(name) for name in table.TABLE}


def _known(name: str) -> Setting:
    setting = table.find_setting(name)
    if setting is None:
        raise AttributeError(
            f"there is no setting {name!r}; {table.near_names(name, table.NAMES)}all are in "
            "dovetail.config.get_config_copy()"
        )
    return setting


def _in_torch(setting: Setting) -> Any:
    """The value that the program gave to a setting in torch's own module, which it imported."""
    config = sys.modules.get(_TORCH_MODULES.get(setting.module, ""))
    is_default: Callable[[str], bool] | None = getattr(config, "_is_default", None)
    if is_default is None or setting.name not in getattr(config, "_config", {}):
        return _UNSET
    if is_default(setting.name):
        return _UNSET
    value = functools.reduce(getattr, setting.name.split("."), config)
    return _UNSET if value == setting.default else value  # (a scope that has ended sets it, too)


def known_to_torch(name: str) -> bool:
    """Is it a setting of Inductor's, where the program has loaded that?"""
    return name in getattr(sys.modules.get(_TORCH_MODULES["inductor"]), "_config", {})


def _given_to_torch() -> dict[str, object]:
    """What has an effect in calls of `compile` and was set in torch's own modules."""
    if not any(name in sys.modules for name in _TORCH_MODULES.values()):
        return {}
    return {s.name: value for s in table.OF_CALLS if (value := _in_torch(s)) is not _UNSET}


class Group:
    """The settings whose names begin with one word and a dot, as attributes."""

    def __init__(self, settings: Settings, name: str) -> None:
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        return self._settings.get(f"{self._name}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        self._settings.set({f"{self._name}.{name}": value})

    def __dir__(self) -> list[str]:
        start = f"{self._name}."
        return [name.removeprefix(start) for name in table.TABLE if name.startswith(start)]


def attribute(settings: Settings, name: str) -> Any:
    """A group of settings, or a setting's value."""
    return Group(settings, name) if name in table.GROUPS else settings.get(name)


class Patch:
    """Settings for a `with` block, or for calls of a decorated function."""

    def __init__(self, settings: Settings, values: Mapping[str, object]) -> None:
        for name in values:
            _known(name)
        self._settings = settings
        self._values = dict(values)
        self._before: list[dict[str, object]] = []

    def __enter__(self) -> None:
        self._before.append(self._settings.set(self._values))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._settings.restore(self._before.pop())

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            before = self._settings.set(self._values)
            try:
                return function(*args, **kwargs)
            finally:
                self._settings.restore(before)

        return patched  # type: ignore[return-value]
