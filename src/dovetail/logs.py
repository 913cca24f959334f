"""Which logs are shown: DOVETAIL_LOGS, `set_logs`, and PyTorch's own TORCH_LOGS.

Each name is a logger `dovetail.<name>` of `logging` (see `dovetail_prims.artifact_log`); what is
switched here is their levels. Records are printed on stderr unless the program has handlers of its
own.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from dovetail_prims.artifact_log import ROOT, logger_of

from dovetail.options import unknown_name
from dovetail.stages_shown import FolderWriter

# Components say what they do at levels; with DEBUG they show their artifacts, too.
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "dynamo": ("graph_breaks", "recompiles", "guards", "graph", "graph_sizes"),
    "aot": ("aot_joint_graph", "aot_graphs"),
    "inductor": ("post_grad_graphs", "ir_post_fusion", "perf_hints", "cudagraphs"),
    "autograd": ("compiled_autograd",),
    "dynamic": (),
}
ARTIFACTS: Mapping[str, str] = {
    "graph_breaks": "why a graph ends before its function does",
    "recompiles": "why nothing compiled fits a call",
    "recompiles_verbose": "the same, of every compiled version",
    "guards": "what is checked before compiled code runs",
    "graph": "captured graphs, a node a line",
    "graph_code": "captured graphs as Python",
    "graph_sizes": "the sizes of captured graphs' values",
    "bytecode": "a function's bytecode, and what replaces it",
    "pre_grad_graphs": "the graph that the compiler is given",
    "aot_joint_graph": "forward and backward in one graph",
    "aot_graphs": "forward and backward, cut in two",
    "post_grad_graphs": "the functional graph that is lowered to loops",
    "ir_pre_fusion": "loops before fusion",
    "ir_post_fusion": "kernels after fusion",
    "passes": "loops and kernels after each pass of the code generator, where it changed them",
    "fusion": "which loops became one kernel",
    "schedule": "kernels and library calls in the order of running",
    "graph_diagram": "the functional graph and its kernels as drawings (DOT)",
    "output_code": "the plan as a Python program",
    "kernel_code": "each kernel's source",
    "perf_hints": "what makes compiled code slower than it could be",
    "cudagraphs": "what is recorded as a CUDA graph, and what is not, and why",
    "autotuning": "what was measured and chosen, with each candidate's time",
    "compiled_autograd": "backwards that are captured as one graph",
}
# PyTorch's names for what has another name here.
_OF_TORCH = {"verbose_guards": "guards", "graph_code_verbose": "graph_code"}


class _Printer(logging.StreamHandler[Any]):
    """Prints what was asked for by name on stderr, unless the program handles records itself."""

    names: frozenset[str] = frozenset()

    def emit(self, record: logging.LogRecord) -> None:
        asked = record.name.removeprefix(f"{ROOT}.") in self.names
        if asked and not logging.root.handlers:
            self.stream = sys.stderr  # (which may have been replaced)
            super().emit(record)


def set_logs(
    *, all: int | None = None, modules: Mapping[str, int | bool] | None = None, **names: Any
) -> None:
    """Show these logs, and no others: `set_logs(graph_breaks=True, inductor=logging.DEBUG)`.

    Args:
        all: a level for all components.
        modules: levels of other loggers, by their names.
        names: artifacts (`ARTIFACTS`) with True or False, components (`COMPONENTS`) with a level.

    Raises:
        ValueError: an unknown name; the message names the near ones.
    """
    for name, value in names.items():
        if name in COMPONENTS and (value is None or type(value) is int):
            continue
        if name in ARTIFACTS and isinstance(value, bool):
            continue
        if name in COMPONENTS or name in ARTIFACTS:
            kind = "a level of logging" if name in COMPONENTS else "True or False"
            raise ValueError(f"log {name!r} takes {kind}, got {value!r}")
        raise ValueError(unknown_name("log", name, [*COMPONENTS, *ARTIFACTS]))
    levels = {} if all is None else dict.fromkeys(COMPONENTS, all)
    levels |= {name: names[name] for name in COMPONENTS if names.get(name) is not None}
    _apply(levels, [name for name in ARTIFACTS if names.get(name)])
    for module, level in (modules or {}).items():
        logging.getLogger(module).setLevel(logging.DEBUG if level is True else int(level))


def set_logs_by_text(text: str) -> None:
    """What DOVETAIL_LOGS says: names with commas between, `+name` for more of a component, `-name`
    for less of one or for an artifact that is not to be shown; `all` are the components.

    Raises ValueError for an unknown name, naming the near ones.
    """
    levels: dict[str, int] = {}
    shown: dict[str, bool] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name = part.lstrip("+-")
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[0], logging.INFO)
        if name == "all":
            levels |= dict.fromkeys(COMPONENTS, level)
        elif name in COMPONENTS:
            levels[name] = level
        elif name in ARTIFACTS:
            shown[name] = part[0] != "-"
        else:
            raise ValueError(unknown_name("log", name, ["all", *COMPONENTS, *ARTIFACTS]))
    _apply(levels, [n for n, on in shown.items() if on], [n for n, on in shown.items() if not on])


def apply_torch_logs() -> None:
    """Show what `TORCH_LOGS` or `torch._logging.set_logs` asks for; names that nothing here goes by
    are passed over."""
    internal = torch._logging._internal
    levels = internal.log_state.log_qname_to_level
    found: dict[str, int] = {}
    for name in COMPONENTS:
        # (Names that several components have come after their own.)
        (own, *_) = internal.log_registry.log_alias_to_log_qnames[name]
        level = levels.get(own, levels.get("torch"))
        if level is not None:
            found[name] = int(level)
    asked = (_OF_TORCH.get(name, name) for name in internal.log_state.artifact_names)
    _apply(found, [name for name in asked if name in ARTIFACTS])


def write_torch_debug() -> None:
    """Write what TORCH_COMPILE_DEBUG=1 asks for, into the folder that it goes to, if it is set."""
    if os.environ.get("TORCH_COMPILE_DEBUG") == "1" and not os.environ.get("DOVETAIL_DEBUG"):
        above = os.environ.get("TORCH_COMPILE_DEBUG_DIR", os.getcwd())
        _start_writing(Path(above) / "torch_compile_debug" / f"dovetail_{os.getpid()}")


def torch_asks() -> bool:
    """Has the program, or TORCH_LOGS, asked PyTorch for logs?"""
    state = torch._logging._internal.log_state
    return bool(state.log_qname_to_level or state.artifact_names)


def set_torch_logs(set_logs: Callable[..., None], /, **names: Any) -> None:
    """`torch._logging.set_logs`, which is given, for Dovetail, too."""
    set_logs(**names)
    apply_torch_logs()


def _apply(levels: Mapping[str, int], shown: Iterable[str], hidden: Iterable[str] = ()) -> None:
    asked = {*shown}
    for name, level in levels.items():
        if level <= logging.DEBUG:
            asked.update(COMPONENTS[name])
    if "dynamo" in levels:
        levels = {"dynamic": levels["dynamo"], **levels}  # which it is a part of
    asked.difference_update(hidden)
    root = logging.getLogger(ROOT)
    printers = [handler for handler in root.handlers if isinstance(handler, _Printer)]
    if (levels or asked) and not printers:
        printers = [_Printer()]
        printers[0].setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(printers[0])
    for printer in printers:
        printer.names = frozenset(asked.union(levels))
    if any(isinstance(handler, FolderWriter) for handler in root.handlers):
        asked.update(ARTIFACTS)  # which are written, whatever is printed
    for name in COMPONENTS:
        logger_of(name).setLevel(levels.get(name, logging.NOTSET))
    for name in ARTIFACTS:
        logger_of(name).setLevel(logging.INFO if name in asked else logging.NOTSET)


@contextmanager
def written_to(directory: Path | str) -> Iterator[None]:
    """In the block, each graph has a folder in `directory`, with every stage's text: what was
    captured, guards, forward and backward, loops, kernels, the plan as a program that runs, and
    drawings."""
    writer = _start_writing(directory)
    try:
        yield
    finally:
        logging.getLogger(ROOT).removeHandler(writer)
        for name in ARTIFACTS:
            logger_of(name).setLevel(logging.NOTSET)


def _start_writing(directory: Path | str) -> FolderWriter:
    writer = FolderWriter(directory)
    logging.getLogger(ROOT).addHandler(writer)
    for name in ARTIFACTS:
        logger_of(name).setLevel(logging.INFO)
    return writer


def read_environment() -> None:
    """Apply DOVETAIL_LOGS and DOVETAIL_DEBUG, if they are set."""
    if os.environ.get("DOVETAIL_DEBUG"):
        _start_writing(os.environ["DOVETAIL_DEBUG"])
    text = os.environ.get("DOVETAIL_LOGS", "")
    if text:
        set_logs_by_text(text)
