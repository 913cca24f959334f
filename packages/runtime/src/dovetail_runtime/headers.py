"""Headers of C++ kernels, by name: a program refers to them and does not print them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from dovetail_runtime.disk_cache import DiskCache, KeyParts
from dovetail_runtime.knobs import Knobs

_FILE = "header.h"


def header_name(text: str) -> str:
    """The file name of a header: `kernels_<digest of its text>.h`."""
    return f"kernels_{hashlib.sha256(text.encode()).hexdigest()[:16]}.h"


def keep_header(text: str) -> str:
    """Keep a header in the cache, where `header` finds it; its name."""
    name = header_name(text)
    cache, parts = _cache(), _parts(name)
    if cache.get(parts) is None:
        cache.put(parts, lambda folder: _write(folder / _FILE, text))
    return name


def header(name: str, module: str) -> str:
    """The text of a header: from the folder of the file that `module` was loaded from, where
    `write_program` puts it, else from the cache.

    Raises FileNotFoundError if it is in neither, or is another text than its name says.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    beside = None if file is None else Path(file).parent / name
    if beside is not None and beside.exists():
        return beside.read_text()
    entry = _cache().get(_parts(name))
    data = None if entry is None else entry.read(_FILE)
    if data is None or header_name(data.decode()) != name:
        raise FileNotFoundError(
            f"the header {name} is not in the cache; `dovetail_runtime.write_program` writes it "
            "beside a program"
        )
    return data.decode()


def _cache() -> DiskCache:
    knobs = Knobs.from_environment()
    return DiskCache(knobs.cache_dir, "header", knobs.cache_limit_bytes)


def _parts(name: str) -> KeyParts:
    return [("header", name)]


def _write(file: Path, text: str) -> None:
    file.write_text(text)
