"""What a handler of signals raises while a frame is compiled reaches the caller."""

from __future__ import annotations

import gc
import random
import signal
import warnings
import weakref

import pytest
import torch
from dovetail_capture import optimize, run_graph
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class OutOfTime(Exception):
    """What the handler raises."""


@pytest.fixture
def alarm():
    """Give a function that sends the signal, whose handler raises; put the handler back."""

    def handler(number, frame):
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield lambda: signal.raise_signal(signal.SIGALRM)
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


def program(t):
    return t.sin() + 1


def _caught(send):
    try:
        send()
    except Exception as error:
        error.with_traceback(None)


def _in_a_callback(send):
    class Target:
        pass

    target = Target()
    reference = weakref.ref(target, lambda _: send())
    del target
    return reference


def _replaced(send):
    try:
        send()
    except OutOfTime as error:
        raise AssertionError("a mistake of the compiler") from error


@pytest.mark.parametrize("where", [lambda send: send(), _caught, _in_a_callback, _replaced])
@pytest.mark.parametrize("on_error", ["raise", "run_uncompiled"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_error_of_a_handler_is_raised(alarm, where, on_error):
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        if len(graphs) == 1:
            where(alarm)
        return gm.forward

    run = optimize(program, backend, on_error=on_error)
    with pytest.raises(OutOfTime):
        run(torch.ones(2))
    run = optimize(program, backend, on_error=on_error)
    assert torch.equal(run(torch.ones(2)), program(torch.ones(2)))


def test_a_handler_that_is_replaced_while_a_frame_is_compiled_stays(alarm):
    def other(number, frame):
        pass

    def backend(gm, inputs):
        signal.signal(signal.SIGALRM, other)
        return gm.forward

    before = signal.getsignal(signal.SIGALRM)
    optimize(program, backend)(torch.ones(2))
    assert signal.getsignal(signal.SIGALRM) is other
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_is_raised():
    def backend(gm, inputs):
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            pass
        return gm.forward

    # Python installs its handler only where SIGINT is not ignored, as it is for background jobs.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            optimize(program, backend)(torch.ones(2))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_modes_do_not_outlive_an_interrupted_compile(alarm):
    """What is raised in the middle of a mode's exit leaves it on the stack."""

    class Interrupted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

        def __exit__(self, *error):
            alarm()

    class Function(TorchFunctionMode):
        def __exit__(self, *error):
            alarm()

    for mode in (Interrupted, Function):

        def backend(gm, inputs, mode=mode):
            with mode():
                return gm.forward

        with pytest.raises(OutOfTime):
            optimize(program, backend)(torch.ones(2))
        assert not torch._C._len_torch_dispatch_stack()
        assert not torch._C._len_torch_function_stack()


def test_an_alarm_at_any_time_reaches_the_caller(alarm):
    """However far a capture is: each is interrupted at another time, or has ended; and what it
    replaced of Python is put back."""
    text = "def long(t):\n    for step in range(4):\n        t = t.sin() * 1.5 + step\n    return t"
    sent = []
    handler = signal.getsignal(signal.SIGALRM)

    def noted(number, frame):
        sent.append(number)
        handler(number, frame)

    signal.signal(signal.SIGALRM, noted)
    shown = warnings.filters, warnings.showwarning
    raised, randomly = 0, random.Random(0)
    gc.collect()
    gc.disable()  # (what a callback of what is collected raises goes to nobody)
    for _ in range(500):
        run = optimize(_function(text), run_graph)
        try:
            signal.setitimer(signal.ITIMER_REAL, 10 ** randomly.uniform(-4.7, -2.3))
            run(torch.ones(2))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except OutOfTime:
            raised += 1
        assert warnings.filters is shown[0] and warnings.showwarning is shown[1]
        assert signal.getsignal(signal.SIGALRM) is noted
        assert torch._C._is_torch_function_enabled()
    gc.enable()
    signal.signal(signal.SIGALRM, handler)
    assert raised == len(sent) and raised > 0


def _function(text):
    names = {}
    exec(text, names)
    return names["long"]
