"""Names of submodules, and in a state dict, with and without the wrapper's place in them.

`torch.compile` gives a module's parameters names that begin with `_orig_mod.`. A checkpoint may
have been written in either form, and is loaded into both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

INNER = "_orig_mod"  # the attribute, and where it is a submodule its name


def has_inner_names(state_dict: Mapping[str, Any], prefix: str) -> bool:
    """Whether a name below `prefix` goes through the wrapper."""
    return any(name.startswith(f"{prefix}{INNER}.") for name in state_dict)


def drop_inner(state_dict: dict[str, Any], prefix: str) -> None:
    """Give what lies below `prefix` the names that it has without the wrapper."""
    through = f"{prefix}{INNER}."
    for name in [name for name in state_dict if name.startswith(through)]:
        clean = prefix + name[len(through) :]
        if clean not in state_dict:
            state_dict[clean] = state_dict.pop(name)


def add_inner(state_dict: dict[str, Any], prefix: str, own: Mapping[str, Any]) -> None:
    """Give what lies below `prefix` the names that it has through the wrapper, all but its `own`
    entries."""
    for name in [name for name in state_dict if name.startswith(prefix)]:
        rest = name[len(prefix) :]
        if rest not in own:
            state_dict[f"{prefix}{INNER}.{rest}"] = state_dict.pop(name)


def versions_without_inner(versions: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict's `_metadata`, which names modules, without the wrapper."""
    renamed = {name: value for name, value in versions.items() if not _is_inner(name)}
    for name, value in versions.items():
        if _is_inner(name):
            renamed[name[len(INNER) :].removeprefix(".")] = value
    return renamed


def versions_with_inner(versions: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict's `_metadata` with names that go through the wrapper."""
    renamed = {f"{INNER}.{name}" if name else INNER: value for name, value in versions.items()}
    return {"": {"version": 1}, **renamed}


def copied(state_dict: Mapping[str, Any], versions: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a state dict, with the versions of the modules that wrote it."""
    copy: dict[str, Any] = OrderedDict(state_dict)
    if versions is not None:
        copy._metadata = versions  # type: ignore[attr-defined]
    return copy


def _is_inner(name: str) -> bool:
    return name == INNER or name.startswith(f"{INNER}.")


class Submodules(MutableMapping[str, torch.nn.Module | None]):
    """The wrapper's `_modules`: the wrapped module's, as loading a state dict walks them by name.

    What is set as `_orig_mod`, the name of the wrapper's only child, becomes the wrapped module:
    there are passes that replace each child.
    """

    def __init__(
        self, table: dict[str, torch.nn.Module | None], set_inner: Callable[[torch.nn.Module], None]
    ) -> None:
        """`table` is the wrapped module's; `set_inner` puts another module in its place."""
        self._table, self._set_inner = table, set_inner

    def __getitem__(self, name: str) -> torch.nn.Module | None:
        return self._table[name]

    def __setitem__(self, name: str, module: torch.nn.Module | None) -> None:
        if name == INNER and module is not None:
            self._set_inner(module)
        else:
            self._table[name] = module

    def __delitem__(self, name: str) -> None:
        del self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def copy(self) -> dict[str, torch.nn.Module | None]:
        """A dict of its own."""
        return self._table.copy()
