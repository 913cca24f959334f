"""Boundary values in files: what one stage hands to the next, written and read back.

A file is a pickle, so read only files that you trust. What pickle cannot write by itself is
written here: graphs by their nodes with all of `meta`, operators by name, code objects, fake
tensors with the storages that they share. Symbolic sizes keep their `ShapeEnv`, so that a stage
which reads them may still assume something of them.
"""

from __future__ import annotations

import importlib
import io
import marshal
import pickle
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, NamedTuple, TypeVar

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dovetail_prims.fake_tensor import FakeTensor, make, set_lazy

T = TypeVar("T")
_MAGIC = b"dovetail boundary 1\n"  # (then a line with torch's version)


class BoundaryFileError(ValueError):
    """A value cannot be written, or a file holds no value of the kind that is asked for."""


def save_boundary(value: object, path: Path | str) -> None:
    """Write a boundary value (`CapturedFrame`, `JointGraph`, `LoopGraph`, ...) to a file.

    Raises BoundaryFileError where the value refers to what no other process can find, such as a
    function defined within a function; nothing is written then.
    """
    written = io.BytesIO(_MAGIC + f"{torch.__version__}\n".encode())
    written.seek(0, io.SEEK_END)
    try:
        _Pickler(written).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise BoundaryFileError(f"{type(value).__name__} cannot be written: {error}") from error
    Path(path).write_bytes(written.getvalue())


def load_boundary(path: Path | str, kind: type[T]) -> T:
    """Read a boundary value of the class `kind`, which this version of torch must have written.

    Raises BoundaryFileError for a file that holds anything else.
    """
    with Path(path).open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise BoundaryFileError(f"{path} is no file of a boundary value of this version")
        version = file.readline().decode().strip()
        if version != torch.__version__:  # (whose values may refer to what is not there)
            raise BoundaryFileError(f"{path} was written with torch {version}")
        value = _Unpickler(file).load()
    if not isinstance(value, kind):
        raise BoundaryFileError(f"{path} holds a {type(value).__name__}, no {kind.__name__}")
    return value


class _Reference(NamedTuple):
    """A node as an argument: its position in its graph."""

    position: int


class _Row(NamedTuple):
    """A node of a graph; its arguments hold references."""

    op: str
    target: Any
    args: Any
    kwargs: Any
    name: str
    type: Any
    meta: dict[str, Any]


# Types that no module has by their own names: those of functions, code, iterators ...
_VIEWS: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items())
_ITERATED: tuple[Any, ...] = ([], (), {}, set(), range(1), "", b"", bytearray(), *_VIEWS)
_REVERSED: tuple[Any, ...] = ([], {}, range(1), *_VIEWS)
_TYPES: dict[type, str] = {
    **{each: name for name, each in vars(types).items() if isinstance(each, type)},
    **{type(each): type(each).__name__ for each in _VIEWS},
    **{type(iter(each)): f"iterator of {type(each).__name__}" for each in _ITERATED},
    **{type(reversed(each)): f"reversed {type(each).__name__}" for each in _REVERSED},
}
_NAMED = {name: each for each, name in _TYPES.items()}


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        modules = list(sys.modules.items())
        self._namespaces = {id(vars(m)): name for name, m in modules if isinstance(m, ModuleType)}

    def persistent_id(self, value: Any) -> str | None:
        """The namespace of a module is referred to by the module's name."""
        return self._namespaces.get(id(value)) if type(value) is dict else None

    def reducer_override(self, value: Any) -> Any:
        """How to write what pickle has no way for: a function and its arguments."""
        if type(value) is FakeTensor:
            return _fake_tensor, (
                (value._sizes, value._strides, value._dtype, value._device, value._offset),
                value._storage,
                (value.requires_grad, value.is_conj(), value.is_neg()),
            )
        if isinstance(value, GraphModule):
            parts = type(value).__name__, _attributes(value), _rows(value), value.meta
            return _graph_module, parts
        if isinstance(value, OpOverload):
            return _overload, (value.namespace, value._schema.name, value._overloadname)
        if isinstance(value, OpOverloadPacket):
            return _packet, tuple(value._qualified_op_name.split("::"))
        if isinstance(value, HigherOrderOperator):
            return _higher_order, (value._name,)
        if isinstance(value, GetSetDescriptorType | MemberDescriptorType):
            return getattr, (value.__objclass__, value.__name__)
        if isinstance(value, FunctionType) and not _is_found_by_name(value):
            made_of = value.__code__, value.__globals__, value.__name__, None, value.__closure__
            defaults = value.__defaults__, value.__kwdefaults__
            return FunctionType, made_of, defaults, None, None, _set_defaults
        if isinstance(value, CellType):
            # (The contents come later: they may refer to the cell.)
            return CellType, (), _contents(value), None, None, _set_contents
        if isinstance(value, staticmethod | classmethod):
            return type(value), (value.__func__,)
        if type(value) is ModuleType:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type) and value in _TYPES:
            return _unnamed_type, (_TYPES[value],)
        if isinstance(value, CodeType):
            return marshal.loads, (marshal.dumps(value),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, name: str) -> dict[str, Any]:
        """The namespace of a module."""
        return vars(importlib.import_module(name))


