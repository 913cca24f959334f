"""The compiled code that this process has used, as one portable piece of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail_runtime import Knobs
from dovetail_runtime.portable_cache import pack_used_entries, unpack_entries


@dataclass(frozen=True)
class CacheInfo:
    """Which entries of the cache on disk were saved, or are there after loading: their names, by
    kind ("cpp", "triton", "autotune", "plan")."""

    artifacts: Mapping[str, tuple[str, ...]]

    @property
    def inductor_artifacts(self) -> list[str]:
        """Generated code: kernels and plans."""
        kinds = (kind for kind in self.artifacts if kind != "autotune")
        return [name for kind in kinds for name in self.artifacts[kind]]

    @property
    def autotune_artifacts(self) -> list[str]:
        """Measurements that chose kernels."""
        return list(self.artifacts.get("autotune", ()))

    @property
    def aot_autograd_artifacts(self) -> list[str]:
        """None: neither traces, nor which sizes changed, nor whole functions are kept on disk."""
        return []

    pgo_artifacts = precompile_artifacts = aot_autograd_artifacts

    @property
    def counts(self) -> dict[str, int]:
        """How many entries there are of each kind."""
        return {kind: len(names) for kind, names in self.artifacts.items()}

    def empty(self) -> bool:
        """Is there nothing?"""
        return not self.artifacts


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """What the cache on disk holds of all that this process has compiled or loaded from it: bytes
    for `load_cache_artifacts` in another process or on another machine, and what is in them. None
    if nothing was compiled."""
    packed = pack_used_entries()
    return None if packed is None else (packed[0], CacheInfo(packed[1]))


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Put what `save_cache_artifacts` gave into the cache on disk; what is there. Code for another
    machine, or made by another version, is never found by what looks for it.

    The bytes hold machine code, which will run: load only what you trust. Bytes that are damaged
    are refused with a warning, and give None.
    """
    found = unpack_entries(serialized_artifacts, Knobs.from_environment())
    return None if found is None else CacheInfo(found)
