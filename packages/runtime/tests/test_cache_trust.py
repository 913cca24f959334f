"""What is found in the cache is loaded only if it is what this user stored there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpp_kernels import call, compiler, constant, knobs
from dovetail_runtime.cache_folders import UNFINISHED, cache_folders
from dovetail_runtime.cpp_build import CppBuilder
from dovetail_runtime.cpp_compiler import CppCompileError
from dovetail_runtime.disk_cache import DiskCache

KERNEL = constant("a", 1)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
NOBODY = 65534


def build(directory: Path, **more: str) -> int:
    """The value of a kernel, from the cache or compiled. What is loaded is closed again."""
    return call(CppBuilder(knobs(directory, **more)).build([KERNEL])["a"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the kernel in it."""
    directory = tmp_path_factory.mktemp("built")
    assert build(directory) == 1
    return directory


@pytest.fixture
def filled(built: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(built, tmp_path / "cache")
    return tmp_path / "cache"


def only(directory: Path, name: str) -> Path:
    (found,) = directory.rglob(name)
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for position in range(len(data) // 2, len(data), 97):
        data[position] ^= 16
    path.write_bytes(data)


def other_architecture(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[18:20] = (0xF3).to_bytes(2, "little")
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: os.truncate(p, p.stat().st_size // 2),
    "a byte short": lambda p: os.truncate(p, p.stat().st_size - 1),
    "flipped": flip,
    "another architecture": other_architecture,
    "another file": lambda p: p.write_text("int main() {}"),
    "a link": lambda p: (p.rename(p.with_name("b")), p.symlink_to(p.with_name("b"))),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "others may write": lambda p: p.chmod(0o777),
    "others may write to the entry": lambda p: p.parent.chmod(0o770),
}


@pytest.mark.parametrize("file", ["kernels.so", "where.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(file: str, damage: str, filled: Path) -> None:
    DAMAGES[damage](only(filled, file))
    with pytest.warns(RuntimeWarning, match="a damaged entry of the cache was removed"):
        assert build(filled) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert build(filled) == 1
    only(filled, file)


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "another file", "a folder"])
def test_damaged_records_are_made_again(damage: str, filled: Path) -> None:
    for record in filled.rglob("key.json"):
        DAMAGES[damage](record)
    with pytest.warns(RuntimeWarning, match=r"key\.json"):
        assert build(filled) == 1
    assert build(filled) == 1


def test_an_entry_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, "things", 1 << 20)
    one = cache.put([("n", "1")], lambda d: (d / "x").write_text("1"))
    two = cache.put([("n", "2")], lambda d: (d / "x").write_text("2"))
    one.remove()
    two.path.rename(one.path)
    with pytest.warns(RuntimeWarning, match="that of another entry"):
        assert cache.get([("n", "1")]) is None


@as_root
@pytest.mark.parametrize("what", ["kernels.so", "key.json", "where.json", "entry"])
def test_what_another_user_has_planted_is_not_loaded(what: str, filled: Path) -> None:
    found = list(filled.rglob("kernels.so" if what == "entry" else what))
    for path in found:
        os.chown(path.parent if what == "entry" else path, NOBODY, NOBODY)
    with pytest.warns(RuntimeWarning, match=f"belongs to user {NOBODY}"):
        assert build(filled) == 1
    assert {p.stat().st_uid for p in filled.rglob("*")} == {0}


@as_root
@pytest.mark.parametrize("level", ["", "cpp"])
def test_a_folder_of_another_user_is_not_used(level: str, filled: Path) -> None:
    before = {p.stat().st_mtime_ns for p in filled.rglob("*.so")}
    os.chown(filled / level, NOBODY, NOBODY)
    cache_folders().__init__()  # type: ignore[misc]  # as in a new process
    with pytest.warns(RuntimeWarning, match=f"belongs to user {NOBODY}.*DOVETAIL_CACHE_DIR"):
        assert build(filled) == 1
    assert {p.stat().st_mtime_ns for p in filled.rglob("*.so")} == before


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        build(tmp_path / "new" / "cache")
    finally:
        os.umask(before)
    paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(paths) > 5
    assert not [p for p in paths if stat.S_IMODE(p.stat().st_mode) & 0o077]


KILLED = """
import os, sys
from pathlib import Path
from dovetail_runtime.disk_cache import DiskCache
def fill(directory):
    (directory / "x").write_text("half")
    print("filling", flush=True)
    sys.stdin.read() if sys.argv[2] == "lives" else os.kill(os.getpid(), 9)
DiskCache(Path(sys.argv[1]), "cpp", 1 << 20).put([("n", "1")], fill)
"""


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """And not what a living one is about to make."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(
        [*command, "lives"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as alive:
        assert alive.stdout is not None and alive.stdout.readline() == "filling\n"
        (living,) = tmp_path.rglob(f"{UNFINISHED}*")
        killed = subprocess.run([*command, "dies"], stdout=subprocess.PIPE, check=False)
        assert killed.returncode == -9
        assert len(list(tmp_path.rglob(f"{UNFINISHED}*"))) == 2
        assert build(tmp_path) == 1
        assert list(tmp_path.rglob(f"{UNFINISHED}*")) == [living]
        alive.communicate("")
    assert alive.returncode == 0
    assert not list(tmp_path.rglob(f"{UNFINISHED}*"))
    found = DiskCache(tmp_path, "cpp", 1 << 20).get([("n", "1")])
    assert found is not None and found.read("x") == b"half"


BROKEN = {
    "nothing": "true",
    "an empty file": ': > "$out"',
    "no shared object": 'echo "not a library" > "$out"',
    "half of one": 'g++ "$@" && truncate -s 8192 "$out"',
    "one without its last byte": 'g++ "$@" && truncate -s -1 "$out"',
    "another architecture": r"""g++ "$@" && printf '\363\0' |
        dd of="$out" bs=1 seek=18 conv=notrunc 2>/dev/null""",
    "a program": 'echo "int main() {}" | g++ -x c++ -no-pie - -o "$out"',
    "one that needs another": '''echo "void absent(); void (*p)() = absent;" |
        g++ -x c++ -shared -fPIC - -o "$out"''',
}


@pytest.mark.parametrize("made", BROKEN)
def test_what_a_broken_compiler_makes_is_not_kept(made: str, tmp_path: Path) -> None:
    """Nor found by a good one of the same name and version."""
    path = tmp_path / "g++"
    command = compiler(path, BROKEN[made])
    with pytest.raises(CppCompileError, match="no shared object that can be loaded"):
        build(tmp_path / "cache", DOVETAIL_CXX=command)
    assert not list((tmp_path / "cache").rglob("kernels.so"))
    compiler(path, 'exec g++ "$@"')
    assert build(tmp_path / "cache", DOVETAIL_CXX=command) == 1


def test_compilers_that_tell_one_version_share_no_entry(tmp_path: Path) -> None:
    wrong = compiler(tmp_path / "wrong", 'exec g++ -Dhelper=other "$@"')
    right = compiler(tmp_path / "right", 'exec g++ "$@"')
    for command in (wrong, right):
        assert build(tmp_path / "cache", DOVETAIL_CXX=command) == 1
    assert len(list(tmp_path.rglob("kernels.so"))) == 2


def test_a_compiler_with_arguments(tmp_path: Path) -> None:
    wrapper = tmp_path / "cache wrapper"
    wrapper.write_text('#!/bin/sh\necho "$@" >> "$0.log"\nexec "$@"\n')
    wrapper.chmod(0o755)
    command = f"'{wrapper}' g++ -DNOTHING"
    assert build(tmp_path / "cache", DOVETAIL_CXX=command) == 1
    called = Path(f"{wrapper}.log").read_text().splitlines()
    assert called[0] == "g++ -DNOTHING --version" and "kernels.cpp" in called[1]


def test_a_hung_compiler_is_ended(tmp_path: Path) -> None:
    """With what it has started, and that holds its pipes."""
    command = compiler(tmp_path / "g++", f"sleep 600 & echo $! > {tmp_path}/child; wait")
    started = time.monotonic()
    with pytest.raises(CppCompileError, match="within 1 seconds, the limit that DOVETAIL_COMPILE"):
        build(tmp_path / "cache", DOVETAIL_CXX=command, DOVETAIL_COMPILE_SECONDS="1")
    assert time.monotonic() - started < 60
    child = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    assert not child.exists() or child.read_text().split()[2] in "ZX"
    assert not list(tmp_path.rglob(f"{UNFINISHED}*"))


def test_a_damaged_file_is_not_read(tmp_path: Path) -> None:
    cache, key = DiskCache(tmp_path, "things", 1 << 20), [("n", "1")]
    flip(cache.put_files(key, {"x.bin": b"what was stored"}).path / "x.bin")
    damaged = cache.get(key)
    assert damaged is not None
    with pytest.warns(RuntimeWarning, match=r"x\.bin is not what was stored"):
        assert damaged.read("x.bin") is None
    cache.put_files(key, {"x.bin": b"what was stored"})
    again = cache.get(key)
    assert again is not None and again.read("x.bin") == b"what was stored"
    assert torch.is_grad_enabled()
