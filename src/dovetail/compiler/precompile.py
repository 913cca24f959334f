"""`torch.compiler.precompile`'s names. Compiled functions cannot be written to files yet: what is
called here refuses, and says what to do instead."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["PrecompileError", "capture", "load", "load_compiled_function"]

_INSTEAD = (
    "compile again in the new process: generated code comes from the cache on disk "
    "(dovetail.compiler.save_cache_artifacts takes it to another machine)"
)


class PrecompileError(RuntimeError):
    """A function cannot be compiled for a file, or not be loaded from one."""


def _refuse(what: str) -> NoReturn:
    raise PrecompileError(f"{what} is not there yet; {_INSTEAD}")


def capture(
    fn: Callable[..., object],
    /,
    *,
    artifact_path: str | os.PathLike[str],
    cache_path: str | os.PathLike[str],
    tracer: Any = None,
    backend: str = "inductor",
) -> NoReturn:
    """Raises PrecompileError: compiled functions cannot be written to files yet."""
    _refuse("precompile.capture")


def load(artifact_path: str | os.PathLike[str], cache_path: str | os.PathLike[str]) -> NoReturn:
    """Raises PrecompileError: compiled functions cannot be read from files yet."""
    _refuse("precompile.load")


def load_compiled_function(
    file: io.IOBase,
    *,
    f_globals: dict[str, object] | None = None,
    external_data: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Raises PrecompileError: compiled functions cannot be read from files yet."""
    _refuse("load_compiled_function")
