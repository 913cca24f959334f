"""The machine's C++ compiler: which one it is, a process of it with a time limit, and the shared
object that it leaves."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dovetail_runtime.disk_cache import KeyParts

# Changes whenever the calling convention of plan.CppKernel does.
ABI = "cpp-1"

# -fno-math-errno and -fno-trapping-math let loops over sqrt and comparisons vectorise; neither
# changes a result. Contraction (a*b+c in one rounding) only happens where the source asks for it.
# Integers wrap around, as eager's do: else the compiler takes the square of one for positive.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fwrapv", "-fno-plt", "-fPIC", "-shared", "-g0", "-w",
    "-fvisibility=hidden",
)  # fmt: skip

_VERSION_SECONDS = 60.0
_ELF_HEADER = struct.Struct("<4sBB10xHH4xQQQ6xHHHH")  # of 64 bits, little-endian
_SHARED_OBJECT = 3
_MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243, "ppc64le": 21}


class CompilerProcesses:
    """The compilers that run at present. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()

    def run(
        self, command: Sequence[str], seconds: float | None, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `command`, and end it and all that it started after `seconds` (None: never). Raises
        subprocess.TimeoutExpired then, and OSError if it cannot be started."""
        # A session of its own: a driver's children (cc1plus, as, ld) are ended with it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        with self._lock:
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            _end(process)
            process.communicate()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def end_all(self) -> None:
        """End every one of them; whoever waits for it sees it fail."""
        with self._lock:
            for process in self._running:
                _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def check_shared_object(path: Path) -> None:
    """Raise ValueError if a file is no whole shared object for this machine. (What is cut off, the
    loader maps all the same, and the process dies of it.)"""
    head = path.read_bytes()[: _ELF_HEADER.size]
    if len(head) < _ELF_HEADER.size or not head.startswith(b"\x7fELF"):
        raise ValueError("it is no shared object")
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little":
        return  # no layout that is known here
    if head[4:6] != b"\x02\x01" or int.from_bytes(head[18:20], "little") != machine:
        raise ValueError("it is for another architecture")
    fields = _ELF_HEADER.unpack(head)
    kind, section_table, section_size, sections = fields[3], fields[7], fields[10], fields[11]
    if kind != _SHARED_OBJECT:
        raise ValueError("it is no shared object")
    # The table of sections is the last thing in a file.
    if section_table + section_size * sections > path.stat().st_size:
        raise ValueError("it is cut off")


class CompilerNotFound(RuntimeError):
    """There is no C++ compiler to run."""


class CppCompileError(RuntimeError):
    """The compiler refused a kernel; the message holds what it said."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the words that call it, and what of it enters a cache key."""

    command: tuple[str, ...]
    version: str
    identity: str
    cpu_flags: str

    @staticmethod
    def find(command: str) -> Compiler:
        """The compiler that `command` calls, a program and maybe arguments of it ("ccache g++");
        `CompilerNotFound` says what to do if there is none."""
        words = shlex.split(command)
        path = shutil.which(words[0]) if words else None
        if path is None:
            raise CompilerNotFound(
                f"no C++ compiler {command!r} was found: CPU kernels need one. Install g++ 11 or "
                "newer (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or name "
                "another one in the environment variable DOVETAIL_CXX."
            )
        return _describe_compiler((path, *words[1:]), _identity((path, *words[1:])))

    def key(self) -> KeyParts:
        """What of the compiler and the machine decides what a source becomes."""
        return [
            ("abi", ABI),
            ("flags", " ".join(FLAGS)),
            ("compiler", self.version),
            ("program", self.identity),
            ("cpu", self.cpu_flags),
        ]


def _identity(command: tuple[str, ...]) -> str:
    """A command with the file, size and time of each program in it: two compilers may tell the same
    version."""
    words = []
    for word in command:
        path = shutil.which(word)
        if path is None:
            words.append(word)
            continue
        path = os.path.realpath(path)
        status = os.stat(path)
        words.append(f"{path} ({status.st_size} bytes, {status.st_mtime_ns} ns)")
    return " ".join(words)


@lru_cache(maxsize=8)
def _describe_compiler(command: tuple[str, ...], identity: str) -> Compiler:
    call = [*command, "--version"]
    try:
        run = CompilerProcesses().run(call, _VERSION_SECONDS, os.environ)
    except subprocess.TimeoutExpired:
        raise CompilerNotFound(
            f"{shlex.join(call)} did not end within {_VERSION_SECONDS} seconds"
        ) from None
    except OSError as error:
        raise CompilerNotFound(f"{shlex.join(call)} cannot be run: {error}") from None
    version = run.stdout.strip().partition("\n")[0]
    if run.returncode != 0 or not version:
        raise CompilerNotFound(f"{shlex.join(call)} failed: {run.stderr.strip()}")
    return Compiler(command, version, identity, _cpu_flags())


def _cpu_flags() -> str:
    """What `-march=native` looks at, as a digest and the model's name."""
    model, flags = platform.machine(), ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "CPU part"):
            model += f" {value.strip()}"
        elif name.strip() in ("flags", "Features"):
            flags += value.strip()
        elif not line and flags:
            break  # the other processors are the same
    return f"{model} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def run_compiler(
    compiler: Compiler,
    source: Path,
    output: Path,
    processes: CompilerProcesses,
    seconds: float | None,
) -> None:
    """Compile one translation unit into a shared object; what the compiler keeps for itself lies
    beside it. Raises `CppCompileError`, or OSError if the disk is full."""
    called = shlex.join(compiler.command)
    command = [*compiler.command, *FLAGS, str(source), "-o", str(output)]
    environment = {**os.environ, "TMPDIR": str(output.parent)}
    try:
        run = processes.run(command, seconds, environment)
    except subprocess.TimeoutExpired:
        raise CppCompileError(
            f"{called} did not end within {seconds:g} seconds, the limit that "
            "DOVETAIL_COMPILE_SECONDS sets, and was ended"
        ) from None
    except OSError as error:
        raise CppCompileError(f"{called} cannot be run: {error}") from None
    if run.returncode == 0:
        return
    for number in (errno.ENOSPC, errno.EDQUOT):
        if os.strerror(number) in run.stderr:
            raise OSError(number, os.strerror(number), str(output.parent))
    numbered = _around_first_error(source.read_text(), run.stderr, source.name)
    raise CppCompileError(
        f"{called} failed with status {run.returncode}\n{run.stderr[:4000]}\n{numbered}"
    )


def _around_first_error(source: str, message: str, name: str) -> str:
    match = re.search(re.escape(name) + r":(\d+):", message)
    if match is None:
        return ""
    wrong = int(match.group(1))
    lines = source.splitlines()
    first = max(1, wrong - 4)
    return "\n".join(
        f"{'>' if n == wrong else ' '}{n:5d} {lines[n - 1]}"
        for n in range(first, min(len(lines), wrong + 4) + 1)
    )
