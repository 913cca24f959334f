"""Guard filters to pass as `options={"guard_filter_fn": ...}`, as `torch.compiler` has them.

Each is given a list of `dovetail_capture.GuardFilterEntry` and tells of each guard whether it is
kept. What is dropped is never checked: where it changes all the same, answers are stale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from dovetail_capture import GuardFilterEntry


def keep_portable_guards_unsafe(guard_entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Keep what is checked of tensors that are not globals, of sizes, and of torch's settings."""
    return [
        entry.guard_type in ("GLOBAL_STATE", "SHAPE_ENV")
        or (entry.guard_type == "TENSOR_MATCH" and not entry.is_global)
        for entry in guard_entries
    ]


def skip_guard_on_inbuilt_nn_modules_unsafe(
    guard_entries: Sequence[GuardFilterEntry],
) -> list[bool]:
    """Drop what is checked inside of modules whose classes are those of `torch.nn`."""
    return [
        not entry.orig_guard.source.is_unspecialized_builtin_nn_module() for entry in guard_entries
    ]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Drop what is checked inside of modules, the user's own included."""
    return [not entry.orig_guard.source.is_unspecialized_nn_module() for entry in guard_entries]


def keep_tensor_guards_unsafe(
    guard_entries: Sequence[GuardFilterEntry], keep_parameters: bool = False
) -> list[bool]:
    """Keep what is checked of tensors alone, and of parameters with `keep_parameters`."""
    return [
        entry.guard_type == "TENSOR_MATCH"
        and (keep_parameters or not isinstance(entry.value, torch.nn.Parameter))
        for entry in guard_entries
    ]


def skip_guard_on_globals_unsafe(guard_entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Drop what is checked of modules' globals."""
    return [not entry.is_global for entry in guard_entries]


def skip_all_guards_unsafe(guard_entries: Sequence[GuardFilterEntry]) -> list[bool]:
    """Drop every guard: what was compiled first answers every call."""
    return [False for _ in guard_entries]
