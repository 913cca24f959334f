"""Rules of the source that keep a reduction and a target in one place each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import dovetail_inductor
from dovetail_inductor.loop_ir.reduction import REDUCTIONS, SCANS

SOURCE = Path(dovetail_inductor.__file__).parent


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


def strings(node: ast.expr) -> set[object]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
    return {part.value for part in parts if isinstance(part, ast.Constant)}


def test_nobody_compares_a_reduction_with_a_name() -> None:
    names = {"store", *REDUCTIONS, *(r.name for r in SCANS), *(r.combine for r in SCANS)}
    fields = ("reduction", "scan", "kind", "combine", "operation")
    found = []
    for name, module in modules():
        for node in ast.walk(module):
            if not isinstance(node, ast.Compare) or name == "loop_ir/reduction.py":
                continue
            asked = ast.unparse(node.left)
            named = set().union(*map(strings, node.comparators))
            if asked.endswith(fields) and named & names:
                found.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_no_pass_asks_which_machine_it_writes_for() -> None:
    """It asks what the machine is good at: a property of the `Target`."""
    names = ("on_gpu", "is_cuda", "on_cpu")
    found = []
    for name, module in modules():
        for node in ast.walk(module):
            named = {
                ast.Name: lambda n: n.id,
                ast.Attribute: lambda n: n.attr,
                ast.arg: lambda n: n.arg,
            }.get(type(node), lambda n: "")(node)
            if named in names:
                found.append(f"{name}:{node.lineno}: {named}")
    assert not found


def test_the_pipeline_alone_imports_what_is_not_core() -> None:
    found = []
    for name, module in modules():
        room = name.partition("/")[0]
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.count(".") > 1:
                imported = node.module.split(".")[1]
                if imported in ("graph_passes", "products") and imported != room:
                    found.append((name, imported))
    assert {name for name, _ in found} == {"__init__.py", "pipeline.py"}


def test_only_the_registry_names_a_code_generator() -> None:
    """All others ask the `Target` of a device (`targets.target_of`) or of the options."""
    found = []
    for name, module in modules():
        if name.startswith("targets/"):
            continue
        for node in ast.walk(module):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{name}: {n}" for n in names if n.startswith("dovetail_inductor.targets.c")]
    assert not found


def test_no_two_files_of_the_code_generators_have_one_name() -> None:
    names = [path.name for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    own = [path.name for path in (SOURCE / "targets").rglob("*.py") if path.name != "__init__.py"]
    assert not [name for name in own if names.count(name) > 1]
