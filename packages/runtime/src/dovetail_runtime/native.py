"""Loads `_executor` and refuses one that was built for another torch."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from dovetail_runtime.knobs import Knobs

# Changes with the arguments and tables that the native executor takes; _executor.cpp has it, too.
INTERFACE = 7


class NativeMismatch(ImportError):
    """The native executor is absent, or was built against another torch."""


def rebuild_command() -> str:
    """The shell command that builds the native executor for this Python and torch."""
    package = Path(__file__).resolve().parent
    if (package.parent.parent / "setup.py").exists():
        return f"cd {package.parent.parent} && python setup.py build_ext --inplace --force"
    return "pip install --no-build-isolation --force-reinstall --no-deps dovetail-runtime"


@lru_cache(maxsize=1)
def executor_module() -> ModuleType:
    """The native module, checked against the running torch."""
    try:
        module = importlib.import_module("dovetail_runtime._executor")
    except ImportError as error:
        raise NativeMismatch(
            f"the native executor cannot be loaded beside torch {torch.__version__} ({error}). "
            f"Build it with: {rebuild_command()}"
        ) from error
    check_module(module)
    knobs = Knobs.from_environment()
    module.set_slab_limit(knobs.slab_cache_bytes)
    module.allow_direct_products(knobs.direct_products)
    return module


def release_idle_memory() -> None:
    """Free the memory that CPU plans keep between calls; the next call takes fresh memory."""
    executor_module().release_idle_slabs()


def check_module(module: ModuleType) -> None:
    """Raise `NativeMismatch` unless `module` belongs to the running torch."""
    if module.torch_version != torch.__version__:
        raise NativeMismatch(
            f"the native executor was built against torch {module.torch_version}, "
            f"this is torch {torch.__version__}. Rebuild it with: {rebuild_command()}"
        )
    if getattr(module, "interface", 1) != INTERFACE:
        raise NativeMismatch(
            "the native executor was built from other sources than this package's. Rebuild it "
            f"with: {rebuild_command()}"
        )
    if module.probe(torch.empty(3, 5)) != (15, 3):
        raise NativeMismatch(
            f"torch {torch.__version__} lays out its Python tensors in a way that the native "
            f"executor does not know. Rebuild it with: {rebuild_command()}"
        )
