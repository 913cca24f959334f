"""How long functions and files, and how wide records and classes of the source may be.

What is over a limit today is listed in `integration_tests/over_limits.txt`, which may only shrink:

    python integration_tests/test_limits.py --write

writes it anew; what is new over a limit fails the test, and so does what is no more. Functions on
operators' cards, in tables of functions by operator, and those that implement a registered operator
have its parameters: these have no limit.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("over_limits.txt")
MOST_LINES_OF_A_FUNCTION = 80
MOST_PARAMETERS = 8
MOST_FIELDS = 10
MOST_ATTRIBUTES = 25
MOST_LINES_OF_A_FILE = 400
_TABLES = {"CARDS", "TABLE", "rules"}


def _measured(path: Path) -> Iterator[str]:
    """What is over a limit in a file, as `kind name`."""
    text = path.read_text()
    if text.count("\n") > MOST_LINES_OF_A_FILE:
        yield "lines of the file"
    tree = ast.parse(text)
    of_operators = _of_operators(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            if node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                yield f"lines of {node.name}"
            if len(_parameters(node)) > MOST_PARAMETERS and node.name not in of_operators:
                yield f"parameters of {node.name}"
        elif isinstance(node, ast.ClassDef):
            fields = _fields(node)
            if _is_record(node) and len(fields) > MOST_FIELDS:
                yield f"fields of {node.name}"
            if len(fields | _attributes(node)) > MOST_ATTRIBUTES:
                yield f"attributes of {node.name}"


def _of_operators(tree: ast.Module) -> set[str]:
    """The functions that cards, tables of functions by operator and registrations name, with what
    is defined in them."""
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".impl"):
            named |= {part.id for part in node.args if isinstance(part, ast.Name)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        names = [getattr(target, "id", getattr(target, "name", "")) for target in targets]
        if any(name in _TABLES or name.endswith("_FORMS") for name in names):
            named |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    inner = (ast.walk(node) for node in functions if node.name in named)
    return named | {n.name for nodes in inner for n in nodes if isinstance(n, ast.FunctionDef)}


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def _is_record(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)


def _fields(cls: ast.ClassDef) -> set[str]:
    return {
        part.target.id
        for part in cls.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and "ClassVar" not in ast.unparse(part.annotation)
    }


def _attributes(cls: ast.ClassDef) -> set[str]:
    return {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def over_limits() -> list[str]:
    """What is over a limit in the source: `path: what`, sorted."""
    paths = [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    found = {f"{p.relative_to(ROOT)}: {what}" for p in paths for what in _measured(p)}
    return sorted(found)


def test_nothing_new_is_over_a_limit() -> None:
    listed, now = LIST.read_text().splitlines(), over_limits()
    assert not set(now) - set(listed), "split these"
    assert not set(listed) - set(now), "well done: take these from over_limits.txt"


if __name__ == "__main__":
    if "--write" in sys.argv:
        LIST.write_text("\n".join(over_limits()) + "\n")
    print(len(over_limits()), "over a limit")
