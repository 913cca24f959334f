"""`python -m dovetail.size`: how big each package is, and what importing it costs.

Lines are all lines of the installed sources, Python and native; tests are not counted. What lies
in `EXTENSIONS` is not core.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "dovetail_guards",
    "dovetail_prims",
    "dovetail_runtime",
    "dovetail_capture",
    "dovetail_autograd_aot",
    "dovetail_inductor",
    "dovetail",
)
# Folders and files of packages that are not core, and could be packages of their own.
EXTENSIONS = {
    "dovetail_capture": ("extensions",),
    "dovetail_autograd_aot": ("compiled_backward", "patterns"),
    "dovetail_inductor": ("graph_passes/complex_parts.py", "products"),
    "dovetail": ("bench",),
}
NATIVE = (".c", ".cpp", ".h")
KNOB = re.compile(r"DOVETAIL_[A-Z_]+")


@dataclass(frozen=True)
class PackageSize:
    """`import_ms` is what importing it adds to torch and to the packages before it in `PACKAGES`;
    `knobs` are the settings it reads from the environment."""

    name: str
    files: int
    python_lines: int
    native_lines: int
    extension_lines: int  # of both, in `EXTENSIONS`
    largest_file: tuple[int, str]
    largest_function: tuple[int, str]
    knobs: tuple[str, ...]
    import_ms: float


def _sources(folder: Path) -> list[Path]:
    """A package's own sources, and in a checkout the native ones beside `src`."""
    inside = [p for p in folder.rglob("*") if p.suffix in (".py", *NATIVE)]
    beside = folder.parent.parent / "csrc"
    return sorted(inside) + sorted(p for p in beside.glob("*") if p.suffix in NATIVE)


def _is_extension(name: str, folder: Path, path: Path) -> bool:
    return any(path.is_relative_to(folder / part) for part in EXTENSIONS.get(name, ()))


def _functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def _knobs(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and KNOB.fullmatch(node.value)
    }


def import_times(names: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds that importing each takes, in this order, in a process that has torch."""
    code = (
        "import json, sys, time, torch\n"
        "times = {}\n"
        "for name in sys.argv[1:]:\n"
        "    start = time.perf_counter()\n"
        "    __import__(name)\n"
        "    times[name] = (time.perf_counter() - start) * 1000\n"
        "print(json.dumps(times))"
    )
    command = [sys.executable, "-c", code, *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    times: dict[str, float] = json.loads(done.stdout)
    return times


def measure(name: str, import_ms: float) -> PackageSize:
    """The size of one installed package; its import time is taken apart."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not installed")
    folder = Path(spec.submodule_search_locations[0])
    lines = {p: len(p.read_text().splitlines()) for p in _sources(folder)}
    functions: list[tuple[int, str]] = []
    knobs: set[str] = set()
    for path in lines:
        if path.suffix == ".py":
            tree = ast.parse(path.read_text())
            functions += [(n, f"{path.stem}.{f}") for n, f in _functions(tree)]
            knobs |= _knobs(tree)
    return PackageSize(
        name=name,
        files=len(lines),
        python_lines=sum(n for p, n in lines.items() if p.suffix == ".py"),
        native_lines=sum(n for p, n in lines.items() if p.suffix != ".py"),
        extension_lines=sum(n for p, n in lines.items() if _is_extension(name, folder, p)),
        largest_file=max((n, p.name) for p, n in lines.items()),
        largest_function=max(functions),
        knobs=tuple(sorted(knobs)),
        import_ms=import_ms,
    )


def as_text(sizes: list[PackageSize]) -> str:
    """The report as a table, the settings below it."""
    lines = [
        f"{'package':<22}{'files':>6}{'python':>8}{'native':>8}{'core':>8}{'import':>9}  largest"
    ]
    for s in sizes:
        lines.append(
            f"{s.name:<22}{s.files:>6}{s.python_lines:>8}{s.native_lines:>8}"
            f"{s.python_lines + s.native_lines - s.extension_lines:>8}{s.import_ms:>6.0f} ms"
            f"  {s.largest_file[1]} {s.largest_file[0]}"
            f", {s.largest_function[1]} {s.largest_function[0]}"
        )
    python, native = sum(s.python_lines for s in sizes), sum(s.native_lines for s in sizes)
    core = python + native - sum(s.extension_lines for s in sizes)
    lines.append(f"{'all':<22}{sum(s.files for s in sizes):>6}{python:>8}{native:>8}{core:>8}")
    knobs = sorted({k for s in sizes for k in s.knobs})
    lines.append(f"{len(knobs)} settings: {', '.join(knobs)}")
    return "\n".join(lines)


if __name__ == "__main__":
    times = import_times(PACKAGES)
    print(as_text([measure(name, times[name]) for name in PACKAGES]))
