"""Whole plans kept on disk, so that a second process compiles nothing."""

from __future__ import annotations

from pathlib import Path

from dovetail_runtime.disk_cache import DiskCache, KeyParts
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import Plan
from dovetail_runtime.serialize import FORMAT_VERSION, plan_from_bytes, save_plan

_PLAN_FILE = "plan.bin"


class ArtifactCache:
    """Plans by key. The caller's key says what the plan was made from (graph, shapes, options,
    compiler version); the format's version is added here."""

    def __init__(self, knobs: Knobs) -> None:
        self._cache = DiskCache(knobs.cache_dir, "plan", knobs.cache_limit_bytes)

    def get(self, key_parts: KeyParts) -> Plan | None:
        """The plan stored under the key, or None."""
        entry = self._cache.get(_versioned(key_parts))
        data = entry.read(_PLAN_FILE) if entry is not None else None
        return plan_from_bytes(data) if data is not None else None

    def put(self, key_parts: KeyParts, plan: Plan) -> Path:
        """Store a plan; the file it is in."""

        def fill(directory: Path) -> None:
            save_plan(plan, directory / _PLAN_FILE)

        return self._cache.put(_versioned(key_parts), fill).path / _PLAN_FILE

    def explain_miss(self, key_parts: KeyParts) -> str:
        """In which parts of the key the nearest stored plan differs."""
        return self._cache.explain_miss(_versioned(key_parts))


def _versioned(parts: KeyParts) -> KeyParts:
    return [("plan format", str(FORMAT_VERSION)), *parts]
