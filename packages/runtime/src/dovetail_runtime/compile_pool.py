"""A pool of warm worker processes.

A worker is a fresh interpreter (never a fork of this process, which may hold threads and a GPU)
that reads one JSON job a line and answers one JSON line. It is started when first needed, or told
to be warm, is kept for as long as there is work now and then, and ends when its input closes, that
is at the latest with this process.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
Job = Mapping[str, Any]
Reply = dict[str, Any]


_IDLE_SECONDS = 300.0  # after which a worker's memory is given back


class WorkerDied(RuntimeError):
    """A worker process ended in the middle of a job."""


class JobFailed(RuntimeError):
    """A worker says that a job cannot be done; the message is the worker's."""


class JobTooLong(JobFailed):
    """A job was not done within the time limit; its worker was ended."""


def finished(value: T) -> Future[T]:
    """What a job would give, without one."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


@dataclass
class _Task:
    job: Job
    future: Future[Reply]


class CompilePool:
    """At most `workers` processes of `command`; `submit` may be called from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        workers: int,
        extra_environment: Mapping[str, str] | None = None,
        *,
        seconds: float | None = None,
    ) -> None:
        """`extra_environment` is added to this process's; a job that takes longer than `seconds`
        fails (None: no limit)."""
        self._command = list(command)
        self._seconds = seconds
        self._limit = max(1, workers)
        self._environment = {**os.environ, **extra_environment} if extra_environment else None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        self._idle = 0
        self._closed = False

    def submit(self, job: Job) -> Future[Reply]:
        """Give `job` to the next free worker."""
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the compile pool is closed")
            self._waiting += 1
            if self._waiting > self._idle and len(self._threads) < self._limit:
                self._start_thread()
        self._tasks.put(_Task(job, future))
        return future

    def warm(self, count: int) -> None:
        """Have `count` workers, or all that there may be, started before there is work."""
        with self._lock:
            while len(self._threads) < min(count, self._limit) and not self._closed:
                self._start_thread()

    def close(self) -> None:
        """Finish what is queued, then end the workers."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._tasks.put(None)
        for thread in threads:
            thread.join()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="dovetail-worker", daemon=True)
        self._threads.append(thread)
        self._idle += 1
        thread.start()

    def _serve(self) -> None:
        """One worker process, one job at a time."""
        worker = _Worker(self._command, self._environment, self._seconds)
        try:
            while (task := self._next()) is not None:
                if task.future.set_running_or_notify_cancel():
                    try:
                        task.future.set_result(worker.do(task.job))
                    except Exception as error:
                        task.future.set_exception(error)
                        if isinstance(error, WorkerDied | JobTooLong):
                            worker.stop()
                            worker = _Worker(self._command, self._environment, self._seconds)
                with self._lock:
                    self._idle += 1
        finally:
            worker.stop()

    def _next(self) -> _Task | None:
        """The next job of a worker; None if it is to end."""
        while True:
            try:
                task, late = self._tasks.get(timeout=_IDLE_SECONDS), False
            except queue.Empty:
                task, late = None, True
            with self._lock:
                if late and self._waiting:
                    continue  # a job was given to the pool, and is about to be in the queue
                self._idle -= 1
                if task is None:
                    self._threads.remove(threading.current_thread())
                else:
                    self._waiting -= 1
                return task


class _Worker:
    """One process and the tail of what it wrote to stderr."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, seconds: float | None
    ) -> None:
        self._seconds = seconds
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment,
            start_new_session=True,
        )
        self._stderr: collections.deque[str] = collections.deque(maxlen=40)
        self._reader = threading.Thread(target=self._read_stderr, daemon=True)
        self._reader.start()

    def do(self, job: Job) -> Reply:
        assert self._process.stdin is not None and self._process.stdout is not None
        late = threading.Event()
        watch = threading.Timer(self._seconds or 0, self._end, [late])
        watch.daemon = True
        try:
            if self._seconds is not None:
                watch.start()
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            watch.cancel()
        if not line and late.is_set():
            raise JobTooLong(
                f"it was not done within {self._seconds:g} seconds, the limit that "
                "DOVETAIL_COMPILE_SECONDS sets; its worker was ended"
            )
        if not line:
            status = self._process.wait()
            self._reader.join(timeout=1)
            tail = "".join(self._stderr)
            raise WorkerDied(f"a worker process ended with status {status}\n{tail}")
        reply: Reply = json.loads(line)
        if "error" in reply:
            raise JobFailed(reply["error"])
        return reply

    def _end(self, late: threading.Event) -> None:
        late.set()
        # With what it started: an assembler, say.
        os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._stderr.append(line)
        self._process.stderr.close()
