"""The package's settings, read from the environment here and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Knobs:
    """Every setting of this package."""

    # DOVETAIL_CACHE_DIR: where compiled kernels and plans are kept. (Where that cannot be used,
    # they are in a temporary folder.)
    cache_dir: Path
    # DOVETAIL_CACHE_LIMIT_MB: size at which the oldest entries of that directory are dropped.
    cache_limit_bytes: int
    # DOVETAIL_CXX: the C++ compiler, a command that may have arguments ("ccache g++").
    cxx: str
    # DOVETAIL_COMPILE_SECONDS: a compiler that takes longer for a unit or kernel is ended; 0: none.
    compile_seconds: float | None
    # DOVETAIL_COMPILE_WORKERS: how many compilers run at a time.
    compile_workers: int
    # DOVETAIL_SLAB_CACHE_MB: idle memory kept for the next call of a CPU plan.
    slab_cache_bytes: int
    # DOVETAIL_DIRECT_PRODUCTS: 0 leaves products of halves on a GPU to ATen, whose operators a
    # program may have replaced; 1, the default, asks cuBLASLt.
    direct_products: bool

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Knobs:
        """The settings of this process."""
        env = os.environ if environment is None else environment
        cache_dir = env.get("DOVETAIL_CACHE_DIR")
        cache_home = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
        # Absolute, as compilers and later calls may run elsewhere. Without a home, "~" stays.
        chosen = os.path.expanduser(cache_dir or cache_home / "dovetail")
        return Knobs(
            cache_dir=Path(chosen if chosen.startswith("~") else os.path.abspath(chosen)),
            cache_limit_bytes=_integer(env, "DOVETAIL_CACHE_LIMIT_MB", 4096) << 20,
            cxx=env.get("DOVETAIL_CXX") or "g++",
            compile_seconds=_integer(env, "DOVETAIL_COMPILE_SECONDS", 600) or None,
            compile_workers=_integer(env, "DOVETAIL_COMPILE_WORKERS", usable_cores()),
            slab_cache_bytes=_integer(env, "DOVETAIL_SLAB_CACHE_MB", 1024) << 20,
            direct_products=_integer(env, "DOVETAIL_DIRECT_PRODUCTS", 1) != 0,
        )


def usable_cores() -> int:
    """How many cores this process may run on, at most 16."""
    return max(1, min(16, len(os.sched_getaffinity(0))))


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {text!r}") from None
    if value < 0:
        raise ValueError(f"{name} must not be negative: {value}")
    return value
