"""Types whose objects are known by their value or by their identity."""

from __future__ import annotations

import enum
import functools
import operator
import re
import types
import typing
from typing import Any

import torch

# Compared by value in a guard.
EQUALITY_TYPES: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format, type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip

# The kinds of names in `typing`, without parameters and with.
_BARE = [vars(typing)[name] for name in ("Sized", "Tuple", "Callable", "Optional", "Literal")]
_GIVEN = (typing.Iterable[int], _BARE[3][int], typing.Callable[[int], int], typing.Literal[1])
_TYPING_KINDS = {type(name) for name in (*_BARE, *_GIVEN)}

# Pinned by identity in a guard.
IDENTITY_TYPES: tuple[type, ...] = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType, types.MemberDescriptorType, types.ModuleType, types.CodeType,
    types.GenericAlias, types.UnionType, type, functools._lru_cache_wrapper, property, staticmethod,
    classmethod, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    torch.Generator, re.Pattern, re.Match, torch.torch_version.TorchVersion, typing.TypeVar,
    typing.ParamSpec, typing.TypeVarTuple,
    operator.itemgetter, operator.attrgetter, operator.methodcaller, *_TYPING_KINDS,
)  # fmt: skip


def is_numpy(cls: type, name: str) -> bool:
    """Is `cls` numpy's class of this name, or a subclass? (numpy need not be installed.)"""
    return any(base.__module__ == "numpy" and base.__name__ == name for base in cls.__mro__)


def is_fixed_member(item: Any) -> bool:
    """Is it the same in each program that meets it? (A closure is known by its parts.)"""
    if type(item) in (tuple, frozenset):
        return all(map(is_fixed_member, item))
    if isinstance(item, types.FunctionType):
        return "<locals>" not in item.__code__.co_qualname
    functions = (
        types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        types.MethodWrapperType, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    )  # fmt: skip
    return isinstance(item, (*EQUALITY_TYPES, type, enum.Enum, *functions))
