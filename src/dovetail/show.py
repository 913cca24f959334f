"""`dovetail show FILE.py:FUNCTION`: the text of each stage for one function."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from dovetail_prims.artifact_log import ROOT, ArtifactText, logger_of
from dovetail_prims.boundary_files import BoundaryFileError, save_boundary

import dovetail

# The stages in the order of compiling, each with the artifacts of `dovetail.logs` that show it.
STAGES: Mapping[str, tuple[str, ...]] = {
    "capture": ("graph_code", "guards"),
    "bytecode": ("bytecode",),
    "joint": ("aot_joint_graph",),
    "autograd": ("aot_graphs",),
    "loops": ("ir_pre_fusion",),
    "passes": ("passes",),
    "kernels": ("schedule",),
    "plan": ("output_code",),
    "code": ("kernel_code",),
}
# What is shown if nothing is asked for: the boundaries between packages.
BOUNDARIES = ("capture", "autograd", "loops", "kernels", "plan")


@dataclass(frozen=True)
class Shown:
    """One text of a stage, with where in the program it is from."""

    stage: str
    text: ArtifactText

    def as_text(self) -> str:
        """The text under a heading."""
        heading = f"==== {self.stage}: {self.text.artifact} ===="
        return f"{heading}\n{self.text.text.strip()}\n"


def show(
    target: Any,
    inputs: Sequence[Any],
    *,
    stages: Sequence[str] = BOUNDARIES,
    train: bool = False,
    folder: Path | None = None,
) -> list[Shown]:
    """Compile `target` for `inputs`, run it once, and give the texts of these stages.

    Args:
        target: a function or module.
        inputs: its positional arguments.
        stages: names of `STAGES`.
        train: a backward of the results' sum is run, too. If no input requires a gradient, all of
            floating point do.
        folder: the boundary values of these stages are written there, `dovetail.stages` goes on
            from them.

    Raises KeyError for an unknown stage, BoundaryFileError for a value that no file can hold, and
    whatever compiling or running raises.
    """
    stage_of = {artifact: stage for stage in stages for artifact in STAGES[stage]}
    options = {"on_error": "raise"}
    if train and not any(isinstance(v, torch.Tensor) and v.requires_grad for v in inputs):
        inputs = [_differentiable(value) for value in inputs]
    with _collected(stage_of, folder) as texts, torch.set_grad_enabled(train):
        results = dovetail.compile(target, options=options, isolate_recompiles=True)(*inputs)
        if train:
            torch.autograd.backward(_sum(results))
    shown = [Shown(stage_of[text.artifact], text) for text in texts]
    order = {stage: number for number, stage in enumerate(STAGES)}
    return sorted(shown, key=lambda each: order[each.stage])


def load_function(path: str) -> tuple[Any, ModuleType]:
    """`FILE.py:FUNCTION`: the function, and the module that the file was loaded as.

    Raises ValueError, with the reason, for what is not such a path.
    """
    file, _, name = path.rpartition(":")
    if not file or not Path(file).is_file():
        raise ValueError(f"{path!r} is not FILE.py:FUNCTION: there is no file {file!r}")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file!r} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(file).resolve().parent))
    spec.loader.exec_module(module)
    try:
        return getattr(module, name), module
    except AttributeError:
        raise ValueError(f"{file} has no {name!r}") from None


def read_inputs(expression: str | None, module: ModuleType) -> tuple[Any, ...]:
    """The arguments that `expression` gives in a module (`torch` is known), or, without one, the
    module's `example_inputs`.

    Raises ValueError if there is neither.
    """
    if expression is not None:
        given = eval(f"({expression},)", {"torch": torch, **vars(module)})
        return tuple(given)
    given = getattr(module, "example_inputs", None)
    if given is None:
        raise ValueError(
            "name the arguments: --inputs 'torch.randn(8, 8)', or `example_inputs` in the file"
        )
    return tuple(given() if callable(given) else given)


class _Collector(logging.Handler):
    def __init__(self, stage_of: Mapping[str, str], folder: Path | None) -> None:
        super().__init__()
        self.texts: list[ArtifactText] = []
        self.stage_of = stage_of
        self.folder = folder
        self.refused: BoundaryFileError | None = None  # the first value that cannot be written

    def emit(self, record: logging.LogRecord) -> None:
        told = getattr(record, "told", None)
        if not isinstance(told, ArtifactText):
            return
        self.texts.append(told)
        if self.folder is not None and told.value is not None:
            # (Now: later stages assume more of symbolic sizes.)
            name = f"{len(self.texts):02}_{self.stage_of[told.artifact]}.boundary"
            try:
                save_boundary(told.value, self.folder / name)
            except BoundaryFileError as error:  # (no error of the program that is compiled)
                self.refused = self.refused or error


@contextmanager
def _collected(
    artifacts: Mapping[str, str], folder: Path | None = None
) -> Iterator[list[ArtifactText]]:
    """The texts of these artifacts that come up in the block; their values in a folder."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    collector = _Collector(artifacts, folder)
    loggers = [logger_of(artifact) for artifact in artifacts]
    levels = [logger.level for logger in loggers]
    root = logging.getLogger(ROOT)
    propagate, root.propagate = root.propagate, False
    root.addHandler(collector)
    for logger in loggers:
        logger.setLevel(logging.INFO)
    try:
        yield collector.texts
        if collector.refused is not None:
            raise collector.refused
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        root.removeHandler(collector)
        root.propagate = propagate


def _differentiable(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if is_float else value


def _sum(results: Any) -> torch.Tensor:
    leaves = torch.utils._pytree.tree_leaves(results)
    sums = [v.sum() for v in leaves if isinstance(v, torch.Tensor) and v.requires_grad]
    if not sums:
        raise ValueError("no result requires a gradient")
    return torch.stack(sums).sum()
