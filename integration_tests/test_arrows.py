"""The arrows between packages (design: there are no others) and the import ban, enforced."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ARROWS: dict[str, set[str]] = {
    "guards": set(),
    "prims": {"guards"},
    "runtime": set(),
    "capture": {"guards", "prims"},
    "autograd_aot": {"guards", "prims"},
    "inductor": {"guards", "prims", "runtime"},
}
BANNED = (
    "torch._dynamo",
    "torch._C._dynamo",
    "torch._guards",
    "torch._inductor",
    "torch._functorch",
    "functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch._subclasses",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.experimental.proxy_tensor",
    "torch._export",
    "torch.export",
)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Each module that a file imports, wherever the import stands, and each dotted name that
    reaches one by attribute (`torch._dynamo.reset`)."""
    return frozenset(_imports(ast.parse(path.read_text(), str(path))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Attribute) and (name := dotted(node)):
            yield name


def dotted(node: ast.expr) -> str | None:
    """`a.b.c`; None where it begins with anything but a name (what is in that is walked, too)."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else None


def sources(package: str) -> list[Path]:
    return sorted((ROOT / "packages" / package / "src").rglob("*.py"))


@pytest.mark.parametrize("package", ARROWS)
def test_package_imports_only_what_its_arrows_allow(package: str) -> None:
    allowed = {f"dovetail_{name}" for name in ARROWS[package] | {package}}
    for path in sources(package):
        for name in imports_of(path):
            top = name.split(".")[0]
            if top == "dovetail" or top.startswith("dovetail_"):
                assert top in allowed, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("package", ARROWS)
def test_declared_dependencies_are_the_arrows(package: str) -> None:
    project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    declared = {
        re.split(r"[<>=!~ ]", d)[0].removeprefix("dovetail-").replace("-", "_")
        for d in project["dependencies"]
        if d.startswith("dovetail-")
    }
    assert declared <= ARROWS[package]


def all_python() -> list[Path]:
    folders = [ROOT / "src", ROOT / "integration_tests", *(ROOT / "packages").iterdir()]
    return sorted(
        p for f in folders for p in f.rglob("*.py") if "build" not in p.relative_to(ROOT).parts
    )


# What shows that programs move over from torch.compile: it calls torch's own names.
INTEROP = {
    "integration_tests/compile_features.py",
    "integration_tests/library_runs.py",
    "integration_tests/test_beside_torch_compile.py",
    "integration_tests/test_foreign_sizes.py",
    "integration_tests/test_interop.py",
    "integration_tests/test_models_behind_torch_compile.py",
    "integration_tests/test_torch_names.py",
    "packages/capture/tests/test_torch_switches.py",
}


def test_no_file_reaches_an_off_limits_module() -> None:
    reached = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in all_python()
        if str(path.relative_to(ROOT)) not in INTEROP
        for name in sorted(imports_of(path))
        if any(name == ban or name.startswith(ban + ".") for ban in BANNED)
    ]
    assert not reached, "\n".join(reached)


def test_torch_compile_is_called_by_comparisons_and_interop_tests_alone() -> None:
    allowed = {
        "src/dovetail/bench/worker.py",
        "src/dovetail/install/torch_names.py",  # replaces it
        "integration_tests/sweep_accuracy.py",  # both have a column for torch.compile
        "integration_tests/sweep_capture.py",
        *INTEROP,
    }
    callers = {
        str(path.relative_to(ROOT))
        for path in all_python()
        if path != Path(__file__)
        and "torch.compile" in imports_of(path)
        and not str(path.relative_to(ROOT)).startswith("integration_tests/benchmarks/")
    }
    assert callers <= allowed, callers - allowed


def test_the_ban_finds_an_import(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        "def f():\n    from torch._dynamo import optimize\n    torch._inductor.x\n"
        "    g(torch._refs.y[0].z(1).w)\n"
    )
    names = imports_of(planted)
    assert "torch._dynamo" in names and {"torch._inductor.x", "torch._refs.y"} <= names


def test_module_graph_inside_each_package_has_no_cycle() -> None:
    """Load-time imports only: an import inside a function is not an edge."""
    for package in ARROWS:
        base = ROOT / "packages" / package / "src"
        edges: dict[str, set[str]] = {}
        for path in sources(package):
            parts = path.relative_to(base).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            edges[name] = set()
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    edges[name].add(node.module)
                    edges[name].update(f"{node.module}.{a.name}" for a in node.names)
                elif isinstance(node, ast.Import):
                    edges[name].update(a.name for a in node.names)
        known = set(edges)
        # `from package import module` gives both the package and the module as names; a package's
        # own __init__ counts only when nothing more exact is meant.
        graph = {
            n: {
                t
                for t in ts & known
                if t != n and not any(o.startswith(t + ".") for o in ts & known)
            }
            for n, ts in edges.items()
        }
        try:
            tuple(TopologicalSorter(graph).static_order())
        except CycleError as cycle:
            pytest.fail(f"{package}: import cycle {' -> '.join(cycle.args[1])}")
