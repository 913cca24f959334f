"""Graphs and fused kernels as drawings: DOT, and SVG where Graphviz is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from dovetail_inductor.loop_ir.loops import ExternCall
from dovetail_inductor.scheduler.kernels import KernelGraph
from torch.fx import GraphModule


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
