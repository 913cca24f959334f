"""A compiler as a process with a time limit, and the shared object that it leaves."""

from __future__ import annotations

import os
import platform
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

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
