"""Files named by what made them: a cache on disk that several processes may use at once.

A key is a list of `(label, part)`. Its digest names the entry's directory; beside the payload
stands `key.json`, the digest of each part, so that a miss can be explained by the nearest entry.
Entries appear by an atomic rename, so a reader sees a whole entry or none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KeyParts = Sequence[tuple[str, str]]

_KEY_FILE = "key.json"
# Entries younger than this are never evicted: another process may just be about to read them.
_GRACE_SECONDS = 60.0
# One of so many entries made looks whether others must go.
_LOOK_EVERY = 64
# What looking leaves, relative to the limit: so much must come before the next sweep of a full
# cache, which reads the size of each of its files.
_KEPT = 7 / 8
_SWEPT_FILE = ".swept"


def key_digest(parts: KeyParts) -> str:
    """The name of the entry for `parts`."""
    digest = hashlib.sha256()
    for label, part in parts:
        for text in (label, part):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()[:40]


@dataclass(frozen=True)
class DiskCache:
    """Entries of one kind under `root/kind`, limited to `limit_bytes` together."""

    root: Path
    kind: str
    limit_bytes: int

    @property
    def directory(self) -> Path:
        """Where the entries are."""
        return self.root / self.kind

    def get(self, parts: KeyParts) -> Path | None:
        """The entry's directory, or None. Marks the entry as used."""
        entry = self.directory / key_digest(parts)
        try:
            os.utime(entry / _KEY_FILE)
        except FileNotFoundError:
            return None
        return entry

    def put(self, parts: KeyParts, fill: Callable[[Path], None]) -> Path:
        """Make an entry: `fill` writes its files into the directory it is given. If another
        process was first, its entry stands and ours is dropped."""
        self.directory.mkdir(parents=True, exist_ok=True)
        entry = self.directory / key_digest(parts)
        scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=self.directory))
        try:
            fill(scratch)
            key = [[label, _part_digest(part), part[:200]] for label, part in parts]
            (scratch / _KEY_FILE).write_text(json.dumps(key))
            try:
                os.rename(scratch, entry)
            except OSError:
                if not (entry / _KEY_FILE).exists():  # what an eviction that was cut short left
                    shutil.rmtree(entry, ignore_errors=True)
                    os.rename(scratch, entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        # The digest decides when to look: no counter that processes would have to share.
        if int(entry.name[:8], 16) % _LOOK_EVERY == 0:
            self._look()
        return entry

    def drop(self, parts: KeyParts) -> None:
        """Remove an entry, one that is not whole, say."""
        _remove(self.directory / key_digest(parts))

    def _look(self) -> None:
        """Evict if the entries may have outgrown the limit, or twice as many as there were at the
        last sweep may be there. `.swept` holds what is needed to tell: the entries and bytes which
        that sweep left, and the looks since. Two processes that look at once count as one."""
        note = self.directory / _SWEPT_FILE
        try:
            count, total, looks = map(int, note.read_text().split())
        except (OSError, ValueError):
            self.evict(_KEPT)
            return
        made = (looks + 1) * _LOOK_EVERY
        if made >= count or total + made * total // count > self.limit_bytes:
            self.evict(_KEPT)
        else:
            self._note(count, total, looks + 1)

    def _note(self, count: int, total: int, looks: int) -> None:
        # (Threads of one process store side by side.)
        scratch = self.directory / f"{_SWEPT_FILE}-{os.getpid()}-{threading.get_ident()}"
        scratch.write_text(f"{count} {total} {looks}")
        scratch.replace(self.directory / _SWEPT_FILE)

    def explain_miss(self, parts: KeyParts) -> str:
        """Why `get(parts)` finds nothing: the parts in which the nearest entry differs."""
        if self.get(parts) is not None:
            return "no miss: the entry is there"
        wanted = {label: (_part_digest(part), part[:200]) for label, part in parts}
        best: tuple[list[str], float] | None = None
        for entry in self._entries():
            try:
                stored = json.loads((entry / _KEY_FILE).read_text())
                age = (entry / _KEY_FILE).stat().st_mtime
            except (OSError, ValueError):
                continue
            found = {label: (digest, text) for label, digest, text in stored}
            different = [
                f"{label}: {found.get(label, ('', 'absent'))[1]!r} there, "
                f"{wanted.get(label, ('', 'absent'))[1]!r} here"
                for label in sorted(wanted.keys() | found.keys())
                if wanted.get(label, ("", ""))[0] != found.get(label, ("", ""))[0]
            ]
            if best is None or (len(different), -age) < (len(best[0]), -best[1]):
                best = (different, age)
        if best is None:
            return f"the cache of {self.kind} in {self.root} is empty"
        return "the nearest entry differs in " + "; ".join(best[0])

    def evict(self, kept: float = 1.0) -> int:
        """If the limit does not hold, drop the entries used longest ago until they fill but the
        fraction `kept` of it; the number dropped."""
        entries: list[tuple[float, int, Path]] = []
        for entry in self._entries():
            try:
                size = sum(f.stat().st_size for f in entry.iterdir())
                entries.append(((entry / _KEY_FILE).stat().st_mtime, size, entry))
            except OSError:
                continue  # another process is dropping it
        total = sum(size for _, size, _ in entries)
        now = time.time()
        dropped = 0
        allowed = self.limit_bytes if total <= self.limit_bytes else int(self.limit_bytes * kept)
        for used, size, entry in sorted(entries):
            if total <= allowed or now - used < _GRACE_SECONDS:
                break
            _remove(entry)
            total -= size
            dropped += 1
        if entries:
            self._note(len(entries) - dropped, total, 0)
        return dropped

    def _entries(self) -> Iterator[Path]:
        if self.directory.is_dir():
            yield from (e for e in self.directory.iterdir() if not e.name.startswith("."))


def _remove(entry: Path) -> None:
    # The key goes first: an entry without it is no entry.
    (entry / _KEY_FILE).unlink(missing_ok=True)
    shutil.rmtree(entry, ignore_errors=True)


def _part_digest(part: str) -> str:
    return hashlib.sha256(part.encode()).hexdigest()[:16]
