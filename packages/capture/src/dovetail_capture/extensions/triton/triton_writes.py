"""Which parameters a Triton kernel writes to, read from its source.

A name stands for memory of a parameter if a value with that parameter in it was ever assigned to
it. What is loaded is data. Stores and atomic operations write to the memory of their first argument
(or of the object whose method they are); a kernel that is called is read as well; whatever else is
not Triton's language or a function of numbers is taken to write to all that it is given. So more
may be said to be written than is, never less.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from dovetail_capture.skip import module_of

_NOTHING: frozenset[str] = frozenset()
_LANGUAGE = "triton.language"
# Of Triton's language: what may do anything with the memory that it is given.
_ASSEMBLY = frozenset({"inline_asm_elementwise", "extern_elementwise", "call", "async_task"})
_NUMBER_FUNCTIONS = frozenset(
    {"range", "min", "max", "len", "int", "float", "bool", "abs", "print", "isinstance", "type",
     "tuple", "list", "zip", "enumerate", "reversed", "sum", "hasattr", "getattr"}
)  # fmt: skip


def python_function(kernel: Any) -> types.FunctionType | None:
    """The Python function behind a kernel, through autotuners and heuristics around it."""
    while kernel is not None and not isinstance(kernel, types.FunctionType):
        kernel = getattr(kernel, "fn", None)
    return kernel


def written_parameters(function: types.FunctionType) -> frozenset[str]:
    """The names of the parameters whose memory a kernel may write to."""
    return _written(function, frozenset())


def _written(function: types.FunctionType, around: frozenset[Any]) -> frozenset[str]:
    names = frozenset(inspect.signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return names
    if function in around or not isinstance(tree, ast.FunctionDef):
        return names
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Global, ast.Nonlocal)
    if any(isinstance(node, inner) for node in ast.walk(tree) if node is not tree):
        return names
    reader = _Reader(function, names, around | {function})
    return reader.read(tree) & names


class _Reader:
    """The flow of parameters through one kernel, whatever the order of its statements."""

    def __init__(
        self, function: types.FunctionType, names: frozenset[str], around: frozenset[Any]
    ) -> None:
        self.function = function
        self.around = around
        self.holds = {name: frozenset({name}) for name in names}
        self.written = _NOTHING

    def read(self, tree: ast.FunctionDef) -> frozenset[str]:
        """What is written to, once nothing more is found."""
        before: Any = None
        while before != (before := (dict(self.holds), self.written)):
            for statement in tree.body:
                for node in ast.walk(statement):
                    self._flow(node)
        return self.written

    def _flow(self, node: ast.AST) -> None:
        """Note what one node of the tree assigns or writes."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, self._memory(node.value))
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            if node.value is not None:
                self._assign(node.target, self._memory(node.value))
        elif isinstance(node, (ast.For, ast.comprehension)):
            self._assign(node.target, self._memory(node.iter))
        elif isinstance(node, ast.withitem):
            if node.optional_vars is not None:
                self._assign(node.optional_vars, self._memory(node.context_expr))
        elif isinstance(node, ast.Call):
            self.written |= self._writes(node)

    def _assign(self, target: ast.expr, memory: frozenset[str]) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.holds[node.id] = self.holds.get(node.id, _NOTHING) | memory

    def _memory(self, node: ast.AST | None) -> frozenset[str]:
        """The parameters whose memory a value may point to."""
        if node is None:
            return _NOTHING
        if isinstance(node, ast.Name):
            return self.holds.get(node.id, _NOTHING)
        if isinstance(node, ast.Call) and _reads_data(_last_name(node.func)):
            return _NOTHING
        return self._of_all(ast.iter_child_nodes(node))

    def _of_all(self, nodes: Iterator[Any]) -> frozenset[str]:
        return _NOTHING.union(*(self._memory(node) for node in nodes))

    def _writes(self, call: ast.Call) -> frozenset[str]:
        """The parameters whose memory a call writes to."""
        given = self._of_all(iter([*call.args, *(k.value for k in call.keywords)]))
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        memory = self._memory(receiver)
        name = _last_name(call.func)
        if "store" in name or "atomic" in name or "copy" in name:
            first = self._of_all(iter(call.args[:1]))
            return memory | (given if not call.args or "copy" in name else first)
        called = self._resolve(call.func)
        if memory:  # a method of what points to memory: Triton's own, which give values
            return memory | given if name in _ASSEMBLY else _NOTHING
        if not given:
            return _NOTHING
        module = module_of(called)
        if module == _LANGUAGE or module.startswith(f"{_LANGUAGE}."):
            return given if name in _ASSEMBLY else _NOTHING
        if name in _NUMBER_FUNCTIONS and called is getattr(builtins, name):
            return _NOTHING
        inner = python_function(called) if module_of(type(called)).startswith("triton.") else None
        return given if inner is None else self._writes_of(inner, call, given)

    def _writes_of(
        self, inner: types.FunctionType, call: ast.Call, given: frozenset[str]
    ) -> frozenset[str]:
        """What a kernel that is called writes to, in terms of this one's parameters."""
        keywords = {k.arg: k.value for k in call.keywords}
        if None in keywords or any(isinstance(arg, ast.Starred) for arg in call.args):
            return given
        try:
            bound = inspect.signature(inner).bind(*call.args, **keywords)  # type: ignore[arg-type]
        except TypeError:
            return given
        written = _written(inner, self.around)
        return self._of_all(iter([n for name, n in bound.arguments.items() if name in written]))

    def _resolve(self, node: ast.expr) -> Any:
        """The object that a called name, or an attribute of a module, is."""
        if isinstance(node, ast.Attribute):
            return getattr(self._resolve(node.value), node.attr, None)
        if not isinstance(node, ast.Name):
            return None
        closure = inspect.getclosurevars(self.function)
        for names in (closure.nonlocals, self.function.__globals__, closure.builtins):
            if node.id in names:
                return names[node.id]
        return getattr(builtins, node.id, None)


def _last_name(node: ast.expr) -> str:
    """The name that is called, without what it is taken of."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _reads_data(name: str) -> bool:
    """Does a function of this name give data, not a place in memory?"""
    return name == "load" or name.startswith(("atomic_", "load_"))
