"""Loads `_autograd_nodes` and refuses one that was built for another torch."""

from __future__ import annotations

import importlib
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch


class NativeMismatch(ImportError):
    """The native part is absent, or was built against another torch."""


def rebuild_command() -> str:
    """The shell command that builds the native part for this Python and torch."""
    root = Path(__file__).resolve().parents[2]
    if (root / "setup.py").exists():
        return f"cd {root} && python setup.py build_ext --inplace --force"
    return "pip install --no-build-isolation --force-reinstall --no-deps dovetail-autograd-aot"


@lru_cache(maxsize=1)
def nodes_module() -> ModuleType:
    """The native module, checked against the running torch."""
    try:
        module = importlib.import_module("dovetail_autograd_aot._autograd_nodes")
    except ImportError as error:
        raise NativeMismatch(
            f"the native part cannot be loaded beside torch {torch.__version__} ({error}). "
            f"Build it with: {rebuild_command()}"
        ) from error
    if module.TORCH_VERSION != torch.__version__:
        raise NativeMismatch(
            f"the native part was built against torch {module.TORCH_VERSION}, this is torch "
            f"{torch.__version__}. Rebuild it with: {rebuild_command()}"
        )
    return module
