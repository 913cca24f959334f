"""The table of submodules of a compiled module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping

import torch

from dovetail_capture.wrappers.state_dict_names import INNER


class Submodules(MutableMapping[str, torch.nn.Module | None]):
    """The wrapper's `_modules`: the wrapped module's, as loading a state dict walks them by name.

    What is set as `_orig_mod`, the name of the wrapper's only child, becomes the wrapped module:
    there are passes that replace each child.
    """

    def __init__(
        self,
        table: dict[str, torch.nn.Module | None],
        set_inner: Callable[[torch.nn.Module], None],
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
