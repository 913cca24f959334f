"""`ProcessLock` between threads, and in a child of a process in which another thread holds it."""

from __future__ import annotations

import os
import signal
import threading

from dovetail_guards.process_lock import ProcessLock


def test_one_thread_at_a_time() -> None:
    lock, inside, most = ProcessLock(), [0], [0]

    def work() -> None:
        for _ in range(200):
            with lock, lock:  # it is reentrant
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_child_finds_it_free() -> None:
    lock, held, go = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with lock, lock:
            os._exit(7)
    _, status = os.waitpid(child, 0)
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7
    with lock:  # and the parent's is as it was
        pass
