"""Compiling where processes fork and end, and where several threads are at work."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

FORK = """
import os, signal, sys, threading, torch, dovetail
compiling, go = threading.Event(), threading.Event()
in_backend = sys.argv[1] == "in the backend"
def backend(gm, inputs):
    compiling.set()
    go.wait(60)
    return gm.forward
def f(x):
    return torch.softmax(x * 2, -1)
def g(x):
    return x.sin() + 1
def in_child(call, eager, x):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        go.set()
        os._exit(0 if torch.allclose(call(x), eager(x)) else 3)
    return os.waitpid(pid, 0)[1]
x = torch.ones(3)
compiled = dovetail.compile(f, backend=backend) if in_backend else dovetail.compile(f)
other = dovetail.compile(g)
thread = threading.Thread(target=lambda: [compiled(x), other(x)])
thread.start()
states = []
if in_backend:
    compiling.wait(60)
    states += [in_child(compiled, f, x), in_child(other, g, x)]
else:  # wherever it is at that time
    while thread.is_alive():
        states += [in_child(compiled, f, x), in_child(other, g, x)]
    states += [in_child(other, g, torch.ones(5, 5))]
go.set()
thread.join()
assert torch.allclose(compiled(x), f(x))
print("children:", set(states))
"""


@pytest.mark.parametrize("when", ["in the backend", "at any time"])
def test_a_fork_while_another_thread_compiles(when: str) -> None:
    """The child finds no lock held by a thread that it does not have."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, when],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "children: {0}\n", (done.stdout, done.stderr)


EXIT = """
import atexit, sys, threading, torch, dovetail
def f(x):
    return torch.softmax(x.sin() * 3, -1)
compiled = dovetail.compile(f)
if sys.argv[1] == "another before":
    dovetail.compile(lambda x: x.cos() * 2)(torch.ones(3))
def end():
    x = torch.ones(3, 4)
    assert torch.allclose(compiled(x), f(x))
    print(compiled.capture_context.log.counters["graph"])
atexit.register(end)
"""


@pytest.mark.parametrize("before", ["nothing before", "another before"])
def test_the_first_call_at_exit(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, before], capture_output=True, text=True, check=False
    )
    assert done.stdout == "1\n" and not done.stderr, (done.stdout, done.stderr)


def test_a_module_that_another_thread_replaces_during_capture() -> None:
    """It is captured again: what is there at the end is what is compiled."""
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    graphs = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        if len(graphs) == 1:
            thread = threading.Thread(target=model.__setitem__, args=(0, nn.Linear(2, 2)))
            thread.start()
            thread.join()
        return gm.forward

    compiled = dovetail.compile(model, backend=backend)
    x = torch.ones(1, 2)
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
    assert len(graphs) == 2 and compiled.capture_context.log.counters["graph"] == 1


def test_threads_compile_the_same_and_different_functions() -> None:
    """With kernels: one key is compiled once."""
    barrier = threading.Barrier(6)

    def shared(x: Tensor) -> Tensor:
        return torch.softmax(x * 3, -1).sum(0)

    whole = dovetail.compile(shared)

    def work(number: int) -> bool:
        def own(x: Tensor) -> Tensor:
            return (x + number).sin().mean(-1)

        mine = dovetail.compile(own)
        x = torch.ones(4, 8) * number
        barrier.wait()
        pairs = [(mine(x), own(x)), (whole(x), shared(x)), (mine(x), own(x))]
        return all(torch.allclose(a, b) for a, b in pairs)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
    assert whole.capture_context.log.counters["graph"] == 1


BEGUN = """
import os, signal, sys, random, torch, dovetail
number = random.random()  # in no cache
def f(x):
    return (x * number).sin()
compiled = dovetail.compile(f)
x = torch.randn(8, 8, requires_grad=True)
y = compiled(x)  # the backward's kernels are being built now
pid = os.fork()
if pid == 0:
    signal.alarm(60)
(got,) = torch.autograd.grad(y, x, torch.ones_like(y))
wanted = (x * number).cos() * number
same = torch.allclose(got, wanted, atol=1e-6)
if pid == 0:
    os._exit(0 if same else 3)
assert same
print("child:", os.waitpid(pid, 0)[1])
"""


def test_a_fork_while_a_backward_is_built() -> None:
    """The child builds it itself."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGUN], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "child: 0\n", done.stderr[-2000:]
