"""Operators that users register and that write to their arguments, as functional ones.

A functional form takes the same arguments, runs the operator on copies of those that it writes to,
and gives its results and then the copies: graphs, which write to nothing, call it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

_TYPES = {"Tensor": "Tensor", "Optional[Tensor]": "Tensor", "List[Tensor]": "Tensor[]"}


@dataclass(frozen=True)
class FunctionalForm:
    """What a functional form stands for: `written` are the positions and names of the arguments of
    `op` that it copies, and gives after the `results` results of `op`."""

    op: OpOverload
    written: tuple[tuple[int, str], ...]
    results: int


_forms: dict[str, FunctionalForm] = {}  # by the name of the schema
_libraries: dict[str, Any] = {}  # of each form its own


def functional_form_named(name: str) -> FunctionalForm | None:
    """The form of this name (`dovetail_functional::...`), if it is one."""
    return _forms.get(name)


def _new_library(name: str) -> Any:
    """A library for the form of this name. That of an operator which was defined again (a cell of
    a notebook, run twice) goes."""
    earlier = _libraries.pop(name, None)
    if earlier is not None:
        earlier._destroy()
    make: Any = torch.library.Library
    library = _libraries[name] = make("dovetail_functional", "FRAGMENT")
    return library


def has_functional_form(op: OpOverload) -> bool:
    """Whether a functional form can be made: what is written are tensors or lists of them, and no
    result is one of the arguments."""
    schema = op._schema
    return not any(r.alias_info is not None for r in schema.returns) and all(
        str(schema.arguments[i].type) in _TYPES for i in _written(op)
    )


def _written(op: OpOverload) -> tuple[int, ...]:
    arguments = enumerate(op._schema.arguments)
    return tuple(i for i, a in arguments if a.alias_info is not None and a.alias_info.is_write)


def absent_arguments(op: OpOverload, values: Mapping[str, Any]) -> frozenset[int]:
    """The places of the arguments that `op` would write to and that a call does not give."""
    arguments = op._schema.arguments
    return frozenset(i for i in _written(op) if values.get(arguments[i].name) is None)


@functools.cache
def functional_form(op: OpOverload, absent: frozenset[int]) -> OpOverload | None:
    """The functional form of an operator that writes, registered when first asked for; None where
    there can be none. `absent` are the places of what would be written and is None."""
    if not has_functional_form(op):
        return None
    written = tuple(i for i in _written(op) if i not in absent)
    names = [a.name for a in op._schema.arguments]
    text = re.sub(r"\(\w+!?\)", "", str(op._schema))  # without what says what is written
    given, _, results = text.partition("(")[2].rpartition(") -> ")
    own = results.strip("()")
    new = [_TYPES[str(op._schema.arguments[i].type)] for i in written]
    name = f"{op.namespace}_{op._schema.name.split('::')[1]}_{op._overloadname}"
    name += "".join(f"_without_{i}" for i in sorted(absent))
    library = _new_library(name)
    library.define(f"{name}({given}) -> ({', '.join([*([own] if own else []), *new])})")
    count = len(op._schema.returns)

    def run(copy: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values: list[Any] = list(args)
        copies = []
        for i in written:
            if i < len(values):
                values[i] = copy(values[i])
                copies.append(values[i])
            else:
                kwargs[names[i]] = copy(kwargs[names[i]])
                copies.append(kwargs[names[i]])
        result = op(*values, **kwargs)
        found = (*(() if not count else (result,) if count == 1 else result), *copies)
        return None if not found else found[0] if len(found) == 1 else found

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return run(_copied, args, kwargs)

    def fake(*args: Any, **kwargs: Any) -> Any:
        return run(_like, args, kwargs)

    library.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dovetail_functional::{name}", fake, lib=library)
    places = tuple((i, names[i]) for i in written)
    _forms[f"dovetail_functional::{name}"] = FunctionalForm(op, places, count)
    form: OpOverload = getattr(torch.ops.dovetail_functional, name).default
    return form


def _like(value: Any) -> Any:
    """Tensors that lie in memory as these do."""
    if isinstance(value, Tensor):
        options = {"dtype": value.dtype, "device": value.device}
        return torch.empty_strided(value.size(), value.stride(), **options)  # type: ignore[arg-type]
    return [_like(v) for v in value]


def _copied(value: Any) -> Any:
    """Copies that lie in memory as the originals do."""
    if isinstance(value, Tensor):
        return _like(value).copy_(value)
    return [_copied(v) for v in value]
