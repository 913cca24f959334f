"""DOVETAIL_DEBUG=DIR: a folder for each graph, with the text of every stage and drawings
(DOT, and SVG where Graphviz is installed)."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dovetail_inductor.loop_ir.loops import ExternCall
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_prims.artifact_log import ArtifactText
from dovetail_runtime import write_program
from dovetail_runtime.plan import Plan
from torch.fx import GraphModule

_PLACE = re.compile(r'File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)')
_NO_GRAPHVIZ = "Graphviz is not installed: diagrams are written as DOT, which it makes SVG of"


class FolderWriter(logging.Handler):
    """Writes each artifact into the folder of its graph, in order: `f_line7/03_guards.txt`. What is
    of no graph (breaks, recompilations) goes into `events.txt`."""

    def __init__(self, directory: Path | str) -> None:
        super().__init__()
        self.directory = Path(directory)
        self._numbers: dict[str, itertools.count[int]] = {}
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; an error of the file system is reported as logging does."""
        try:
            self._write(record)  # (under the handler's lock)
        except Exception:
            self.handleError(record)

    def _write(self, record: logging.LogRecord) -> None:
        told = getattr(record, "told", None)
        place = _PLACE.match(told.place) if isinstance(told, ArtifactText) else None
        self.directory.mkdir(parents=True, exist_ok=True)
        if not isinstance(told, ArtifactText) or place is None:
            with (self.directory / "events.txt").open("a") as events:
                events.write(f"{record.name}: {record.getMessage()}\n")
            return
        function = re.sub(r"\W+", "_", place["function"]).strip("_")
        name = f"{function}_line{place['line']}"
        number = next(self._numbers.setdefault(name, itertools.count()))
        target = self.directory / name / f"{number:02}_{told.artifact}"
        target.parent.mkdir(exist_ok=True)
        if isinstance(told.value, Plan):
            write_program(told.value, target)  # (a folder: constants lie beside the program)
            return
        file = target.with_suffix(f".{told.suffix}")
        file.write_text(f"{told.text.rstrip()}\n")
        if told.suffix == "dot" and not draw(file) and not self._told:
            self._told = True
            logging.getLogger("dovetail.debug").warning(_NO_GRAPHVIZ)


def graph_as_dot(gm: GraphModule) -> str:
    """An FX graph: a box for each node, an arrow for each use."""
    nodes = [(node.name, f"{node.name}\\n{node.op}") for node in gm.graph.nodes]
    edges = [(used.name, node.name) for node in gm.graph.nodes for used in node.all_input_nodes]
    return _dot(nodes, edges)


def kernels_as_dot(graph: KernelGraph) -> str:
    """The steps of a kernel graph: an arrow for each buffer that one writes and another reads."""
    nodes = [(name, name) for name in graph.inputs if name is not None]
    writer = {name: name for name, _ in nodes}
    edges: list[tuple[str, str]] = []
    for number, step in enumerate(graph.steps):
        name = f"step{number}"
        (header, *_) = step.as_text().splitlines() or [name]
        nodes.append((name, header.strip()))
        edges += [(writer[read], name) for read in sorted(step.reads()) if read in writer]
        written = step.outputs if isinstance(step, ExternCall) else step.writes()
        writer |= dict.fromkeys(filter(None, written), name)
    return _dot(nodes, edges)


def _dot(nodes: Iterable[tuple[str, str]], edges: Iterable[tuple[str, str]]) -> str:
    lines = ["digraph {", "  node [shape=box, fontname=monospace];"]
    lines += [f"  {_quoted(name)} [label={_quoted(label)}];" for name, label in nodes]
    lines += [f"  {_quoted(a)} -> {_quoted(b)};" for a, b in edges]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def draw(dot: Path) -> bool:
    """Write an SVG file beside a DOT file; False where Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        return False
    target = dot.with_suffix(".svg")
    command = [program, "-Tsvg", str(dot), "-o", str(target)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
