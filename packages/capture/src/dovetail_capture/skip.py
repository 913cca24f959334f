"""Which frames are not captured: the predicate of the skip list."""

from __future__ import annotations

import functools
import importlib.util
import os
from types import CodeType, FunctionType
from typing import Any

import torch

_OURS = (
    "dovetail",
    "dovetail_autograd_aot",
    "dovetail_capture",
    "dovetail_guards",
    "dovetail_inductor",
    "dovetail_prims",
    "dovetail_runtime",
)

# What shows and logs: Python runs it where a graph breaks (a `print`, a progress bar), and there is
# nothing to compile in it.
_SHOWING = (
    "tqdm", "rich", "loguru", "colorama", "IPython", "ipykernel", "_pytest", "pluggy", "coverage",
    "debugpy", "pydevd", "tensorboard", "wandb",
)  # fmt: skip

_OTHER_COMPILER = os.path.join(os.path.dirname(torch.__file__), "_dynamo") + os.sep


# Torch's modules that are made of the user's: where a graph breaks inside of one, what surrounds
# the break is worth a graph of its own.
_MODULES = os.path.join(os.path.dirname(torch.__file__), "nn", "modules") + os.sep
_CAPTURED = (
    *(f"{_MODULES}{name}.py" for name in ("container", "transformer")),
    os.path.join(os.path.dirname(__file__), "extensions", "optimizers", "step_parts.py"),
)


# What the standard library's `typing` will be.
_TYPING = f"{os.sep}site-packages{os.sep}typing_extensions.py"


def module_of(obj: Any) -> str:
    """The module that a class or function says it is from: it may say none."""
    name = getattr(obj, "__module__", None)
    return name if isinstance(name, str) else ""


@functools.cache
def skipped_directories() -> tuple[str, ...]:
    """Directories whose code is run, not captured: torch, Triton, NumPy, the standard library, what
    shows and logs, ours."""
    found = [os.path.dirname(torch.__file__), os.path.dirname(os.__file__)]
    plain = tuple(directory.rstrip(os.sep) + os.sep for directory in found)
    return plain + _directories((*_OURS, *_SHOWING, "triton", "numpy"))


@functools.cache
def our_directories() -> tuple[str, ...]:
    """Directories of this compiler's packages."""
    return _directories(_OURS)


def _directories(packages: tuple[str, ...]) -> tuple[str, ...]:
    specs = map(importlib.util.find_spec, packages)
    found = [d for s in specs if s is not None for d in s.submodule_search_locations or ()]
    return tuple(directory.rstrip(os.sep) + os.sep for directory in found)


@functools.lru_cache(maxsize=4096)
def is_skipped_file(filename: str) -> bool:
    """Is a frame of code from this file run plainly? (Its callees are still looked at.)"""
    if filename.startswith("<frozen "):
        return True
    if filename in _CAPTURED:
        return False
    if filename.endswith(_TYPING):
        return True
    third_party = f"{os.sep}site-packages{os.sep}"
    for directory in skipped_directories():
        if filename.startswith(directory):
            # site-packages lies inside the standard library's directory
            inner = filename[len(directory) - 1 :]
            return third_party not in inner
    return False


def is_skipped(code: CodeType) -> bool:
    """Is a frame of this code run plainly?"""
    return is_skipped_file(code.co_filename)


def is_generated_for_skipped(code: CodeType, func: FunctionType) -> bool:
    """Is this text that a skipped module had compiled: a dataclass's `__init__`, a named tuple's
    `__new__`? It carries no file of its own; the module that it is in tells."""
    if not code.co_filename.startswith("<"):
        return False
    file, name = func.__globals__.get("__file__"), func.__globals__.get("__name__")
    if isinstance(file, str):
        return is_skipped_file(file)
    return isinstance(name, str) and name.startswith("namedtuple_")


_NOT_CAPTURED = (
    "<module>", "__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__",
)  # fmt: skip
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
# (That of `torch.utils.checkpoint.checkpoint` itself is a wrapper of the other compiler.)
_TORCH = os.path.dirname(torch.__file__)
_CHECKPOINT = os.path.join(_TORCH, "utils", "checkpoint.py")
_INITIALISES = torch.nn.modules.lazy.LazyModuleMixin._infer_parameters.__code__
_COMPOSABLE = os.path.join(_TORCH, "distributed", "_composable", "checkpoint_activation.py")


def runs_with_capture_off(code: CodeType) -> bool:
    """Wrappers of PyTorch's own compiler (`torch.compiler.disable`, `torch.compile`), what loads
    modules, whose bodies run once, and what tensor subclasses do below autograd: what they call is
    not ours to capture. So is what eager's checkpoint calls: the function is computed again from
    outside of the compiled one, and has to save the very tensors that it saved before. And so is
    the hook that gives lazy modules their parameters."""
    if code.co_filename == _IMPORT_SYSTEM or code.co_name in _NOT_CAPTURED:
        return True
    if code.co_filename == _CHECKPOINT and code.co_name == "_checkpoint_impl":
        return True
    if code is _INITIALISES:
        return True
    return code.co_filename.startswith(_OTHER_COMPILER)


def opens_checkpoint(code: CodeType) -> bool:
    """Is this the hook of a module that lets its forward run inside of an eager checkpoint?"""
    return code.co_filename == _COMPOSABLE and code.co_name == "forward_pre_hook"
