"""Several threads call and compile at once: every answer is eager's, one key is compiled once,
nothing waits for ever, and the hook is off where it was not switched on."""

from __future__ import annotations

import sys
import threading
from random import Random

import pytest
import torch
from dovetail_capture import _frame_hook, optimize, run_graph
from dovetail_capture import reset as reset_all

THREADS = 8
SIZES = range(2, 8)


@pytest.fixture(autouse=True)
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    yield
    sys.setswitchinterval(before)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.steps = [torch.nn.ReLU(), torch.nn.Tanh()]

    def forward(self, x):
        for step in self.steps:
            x = step(self.linear(x))
        return x


def helper(x, k):
    return x * k + 1


def loops(x):
    for k in range(3):
        x = helper(x, k)
    return x


def breaks(x):
    y = x + 1
    if y.sum() > 10:  # a branch on a value: the graph breaks
        y = y * 2
    return helper(y, 4)


def together(workers, seconds=60):
    """Run them all at once; what they raise is raised here, and so is not coming to an end."""
    gate = threading.Barrier(len(workers))
    failures = []

    def guarded(work):
        try:
            gate.wait()
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(w,), daemon=True) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    if failures:
        raise failures[0]
    assert not _frame_hook.installed() and _frame_hook.active() is None


def caller(pairs, rounds, seed):
    """Calls compiled functions at random and compares them with their originals."""

    def work():
        r = Random(seed)
        for _ in range(rounds):
            plain, compiled = r.choice(pairs)
            x = torch.full((r.choice(SIZES), 3), float(r.randrange(5)))
            with torch.set_grad_enabled(r.random() < 0.5):
                torch.testing.assert_close(compiled(x), plain(x), rtol=0, atol=0)

    return work


def bystander(stop):
    """Runs Python all the time, and is never looked at."""

    def work():
        while not stop.is_set():
            assert helper(2, 3) == 7
            assert _frame_hook.active() is None

    return work


def stress(rounds):
    net = Net()
    shared = [
        (f, optimize(f, run_graph, dynamic=False, recompile_limit=100))
        for f in (loops, breaks, net)
    ]
    stop = threading.Event()
    left = [THREADS]

    def last(work):
        def run():
            try:
                work()
            finally:
                left[0] -= 1
                if not left[0]:
                    stop.set()

        return run

    workers = []
    for seed in range(THREADS):
        # ... and functions of its own, with the code that the others capture too
        own = [
            (f, optimize(f, run_graph, dynamic=False, recompile_limit=100)) for f in (loops, net)
        ]
        workers.append(last(caller([*shared, *own], rounds, seed)))
    together([*workers, bystander(stop)])
    keys = len(SIZES) * 2  # sizes, and with or without gradients
    for _, compiled in (shared[0], shared[2]):
        log = compiled.capture_context.log
        assert log.counters["frame"] <= keys and not log.counters["limit"], log.as_text()
    return shared


def test_functions_are_shared_between_threads():
    shared = stress(60)
    for _, compiled in shared:
        assert compiled.capture_context.log.counters["frame"] > 2


def test_one_key_is_compiled_once():
    seen = []

    def slow_backend(gm, examples):
        seen.append(examples[0].shape[0])
        threading.Event().wait(0.02)
        return gm.forward

    compiled = optimize(loops, slow_backend, dynamic=False, recompile_limit=100)

    def work():
        for size in SIZES:
            x = torch.ones(size, 3)
            assert torch.equal(compiled(x), loops(x))

    together([work] * THREADS)
    assert sorted(seen) == list(SIZES)


def test_threads_compile_while_another_forgets():
    compiled = optimize(breaks, run_graph, recompile_limit=10**6)

    def forget():
        for _ in range(30):
            compiled.capture_context.reset()
            reset_all()

    together([*(caller([(breaks, compiled)], 30, seed) for seed in range(4)), forget])


def test_guards_that_run_python_in_several_threads():
    """A guard that asks Python lets other threads in, in the middle of the check."""

    class Odd:
        def __getattr__(self, name):
            threading.Event().wait(0.0002)
            return 3

    class Holder:
        def __init__(self, count):
            self.count = count

    odd = Odd()
    holders = [Holder(k) for k in range(4)]

    def program(x, holder):
        return x * odd.anything + holder.count

    compiled = optimize(program, run_graph, dynamic=False, recompile_limit=100)

    def work():
        for k in range(40):
            holder = holders[k % 4]
            assert torch.equal(compiled(torch.ones(2), holder), torch.full((2,), 3.0 + k % 4))

    together([work] * THREADS)


def test_a_backend_that_calls_a_compiled_function():
    inner = optimize(helper, run_graph)

    def backend(gm, examples):
        inner(torch.ones(2), 2)
        return gm.forward

    compiled = optimize(loops, backend, dynamic=False, recompile_limit=100)

    def work():
        for size in SIZES:
            x = torch.ones(size, 3)
            assert torch.equal(compiled(x), loops(x))
            assert torch.equal(inner(x, size), helper(x, size))

    together([work] * THREADS)


@pytest.mark.slow
def test_long_stress():
    for _ in range(10):
        stress(600)
