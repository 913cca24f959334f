"""Entries of the cache on disk as one piece of bytes, and back: what a process compiled, for
others.

The bytes are a line that names the format, the SHA-256 of the rest, and the rest: a line of JSON
that lists the entries' files with their sizes, and the files' contents.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_runtime.cache_folders import CacheWarning, cache_folders
from dovetail_runtime.disk_cache import DiskCache
from dovetail_runtime.knobs import Knobs

Names = Mapping[str, tuple[str, ...]]

_FORMAT = b"dovetail cache 1\n"
_EXECUTABLE = ("cpp",)  # the kinds whose files are loaded as code
_KINDS = ("autotune", "cpp", "header", "plan", "triton")


@dataclass(frozen=True)
class _Packed:
    """An entry: its kind, its name, and the contents of its files."""

    kind: str
    name: str
    files: Mapping[str, bytes]


def pack_used_entries() -> tuple[bytes, Names] | None:
    """All entries that this process made or found, and their names by kind. None without any."""
    entries: list[_Packed] = []
    for kind, folder, name in cache_folders().used():
        try:
            files = {f.name: f.read_bytes() for f in sorted((folder / name).iterdir())}
        except OSError:
            continue  # it was evicted
        entries.append(_Packed(kind, name, files))
    if not entries:
        return None
    listed = [
        [entry.kind, entry.name, [[name, len(data)] for name, data in entry.files.items()]]
        for entry in entries
    ]
    body = json.dumps(listed).encode() + b"\n"
    body += b"".join(data for entry in entries for data in entry.files.values())
    return _FORMAT + hashlib.sha256(body).digest() + body, _names(entries)


def unpack_entries(data: bytes, knobs: Knobs) -> Names | None:
    """Put packed entries into the cache; the names of those that are there, by kind. None, with a
    warning, if `data` is not what `pack_used_entries` gave."""
    try:
        entries = _unpacked(data)
    except ValueError as error:
        warnings.warn(f"these cache artifacts are not loaded: {error}", CacheWarning, 3)
        return None
    return _names([entry for entry in entries if _adopted(entry, knobs)])


def _unpacked(data: bytes) -> list[_Packed]:
    if not data.startswith(_FORMAT):
        raise ValueError("they are not in the format of this version")
    start = len(_FORMAT) + hashlib.sha256().digest_size
    body = data[start:]
    if hashlib.sha256(body).digest() != data[len(_FORMAT) : start]:
        raise ValueError("they are damaged")
    first_line, _, contents = body.partition(b"\n")
    listed: list[Any] = json.loads(first_line)
    entries: list[_Packed] = []
    position = 0
    for kind, name, sizes in listed:
        files: dict[str, bytes] = {}
        for file, size in sizes:
            files[file] = contents[position : position + size]
            position += size
        entries.append(_Packed(kind, name, files))
    return entries


def _adopted(entry: _Packed, knobs: Knobs) -> bool:
    if entry.kind not in _KINDS:
        return False
    executable = entry.kind in _EXECUTABLE
    cache = DiskCache(knobs.cache_dir, entry.kind, knobs.cache_limit_bytes, executable=executable)
    return cache.adopt(entry.name, entry.files)


def _names(entries: list[_Packed]) -> Names:
    kinds = dict.fromkeys(entry.kind for entry in entries)
    return {kind: tuple(e.name for e in entries if e.kind == kind) for kind in kinds}
