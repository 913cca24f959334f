"""The rooms of a package: how many floors their imports have, and that none runs back up.

A room is a folder of a package, or a module that lies beside the folders. The sources are read, not
imported, so that an import for types alone and one within a function count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from dovetail.size import EXTENSIONS

ROOT = Path(__file__).parent.parent

# Of each package, or folder of one, that is held to it: the most floors that its rooms may have.
MOST_FLOORS = {"autograd_aot": 7, "capture": 10, "capture/interpreter": 12}

# The files that load extensions: the rest of the core imports none of them.
LOADS_EXTENSIONS = ("__init__.py", "pipeline.py")

Rooms = Mapping[str, frozenset[str]]  # of each room, the rooms that it imports


def room_of(path: Path, top: Path) -> str:
    return path.relative_to(top).with_suffix("").parts[0]


def imported_paths(path: Path, top: Path) -> set[Path]:
    """The files below the folder `top` which a file imports, wherever the import is."""
    found: set[Path] = set()
    sources = next(folder for folder in top.parents if folder.name == "src")
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(sources).parts[: -node.level]
                base = ".".join((*package, *filter(None, [node.module])))
            names = [f"{base}.{alias.name}" for alias in node.names] + [base]
        for name in names:
            target = sources.joinpath(*name.split("."))
            if top in target.parents:
                found |= {
                    p for p in (target.with_suffix(".py"), target / "__init__.py") if p.exists()
                }
    return found


@cache
def rooms(folder: str) -> Rooms:
    package, *within = folder.split("/")
    top = (ROOT / "packages" / package / "src" / f"dovetail_{package}").joinpath(*within)
    found: dict[str, set[str]] = {}
    for path in sorted(top.rglob("*.py")):
        room = room_of(path, top)
        below = {room_of(other, top) for other in imported_paths(path, top)}
        found.setdefault(room, set()).update(below - {room})
    return {room: frozenset(below) for room, below in found.items() if room != "__init__"}


def floors(of: Rooms) -> list[list[str]]:
    """The rooms of each floor: on the first those that import none, and so on."""
    height: dict[str, int] = {}
    for room in TopologicalSorter(of).static_order():
        height[room] = max((height[below] + 1 for below in of[room]), default=0)
    return [
        sorted(room for room in of if height[room] == floor)
        for floor in range(max(height.values()) + 1)
    ]


@pytest.mark.parametrize("folder", MOST_FLOORS)
def test_imports_between_rooms_run_down(folder: str) -> None:
    try:
        storeys = floors(rooms(folder))
    except CycleError as error:
        pytest.fail(f"imports run in a circle: {' -> '.join(reversed(error.args[1]))}")
    assert len(storeys) <= MOST_FLOORS[folder], storeys


@pytest.mark.parametrize("package", [p.name for p in sorted((ROOT / "packages").iterdir())])
def test_the_core_imports_no_extension(package: str) -> None:
    top = ROOT / "packages" / package / "src" / f"dovetail_{package}"
    extensions = [top / part for part in EXTENSIONS.get(top.name, ())]
    loading = [top / name for name in LOADS_EXTENSIONS]

    def is_extension(path: Path) -> bool:
        return any(path.is_relative_to(part) for part in extensions)

    for path in sorted(top.rglob("*.py")):
        if not is_extension(path) and path not in loading:
            found = [other for other in imported_paths(path, top) if is_extension(other)]
            assert not found, f"{path.relative_to(top)} imports {found}"


@pytest.mark.parametrize("package", [folder for folder in MOST_FLOORS if "/" not in folder])
def test_no_two_files_have_one_name(package: str) -> None:
    names = [p.name for p in (ROOT / "packages" / package / "src").rglob("*.py")]
    assert not {n for n in names if names.count(n) > 1 and n != "__init__.py"}


def test_floors_are_counted() -> None:
    of = {"a": frozenset[str](), "b": frozenset({"a"}), "c": frozenset({"a", "b"})}
    assert floors(of) == [["a"], ["b"], ["c"]]
    with pytest.raises(CycleError):
        floors({**of, "a": frozenset({"c"})})
