"""Files named by what made them: a cache on disk that several processes may use at once.

A key is a list of `(label, part)`. Its digest names the entry's directory; beside the payload
stands `key.json`: the digest of each part, so that a miss can be explained by the nearest entry,
and the digest of each file. Entries appear by an atomic rename, so a reader sees a whole entry or
none. What is read is checked: an entry that somebody else may have written, or whose files are not
what was stored, is removed with a warning, and made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dovetail_runtime.cache_folders import (
    CacheWarning,
    UntrustedFile,
    cache_folders,
    check_owned,
    make_folder,
    unfinished_entry,
)

KeyParts = Sequence[tuple[str, str]]

_FORMAT = b"2"  # of key.json: entries of another one are never found
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
    digest = hashlib.sha256(_FORMAT)
    for label, part in parts:
        for text in (label, part):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
    return digest.hexdigest()[:40]


@dataclass(frozen=True)
class Entry:
    """An entry that was there, of which only `key.json` has been read. `digests`: the SHA-256 of
    each of its other files."""

    cache: DiskCache
    path: Path
    digests: Mapping[str, str]

    def read(self, name: str) -> bytes | None:
        """The content of the file `name`, as it was stored. None if the entry is gone, or if the
        file is another one; the entry is then removed, with a warning."""
        try:
            data = _owned_content(self.path / name)
        except FileNotFoundError:
            _remove(self.path)  # an eviction is at work, or was cut short
            return None
        except OSError as error:
            self.discard(str(error))
            return None
        if hashlib.sha256(data).hexdigest() != self.digests.get(name):
            self.discard(f"{name} is not what was stored")
            return None
        return data

    def checked(self, name: str) -> Path | None:
        """The path of the file `name`, whose content was just found to be what was stored."""
        return self.path / name if self.read(name) is not None else None

    def remove(self) -> None:
        """Remove the entry."""
        _remove(self.path)

    def discard(self, reason: str) -> None:
        """Remove the entry, which is damaged, and say so."""
        self.cache.discard(self.path.name, reason)


@dataclass(frozen=True)
class DiskCache:
    """Entries of one kind under `root/kind`, limited to `limit_bytes` together. `executable`: code
    is loaded from their files. Where `root` cannot be used, they are in a temporary folder."""

    root: Path
    kind: str
    limit_bytes: int
    executable: bool = False

    @property
    def directory(self) -> Path:
        """Where the entries are."""
        return cache_folders().folder(self.root, self.kind, executable=self.executable)

    def get(self, parts: KeyParts) -> Entry | None:
        """The entry for `parts`, if there is a sound one. Marks it as used."""
        return self.entry(key_digest(parts))

    def entry(self, name: str) -> Entry | None:
        """The entry of this name, if there is a sound one. Marks it as used."""
        path = self.directory / name
        try:
            info = path.lstat()
            if not stat.S_ISDIR(info.st_mode):
                raise UntrustedFile(f"{path} is no directory")
            check_owned(path, info)
            record = json.loads(_owned_content(path / _KEY_FILE))
            if record["name"] != name:
                raise ValueError(f"{_KEY_FILE} is that of another entry")
            digests = dict(record["files"])
            os.utime(path / _KEY_FILE)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.discard(name, f"{_KEY_FILE}: {error}")
            return None
        cache_folders().note_use(self.kind, path.parent, name)
        return Entry(self, path, digests)

    def adopt(self, name: str, files: Mapping[str, bytes]) -> bool:
        """Make the entry `name` of the files of another cache's entry, `key.json` included; whether
        there is one now. Files that are not those that `key.json` tells of are refused."""
        digests = {
            file: hashlib.sha256(data).hexdigest()
            for file, data in files.items()
            if file != _KEY_FILE
        }
        try:
            record = json.loads(files[_KEY_FILE])
            sound = record["name"] == name and record["files"] == digests
        except (ValueError, KeyError, TypeError):
            sound = False
        if not sound or any("/" in part or part.startswith(".") for part in (name, *files)):
            return False
        if self.entry(name) is not None:
            return True
        with unfinished_entry(self.directory) as scratch:
            for file, data in files.items():
                (scratch / file).write_bytes(data)
                _sealed(scratch / file, durable=False)
            with suppress(OSError):  # (another process was first)
                os.rename(scratch, self.directory / name)
        return self.entry(name) is not None

    def put_files(
        self, parts: KeyParts, files: Mapping[str, str | bytes], *, durable: bool = True
    ) -> Entry:
        """Make an entry of files' contents by name, as `put` does."""

        def fill(directory: Path) -> None:
            for name, content in files.items():
                data = content.encode() if isinstance(content, str) else content
                (directory / name).write_bytes(data)

        return self.put(parts, fill, durable=durable)

    def put(self, parts: KeyParts, fill: Callable[[Path], None], *, durable: bool = True) -> Entry:
        """Make an entry: `fill` writes its files into the directory it is given, and is called
        again with another one if this cannot be written to. If another process was first, its
        entry stands and ours is dropped. What is not `durable` may be found damaged, and made
        again, after the machine itself has stopped."""
        try:
            return self._put(parts, fill, durable)
        except OSError as error:
            if not cache_folders().replace(self.root, self.kind, error):
                raise
            return self._put(parts, fill, durable)

    def _put(self, parts: KeyParts, fill: Callable[[Path], None], durable: bool) -> Entry:
        directory = self.directory
        make_folder(directory)
        path = directory / key_digest(parts)
        with unfinished_entry(directory) as scratch:
            fill(scratch)
            digests = {f.name: _sealed(f, durable) for f in sorted(scratch.iterdir())}
            record = {
                "name": path.name,
                "key": [[label, _part_digest(part), part[:200]] for label, part in parts],
                "files": digests,
            }
            (scratch / _KEY_FILE).write_text(json.dumps(record))
            _sealed(scratch / _KEY_FILE, durable)
            if durable:
                _synchronise(scratch)
            try:
                os.rename(scratch, path)
            except OSError:
                found = self.entry(path.name)
                if found is not None:
                    return found
                _remove(path)  # what an eviction that was cut short left
                os.rename(scratch, path)
        if durable:
            _synchronise(directory)
        # The digest decides when to look: no counter that processes would have to share.
        if int(path.name[:8], 16) % _LOOK_EVERY == 0:
            self._look()
        cache_folders().note_use(self.kind, directory, path.name)
        return Entry(self, path, digests)

    def discard(self, name: str, reason: str) -> None:
        """Remove a damaged entry, and say so."""
        _remove(self.directory / name)
        warnings.warn(
            f"a damaged entry of the cache was removed and will be made again: "
            f"{self.directory / name}: {reason}",
            CacheWarning,
            stacklevel=2,
        )

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
                stored = json.loads((entry / _KEY_FILE).read_text())["key"]
                age = (entry / _KEY_FILE).stat().st_mtime
            except (OSError, ValueError, KeyError, TypeError):
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
    """Remove an entry, or what stands in its place. What another user put there cannot be deleted,
    but it can be renamed."""
    try:
        # The key goes first: an entry without it is no entry.
        (entry / _KEY_FILE).unlink(missing_ok=True)
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    except OSError:
        pass
    if entry.is_symlink() or entry.exists():
        with suppress(OSError):  # (then it is refused each time)
            entry.rename(tempfile.mktemp(prefix=".bad-", dir=entry.parent))


def _owned_content(path: Path) -> bytes:
    """The content of a file that this user alone may write to."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise UntrustedFile(f"{path} is no file")
        check_owned(path, info)
        return file.read()


def _sealed(path: Path, durable: bool) -> str:
    """Make a file this user's alone, and with `durable` have the disk write it; its digest."""
    path.chmod(0o700 if path.suffix == ".so" else 0o600)
    with open(path, "rb") as file:
        if durable:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _synchronise(directory: Path) -> None:
    """Have the disk write the names in a directory."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _part_digest(part: str) -> str:
    return hashlib.sha256(part.encode()).hexdigest()[:16]
