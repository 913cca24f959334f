"""Where the cache cannot be, kernels are compiled all the same, with one warning."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from cpp_kernels import call, compiler, constant, knobs
from dovetail_runtime import cache_folders
from dovetail_runtime.cpp_build import CppBuilder
from dovetail_runtime.knobs import Knobs


def builds_elsewhere(used: Knobs, why: str) -> None:
    """Two builders compile, with one warning for both."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(2):
            function = CppBuilder(used).build([constant("a", number)])["a"]
            assert call(function) == number
    (warning,) = [str(w.message) for w in caught]
    assert str(used.cache_dir) in warning and why in warning and "DOVETAIL_CACHE_DIR" in warning


def file_in_the_place(path: Path) -> None:
    path.write_text("a file")


def file_above(path: Path) -> None:
    path.write_text("a file")


def file_of_the_kind(path: Path) -> None:
    path.mkdir()
    (path / "cpp").write_text("a file")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("prepare", "name", "why"),
    [
        (file_in_the_place, "cache", "a file is in the place"),
        (file_above, "cache/below", ""),
        (file_of_the_kind, "cache", "a file is in the place"),
        (open_to_all, "cache", "others may write"),
    ],
)
def test_a_folder_that_is_none(
    prepare: Callable[[Path], None], name: str, why: str, tmp_path: Path
) -> None:
    prepare(tmp_path / "cache")
    builds_elsewhere(knobs(tmp_path / name), why)


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "expanduser", lambda path: str(path))  # what it does without one
    used = Knobs.from_environment({})
    builds_elsewhere(used, "no home folder")
    assert not Path("~").exists()


@pytest.mark.parametrize("state", ["full", "noexec"])
def test_a_disk_that_is_of_no_use(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        found = real(path)
        if tmp_path not in Path(path).parents:
            return found
        fields = list(found)[:10]
        if state == "full":
            fields[3] = fields[4] = 1
        else:
            fields[8] |= os.ST_NOEXEC
        return os.statvfs_result(fields)

    monkeypatch.setattr(cache_folders.os, "statvfs", statvfs)
    builds_elsewhere(knobs(tmp_path), {"full": "No space left", "noexec": "noexec"}[state])


@pytest.mark.parametrize("who", ["the compiler", "we"])
def test_a_disk_that_fills_up(who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if who == "the compiler":
        full = 'echo "as: kernels.o: No space left on device" >&2; exit 1'
        body = f'case "$out" in {tmp_path}/*) {full};; esac\nexec g++ "$@"'
        used = knobs(tmp_path / "cache", DOVETAIL_CXX=compiler(tmp_path / "g++", body))
        builds_elsewhere(used, "No space left")
        return
    rename = os.rename

    def no_room(source: Path, target: Path) -> None:
        if tmp_path in Path(target).parents:
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", no_room)
    builds_elsewhere(knobs(tmp_path / "cache"), "No space left")


READ_ONLY = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from dovetail_runtime.cpp_build import CppBuilder
from cpp_kernels import call, constant, knobs
if os.geteuid() == 0:
    os.setgid(65534), os.setuid(65534)
function = CppBuilder(knobs(Path(sys.argv[1]))).build([constant("a", 1)])["a"]
print(call(function), [str(f) for f in Path("/tmp").glob("dovetail-cache-*") if f.owner()])
"""


def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    """The temporary folder goes with the process."""
    folder = tmp_path / "cache"
    call(CppBuilder(knobs(folder)).build([constant("a", 1)])["a"])
    for path in (*tmp_path.parents[:2], tmp_path, folder, *folder.rglob("*")):
        path.chmod(0o555)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(folder), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            env={**os.environ, "TMPDIR": "/tmp"},
            check=False,
        )
    finally:
        for path in (*tmp_path.parents[:2], tmp_path, folder, *folder.rglob("*")):
            path.chmod(0o755)
    assert done.returncode == 0 and done.stdout.startswith("1 "), done.stderr
    assert done.stderr.count("CacheWarning") == 1 and str(folder) in done.stderr
    temporary = done.stderr.partition("is kept in ")[2].split()[0]
    assert "dovetail-cache-" in temporary and not Path(temporary).exists()


def test_a_child_forked_while_folders_are_locked(tmp_path: Path) -> None:
    """The child has a copy of the descriptor by which its parent holds the lock."""
    folder = tmp_path / "cache"
    cache_folders.make_folder(folder)
    with cache_folders._locked(folder, fcntl.LOCK_EX):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            with cache_folders._locked(folder, fcntl.LOCK_EX) as locked:  # (it waits)
                os._exit(0 if locked else 1)
        time.sleep(0.2)
    assert os.waitpid(child, 0)[1] == 0