def _is_found_by_name(function: FunctionType) -> bool:
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _contents(cell: CellType) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # an empty cell
        return None


def _set_contents(cell: CellType, contents: tuple[Any]) -> None:
    (cell.cell_contents,) = contents


def _set_defaults(function: FunctionType, defaults: tuple[Any, Any]) -> None:
    function.__defaults__, function.__kwdefaults__ = defaults


def _rows(gm: GraphModule) -> list[_Row]:
    positions = {node: position for position, node in enumerate(gm.graph.nodes)}

    def referring(arguments: Any) -> Any:
        return map_arg(arguments, lambda node: _Reference(positions[node]))

    return [
        _Row(n.op, n.target, referring(n.args), referring(n.kwargs), n.name, n.type, n.meta)
        for n in gm.graph.nodes
    ]


def _attributes(gm: GraphModule) -> dict[str, Any]:
    """What the graph's nodes refer to by name: tensors, and modules of its own or of the user's."""
    names = {str(n.target) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")}
    return {name: _attribute(gm, name) for name in sorted(names)}


def _attribute(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _graph_module(
    name: str, attributes: dict[str, Any], rows: Sequence[_Row], meta: dict[str, Any]
) -> GraphModule:
    graph, nodes = Graph(), list[Node]()

    def resolved(arguments: Any) -> Any:
        if isinstance(arguments, _Reference):
            return nodes[arguments.position]
        if isinstance(arguments, slice):
            return slice(*map(resolved, (arguments.start, arguments.stop, arguments.step)))
        if isinstance(arguments, dict):
            return {key: resolved(each) for key, each in arguments.items()}
        if isinstance(arguments, list):
            return [resolved(each) for each in arguments]
        if isinstance(arguments, tuple):
            parts = map(resolved, arguments)
            named = hasattr(arguments, "_fields")
            return type(arguments)(*parts) if named else tuple(parts)
        return arguments

    for row in rows:
        args, kwargs = resolved(tuple(row.args)), resolved(dict(row.kwargs))
        node = graph.create_node(row.op, row.target, args, kwargs, row.name, row.type)
        node.meta.update(row.meta)
        nodes.append(node)
    root = torch.nn.Module()
    for path, value in attributes.items():
        _set_attribute(root, path, value)
    made = GraphModule(root, graph, name)
    made.meta.update(meta)
    return made


def _set_attribute(root: torch.nn.Module, path: str, value: Any) -> None:
    *inner, last = path.split(".")
    for name in inner:
        if not hasattr(root, name):
            setattr(root, name, torch.nn.Module())
        root = getattr(root, name)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        root.register_buffer(last, value)
    else:
        setattr(root, last, value)


def _fake_tensor(layout: tuple[Any, ...], storage: Any, flags: tuple[bool, bool, bool]) -> Any:
    sizes, strides, dtype, device, offset = layout
    requires_grad, conj, neg = flags
    fake = make(sizes, strides, dtype, device, offset, storage)
    if conj or neg:
        set_lazy(fake, conj, neg)
    return fake.requires_grad_() if requires_grad else fake


def _overload(namespace: str, name: str, overload: str) -> OpOverload:
    packet = _packet(namespace, name.rpartition("::")[2])
    return getattr(packet, overload or "default")  # type: ignore[no-any-return]


def _packet(namespace: str, name: str) -> OpOverloadPacket:
    return getattr(getattr(torch.ops, namespace), name)  # type: ignore[no-any-return]


def _higher_order(name: str) -> HigherOrderOperator:
    return getattr(torch.ops.higher_order, name)  # type: ignore[no-any-return]


def _unnamed_type(name: str) -> type:
    return _NAMED[name]
