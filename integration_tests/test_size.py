"""The size report, the limit on the size of a file, and where settings are read."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

from dovetail.size import EXTENSIONS, PACKAGES, as_text, measure

MOST_LINES = 125_525
MOST_LINES_OF_CORE = 113_536


def test_no_file_is_past_the_limit() -> None:
    sizes = [measure(name, import_ms=0.0) for name in PACKAGES]
    for size in sizes:
        assert size.largest_file[0] <= 800, size
        assert size.python_lines > 500, size
    text = as_text(sizes)
    assert all(name in text for name in PACKAGES) and "DOVETAIL_CACHE_DIR" in text


def test_the_source_grows_no_more() -> None:
    """The limits may only shrink."""
    sizes = [measure(name, import_ms=0.0) for name in PACKAGES]
    lines = sum(size.python_lines + size.native_lines for size in sizes)
    assert lines <= MOST_LINES
    assert lines - sum(size.extension_lines for size in sizes) <= MOST_LINES_OF_CORE


def test_extensions_are_there() -> None:
    for name, parts in EXTENSIONS.items():
        (folder,) = find_spec(name).submodule_search_locations  # type: ignore[union-attr, misc]
        assert not [part for part in parts if not Path(folder, part).exists()], name
        assert measure(name, import_ms=0.0).extension_lines > 0


def test_settings_are_read_in_knobs_alone() -> None:
    """Elsewhere the environment may be passed on whole to a child process, or set, but not read."""
    for path in sorted(Path(__file__).parent.parent.glob("packages/*/src/**/*.py")):
        if path.name == "knobs.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("getenv", "get"):
                assert ast.unparse(node) not in ("os.getenv", "os.environ.get"), path
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                of = node.value
                read = isinstance(of, ast.Attribute) and ast.unparse(of) == "os.environ"
                assert not read, path
