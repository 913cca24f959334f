"""Folders that a cache may use: nobody but this user can change what is in them.

Whatever can be written to a folder can be loaded into the process that reads it, so a folder is
used only if it and all above it, up to the cache's root, belong to this user (the root may be
root's) and no one else may write there. A wanted folder that cannot be used, be it another user's,
read-only or full, is replaced by a temporary one, with one warning.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path

UNFINISHED = ".new-"
# A disk with less room than this is full: a translation unit's object and the compiler's files.
_LEAST_FREE = 16 << 20
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class CacheWarning(RuntimeWarning):
    """What is kept on disk cannot be used, and is made again or kept elsewhere."""


class UntrustedFile(OSError):
    """A file or folder that somebody else may have written."""


def check_owned(path: Path, info: os.stat_result) -> None:
    """Raise `UntrustedFile` unless this user alone may write to what has the status `info`."""
    if info.st_uid != os.geteuid():
        raise UntrustedFile(f"{path} belongs to user {info.st_uid}, not to user {os.geteuid()}")
    if info.st_mode & _OTHERS_WRITE:
        raise UntrustedFile(f"others may write to {path} (mode {stat.S_IMODE(info.st_mode):o})")


def make_folder(path: Path) -> None:
    """Create `path` and what is missing above it with mode 0700, whatever the umask is."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir(0o700)
        except FileExistsError:
            continue  # another process was first
        folder.chmod(0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "a file is in the place of the folder", str(path))


class CacheFolders:
    """The folder for each kind of entries that this process reads and writes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._ready: dict[tuple[Path, str], Path] = {}
        self._temporary: Path | None = None
        self._warned: set[Path] = set()
        self._used: dict[tuple[str, Path, str], None] = {}

    def note_use(self, kind: str, folder: Path, name: str) -> None:
        """This process made, or found, the entry `name` of `folder`."""
        self._used[kind, folder, name] = None  # (one operation: no lock)

    def used(self) -> list[tuple[str, Path, str]]:
        """Kind, folder and name of each entry that this process made or found."""
        return list(self._used)

    def folder(self, root: Path, kind: str, *, executable: bool) -> Path:
        """`root/kind`, created and checked at its first use, or what stands for it. `executable`:
        code is loaded from there, which some file systems forbid."""
        ready = self._ready.get((root, kind))
        if ready is not None:
            return ready
        with self._lock:
            if (root, kind) not in self._ready:
                try:
                    self._ready[root, kind] = _prepared(root, kind, executable)
                except OSError as error:
                    self.replace(root, kind, error)
            return self._ready[root, kind]

    def replace(self, root: Path, kind: str, reason: OSError) -> bool:
        """Use a temporary folder for `root/kind`, which cannot be used for `reason`. False if
        that was done before."""
        with self._lock:
            if self._temporary is None:
                self._temporary = _temporary_folder(reason)
            folder = self._temporary / kind
            if self._ready.get((root, kind)) == folder:
                return False
            make_folder(folder)
            self._ready[root, kind] = folder
            if root not in self._warned:
                self._warned.add(root)
                warnings.warn(
                    f"the cache folder {root} cannot be used ({reason}); what is compiled is kept "
                    f"in {self._temporary} until this process ends. Name a folder that this user "
                    "can write to in the environment variable DOVETAIL_CACHE_DIR.",
                    CacheWarning,
                    stacklevel=2,
                )
            return True


def cache_folders() -> CacheFolders:
    """The folders of this process and user."""
    return _folders(os.getpid(), os.geteuid())


@lru_cache(maxsize=1)
def _folders(process: int, user: int) -> CacheFolders:
    # By process: locks and temporary folders of a parent are not a forked child's.
    return CacheFolders()


def _prepared(root: Path, kind: str, executable: bool) -> Path:
    if not root.is_absolute():
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder", str(root))
    make_folder(root)
    info = root.stat()
    if info.st_uid != 0:  # root can do everything anyway
        check_owned(root, info if not info.st_mode & stat.S_ISVTX else _without_others(info))
    elif info.st_mode & _OTHERS_WRITE and not info.st_mode & stat.S_ISVTX:
        raise UntrustedFile(f"others may write to {root}")
    folder = root / kind
    make_folder(folder)
    info = folder.lstat()
    if info.st_uid == os.geteuid() and info.st_mode & _OTHERS_WRITE:
        folder.chmod(0o700)
        info = folder.lstat()
    check_owned(folder, info)
    _check_usable(folder, executable)
    _remove_unfinished(folder)
    return folder


def _without_others(info: os.stat_result) -> os.stat_result:
    """The status of a folder with the sticky bit, in which others cannot replace what is ours."""
    return os.stat_result((info.st_mode & ~_OTHERS_WRITE, *info[1:]))


def _check_usable(folder: Path, executable: bool) -> None:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, "it cannot be written to", str(folder))
    disk = os.statvfs(folder)
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    if disk.f_blocks and free * disk.f_frsize < _LEAST_FREE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    if executable and disk.f_flag & os.ST_NOEXEC:
        raise PermissionError(errno.EACCES, "its file system is mounted noexec", str(folder))


def _temporary_folder(reason: OSError) -> Path:
    """A new folder of this process, removed at its end."""
    for base in (None, "/dev/shm", "/var/tmp"):
        try:
            folder = Path(tempfile.mkdtemp(prefix="dovetail-cache-", dir=base))
        except OSError:
            continue
        try:
            _check_usable(folder, executable=True)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        atexit.register(partial(_remove_own, folder, os.getpid()))
        return folder
    raise OSError(
        reason.errno,
        f"no folder for compiled kernels can be used: not the cache ({reason}), "
        "and no temporary one can be written to (TMPDIR, /tmp, /dev/shm, /var/tmp)",
    ) from reason


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child runs this, too
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def unfinished_entry(folder: Path) -> Iterator[Path]:
    """A folder in `folder` for an entry that is being made; what has not been moved away by the end
    is removed. A lock tells other processes that its maker is alive."""
    with _locked(folder, fcntl.LOCK_SH):  # no one looks for the dead between these two
        scratch = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        _try_lock(lock, fcntl.LOCK_EX)
    try:
        yield scratch
    finally:
        _release(lock)
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_unfinished(folder: Path) -> None:
    """Remove the unfinished entries of processes that ended while they made them."""
    with _locked(folder, fcntl.LOCK_EX) as locked:
        if not locked:
            return  # a file system without locks: who is alive cannot be told
        for scratch in folder.glob(f"{UNFINISHED}*"):
            try:
                lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                if _try_lock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(lock)


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[bool]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _try_lock(descriptor, kind)
    finally:
        _release(descriptor)


def _release(descriptor: int) -> None:
    """Unlock, then close: a child that was forked meanwhile has a copy of the descriptor, by which
    the lock would stay, and the child would wait for itself."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        return False
    return True
