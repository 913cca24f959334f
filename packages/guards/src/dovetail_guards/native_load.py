"""Loads the extension module, and proves on load that it sees torch's objects as they are."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

TABLES = 5
"""The form of the tables that `native` gives to the extension (`kTables` in csrc/module.cpp)."""


def rebuild_command() -> str:
    """The shell command that builds the extension for the running Python and torch."""
    package = Path(__file__).resolve().parents[2]
    if (package / "setup.py").exists():
        return f"cd {package} && {sys.executable} setup.py build_ext --inplace"
    return (
        f"{sys.executable} -m pip install --force-reinstall --no-deps --no-build-isolation "
        "dovetail-guards"
    )


def load_native() -> Any:
    """`dovetail_guards._native`, checked; an ImportError says how to build it."""
    try:
        _native = import_module("dovetail_guards._native")
    except ImportError as error:
        raise ImportError(
            f"dovetail_guards' native part cannot be loaded ({error}). "
            f"Build it for this Python and torch: {rebuild_command()}"
        ) from error
    check_version(_native.TORCH_VERSION, torch.__version__)
    check_tables(getattr(_native, "TABLES", 1))
    prove_layout(_native)
    return _native


def check_version(built: str, running: str) -> None:
    """Refuse an extension that was built against another torch."""
    if built != running:
        raise ImportError(
            f"dovetail_guards' native part was built against torch {built}, but torch {running} "
            f"is running. Rebuild it: {rebuild_command()}"
        )


def check_tables(built: int) -> None:
    """Refuse an extension that was built from other sources: it would misread its tables."""
    if built != TABLES:
        raise ImportError(
            "dovetail_guards' native part was built from other sources than these. "
            f"Rebuild it: {rebuild_command()}"
        )


class _Probe:
    """An object with an ordinary instance dict."""


def _write_goes_unnoticed(native: Any) -> bool:
    holder = _Probe()
    holder.__dict__["x"] = 1
    return bool(native.probe_stamp(holder.__dict__, lambda: setattr(holder, "x", 2)))


def _counts_values(native: Any) -> bool:
    """Does the native part see whether an object has attributes, before its dict is made?"""
    native.set_inline_values_are_known(True)
    full = _Probe()
    full.x = 1  # type: ignore[attr-defined]
    emptied = _Probe()
    emptied.x = 1  # type: ignore[attr-defined]
    del emptied.x  # type: ignore[attr-defined]
    return all(
        native.probe_values(each) in answers
        for each, answers in (
            (_Probe(), (True,)),
            (torch.ones(1), (True,)),
            (full, (False,)),
            (emptied, (True, None)),
        )
    )


def prove_layout(native: Any) -> None:
    """Compare the native view of torch's and Python's objects with what they say themselves."""
    wrong = []
    cpu = torch.device("cpu")
    for tensor in (torch.ones(2), torch.nn.Parameter(torch.ones(1)), torch.ones(2).t()):
        if native.probe_address(tensor) != tensor._cdata:
            wrong.append("TensorImpl")
    if not wrong:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
            seen = native.probe_tensor(torch.empty(0, dtype=dtype))[1]
            if native.probe_constants(dtype, torch.strided, cpu)[0] != seen:
                wrong.append("dtype")
        for tensor in (torch.empty(0), torch.empty(1).to_sparse()):
            seen = native.probe_tensor(tensor)[2]
            if native.probe_constants(torch.float32, tensor.layout, cpu)[1] != seen:
                wrong.append("layout")
    # c10::DeviceType numbers CPU 0 and CUDA 1.
    for device, expected in ((cpu, (0, -1)), (torch.device("cuda", 3), (1, 3))):
        if native.probe_constants(torch.float32, torch.strided, device)[2:] != expected:
            wrong.append("device")
    holder = _Probe()
    holder.__dict__["x"] = 1
    for owner in (holder, torch.nn.Identity(), torch):
        held = owner.__dict__  # on CPython reading it makes it
        if native.probe_dict(owner) is not held:
            wrong.append("instance dict")
    if native.probe_dict(_Probe()) not in (None, {}):
        wrong.append("instance dict")
    if _write_goes_unnoticed(native):
        native.set_inline_writes_are_silent(True)
        if _write_goes_unnoticed(native):
            wrong.append("dict version")
    native.set_inline_values_are_known(_counts_values(native))
    if wrong:
        raise ImportError(
            f"dovetail_guards' native part reads {', '.join(sorted(set(wrong)))} wrongly on "
            f"Python {sys.version.split()[0]} and torch {torch.__version__}; "
            "please report this combination"
        )
