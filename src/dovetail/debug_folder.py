"""DOVETAIL_DEBUG=DIR: a folder for each graph, with the text of every stage."""

from __future__ import annotations

import itertools
import logging
import re
from pathlib import Path

from dovetail_prims.artifact_log import ArtifactText
from dovetail_runtime import write_program
from dovetail_runtime.plan import Plan

from dovetail.diagrams import draw

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
