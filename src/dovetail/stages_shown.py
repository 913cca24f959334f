"""What can be shown of the stages behind capture: loops, kernels, plans (see `artifact_log`)."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from dovetail_inductor.kernel_names import head_of
from dovetail_inductor.loop_ir.loops import ExternCall, LoopGraph
from dovetail_inductor.pipeline import PassLog
from dovetail_inductor.scheduler.kernels import KernelGraph
from dovetail_prims.artifact_log import ArtifactText, is_wanted, tell
from dovetail_runtime import as_python, write_program
from dovetail_runtime.plan import CppKernel, Plan
from torch.fx import GraphModule

# By the pass that gives it.
_OF_PASS: Mapping[str, tuple[str, ...]] = {
    "lower": ("ir_pre_fusion",),
    "fuse": ("ir_post_fusion", "fusion"),
    "combine": ("schedule",),
}
_SHOWN = ("post_grad_graphs", "graph_diagram", "passes", "output_code", "kernel_code")


def is_anything_shown() -> bool:
    """Whether somebody asks for any of it."""
    of_passes = (name for names in _OF_PASS.values() for name in names)
    return any(map(is_wanted, (*_SHOWN, *of_passes)))


def passes_shown(gm: GraphModule, place: str) -> PassLog | None:
    """Log a functional graph, and give what logs the compiler's passes over it; None if nothing is
    asked for."""
    tell("post_grad_graphs", place, lambda: str(gm.code.strip()), suffix="py")
    tell("graph_diagram", place, lambda: graph_as_dot(gm), suffix="dot")
    if not is_anything_shown():
        return None

    previous = ""

    def observe(name: str, result: object) -> None:
        nonlocal previous
        if isinstance(result, LoopGraph | KernelGraph):
            if is_wanted("passes"):
                text = result.as_text()
                shown = "(unchanged)" if text == previous else text
                tell("passes", place, lambda: f"after {name}:\n{shown}")
                previous = text
            for artifact in _OF_PASS.get(name, ()):
                tell(artifact, place, result.as_text, value=result)
        if name == "combine" and isinstance(result, KernelGraph):
            tell("graph_diagram", place, partial(kernels_as_dot, result), suffix="dot")

    return PassLog(observe=observe)


def tell_of_plan(plan: Plan, place: str) -> None:
    """Log a plan as a program, and its kernels."""
    if is_wanted("output_code"):
        tell("output_code", place, lambda: as_python(plan), suffix="py", value=plan)
    if not is_wanted("kernel_code"):
        return
    for kernel in plan.kernels:
        suffix = "cpp" if isinstance(kernel, CppKernel) else "py"
        text = head_of(kernel, plan) + kernel.source
        tell("kernel_code", place, partial(str, text), suffix=suffix)


def tell_of_cuda_graph(place: str, what: str) -> None:
    """Log that a graph was recorded, or why it is not."""
    tell("cudagraphs", place, lambda: what)


# --- DOVETAIL_DEBUG=DIR: a folder for each graph, with every stage's text and drawings ------------

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
