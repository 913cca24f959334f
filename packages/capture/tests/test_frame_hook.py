"""The frame hook by itself: frames swapped for other code, with Python guards."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref

import pytest
from dovetail_capture import _frame_hook as hook


def always(args, func):
    return True


def copied(code, **changes):
    """Other code that does the same (or more), in another frame size."""
    return code.replace(co_stacksize=code.co_stacksize + 50, **changes)


def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


class Swapper:
    """Replaces every frame defined in this file by an enlarged copy of its code."""

    def __init__(self, only=None):
        self.context = hook.Context(self.miss)
        self.seen = []
        self.only = only

    def miss(self, code, func, args):
        if code.co_filename != __file__ or (self.only and code.co_name not in self.only):
            return hook.SKIP
        self.seen.append((code.co_name, args))
        return always, copied(code)

    def __call__(self, function):
        return hook.Switched(function, self.context)


def test_arguments_of_all_kinds():
    def function(a, b=2, /, c=3, *rest, d, e=5, **more):
        return a, b, c, rest, d, e, more

    swap = Swapper()
    swapped = swap(function)
    for _ in range(2):
        assert swapped(1, d=4) == function(1, d=4)
        assert swapped(1, 2, 3, 4, 5, d=6, e=7, f=8) == function(1, 2, 3, 4, 5, d=6, e=7, f=8)
        with pytest.raises(TypeError):
            swapped()
    assert swap.seen == [("function", (1, 2, 3, 4, 5, (), {}))]


def test_cell_arguments_and_closures():
    def outer(a, b):
        total = a

        def inner(c):
            nonlocal total
            total += b + c
            a_cell = [a]
            return total, a_cell

        b += 1
        return inner(1), inner(2), total

    assert Swapper()(outer)(1, 2) == outer(1, 2)


def test_a_replacement_may_use_free_variables_or_none():
    secret = [1]

    def function(x):
        return secret, x

    def other(x):
        return "other", x

    answer = [function.__code__.replace(co_consts=(*function.__code__.co_consts, "more"))]
    context = hook.Context(lambda code, func, args: (always, answer[0]))
    assert hook.Switched(function, context)(1) == (secret, 1)
    context.reset()
    answer[0] = other.__code__
    assert hook.Switched(function, context)(1) == ("other", 1)
    with pytest.raises(ValueError, match="free variables"):
        context.reset()
        answer[0] = function.__code__.replace(co_freevars=("renamed",))
        hook.Switched(function, context)(1)


def test_other_signatures_are_refused():
    def function(x):
        return x

    context = hook.Context(lambda code, func, args: (always, (lambda x, y: x).__code__))
    with pytest.raises(ValueError, match="another signature"):
        hook.Switched(function, context)(1)
    context = hook.Context(lambda code, func, args: 5)
    with pytest.raises(TypeError, match="frame callback returns"):
        hook.Switched(function, context)(1)


def test_methods_recursion_and_the_recursion_limit():
    class Node:
        def __init__(self, depth):
            self.child = Node(depth - 1) if depth else None

        def size(self):
            return 1 + (self.child.size() if self.child else 0)

    assert Swapper()(lambda: Node(100).size())() == 101

    def endless(n):
        return endless(n + 1)

    with pytest.raises(RecursionError):
        Swapper()(endless)(0)

    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    assert Swapper()(count)(800) == 800  # 3.12 counts C recursion apart: it needs more room


@pytest.mark.parametrize("size", [1, 500, 3000, 40000])
def test_frames_that_do_not_fit_the_chunk_run_as_functions(size):
    def function(a, *rest, k=1, **more):
        return a, rest, k, more

    def deep(n):
        return function(1, 2, k=3, z=4) if n == 0 else deep(n - 1)

    def miss(code, func, args):
        if code is function.__code__:
            return always, code.replace(co_stacksize=size)
        return hook.SKIP

    for depth in range(60):
        context = hook.Context(miss)
        assert hook.Switched(deep, context)(depth) == (1, (2,), 3, {"z": 4})

    def raising(n):
        raise KeyError(n)

    def miss_raising(code, func, args):
        return (always, code.replace(co_stacksize=size)) if "raising" in code.co_name else hook.SKIP

    with pytest.raises(KeyError):
        hook.Switched(raising, hook.Context(miss_raising))(1)


def test_exceptions_have_the_right_traceback():
    def inner(x):
        return 1 / x

    def outer(x):
        return inner(x) + 1

    with pytest.raises(ZeroDivisionError) as info:
        Swapper()(outer)(0)
    names = [frame.name for frame in traceback.extract_tb(info.value.__traceback__)]
    assert names[-2:] == ["outer", "inner"]
    assert traceback.extract_tb(info.value.__traceback__)[-1].line == "return 1 / x"


@pytest.mark.parametrize("setter", [sys.settrace, sys.setprofile])
def test_tracing_sees_the_frames(setter):
    def function(x):
        y = x + 1
        return y

    events = []

    def tracer(frame, event, arg):
        if frame.f_code.co_name == "function":
            events.append(event)
        return tracer

    swapped = Swapper()(function)
    swapped(1)
    setter(tracer)
    try:
        assert swapped(1) == 2
    finally:
        setter(None)
    assert events[0] == "call" and events[-1] == "return"


def test_generators_and_coroutines_are_left_alone():
    def generate(n):
        yield from range(n)

    async def coroutine():
        return 5

    def use():
        try:
            coroutine().send(None)
        except StopIteration as stop:
            return list(generate(3)), [i for i in (j for j in range(2))], stop.value

    swap = Swapper()
    assert swap(use)() == ([0, 1, 2], [0, 1], 5)
    assert "generate" not in dict(swap.seen) and "coroutine" not in dict(swap.seen)


def test_threads_have_their_own_context():
    def work(n):
        return sum(helper(i) for i in range(n)) + helper(n)

    def helper(i):
        return i * 2

    on, off = [], []
    swap = Swapper()

    def run(function, results):
        for _ in range(200):
            results.append(function(20))

    threads = [
        threading.Thread(target=run, args=args)
        for args in [(swap(work), on), (work, off), (swap(work), on)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(on) == set(off) == {work(20)} and len(on) == 400
    assert not hook.installed()


def test_nested_contexts_and_switching_off():
    def leaf():
        return hook.active()

    first, second = Swapper(), Swapper()
    inner = second(leaf)
    quiet = hook.Switched(leaf, None)

    def outer():
        return leaf(), inner(), quiet(), leaf()

    assert first(outer)() == (first.context, second.context, None, first.context)
    assert hook.active() is None and not hook.installed()
    assert [name for name, _ in first.seen] == ["outer", "leaf"]
    assert [name for name, _ in second.seen] == ["leaf"]


def test_off_mark_switches_capture_off_below():
    def leaf():
        return hook.active()

    def wrapper():
        return leaf()

    def outer():
        return wrapper(), leaf()

    def miss(code, func, args):
        return hook.OFF if code is wrapper.__code__ else hook.SKIP

    context = hook.Context(miss)
    for _ in range(2):
        assert hook.Switched(outer, context)() == (None, context)


def test_a_callback_or_guard_that_raises_ends_the_call():
    def function(x, *rest):
        return x

    def fail(*args):
        raise OSError("no")

    context = hook.Context(fail)
    for _ in range(3):
        with pytest.raises(OSError, match="no"):
            hook.Switched(function, context)(object(), 1, 2)
    context = hook.Context(lambda code, func, args: (fail, copied(code)))
    assert hook.Switched(function, context)(1) == 1  # a fresh entry runs without its guard
    with pytest.raises(OSError, match="no"):
        hook.Switched(function, context)(1)
    assert hook.active() is None and not hook.installed()


def test_a_guard_may_reset_its_own_cache():
    def function(x):
        return x

    def guard(args, func):
        context.reset()
        gc.collect()
        return True

    context = hook.Context(lambda code, func, args: (guard, copied(code)))
    swapped = hook.Switched(function, context)
    gc.freeze()  # only what is made here is looked through, 20 times
    try:
        assert [swapped(i) for i in range(20)] == list(range(20))
    finally:
        gc.unfreeze()


def test_entries_are_tried_in_order_and_closing_stops_the_callback():
    def function(x):
        return "plain"

    calls = []

    def miss(code, func, args):
        calls.append(args)
        kind = type(args[0])
        new = code.replace(
            co_consts=tuple(kind.__name__ if c == "plain" else c for c in code.co_consts)
        )
        return (lambda args, func: type(args[0]) is kind), new

    context = hook.Context(miss)
    swapped = hook.Switched(function, context)
    assert [swapped(v) for v in (1, "a", 2, "b")] == ["int", "str", "int", "str"]
    assert len(calls) == 2 and len(context.entries(function.__code__)) == 2
    context.close(function.__code__)
    assert swapped(1.5) == "plain" and swapped(3) == "int" and len(calls) == 2
    assert context.is_closed(function.__code__) and context.codes() == [function.__code__]
    context.reset()
    assert swapped(1.5) == "float" and not context.is_closed(function.__code__)


def test_codes_contexts_and_entries_die():
    class Marker:
        pass

    def build():
        namespace = {}
        exec("def function(x):\n    return x", namespace)
        return namespace["function"]

    marker = Marker()
    alive = weakref.ref(marker)

    def miss(code, func, args, held=marker):
        return (lambda args, func, held=held: True), copied(code)

    context = hook.Context(miss)
    function = build()
    code = weakref.ref(function.__code__)
    assert hook.Switched(function, context)(1) == 1
    del function
    gc.collect()
    assert code() is None and context.codes() == []
    function = build()
    assert hook.Switched(function, context)(1) == 1
    del marker, miss
    context_alive = weakref.ref(context)
    del context
    gc.collect()
    assert context_alive() is None and alive() is None
    assert function(1) == 1


def test_a_cycle_through_a_context_is_collected():
    class Owner:
        def miss(self, code, func, args):
            return (lambda args, func: self is not None), copied(code)

    owner = Owner()
    owner.context = hook.Context(owner.miss)
    owner.call = hook.Switched(lambda x: x, owner.context)
    assert owner.call(1) == 1
    alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is None


def test_bound_fills_in_static_inputs():
    def function(*args):
        return args, hook.active()

    bound = hook.Bound(function, (None, "p", None, "q"), (0, 2))
    assert bound(1, 2) == ((1, "p", 2, "q"), None)
    assert hook.Bound(function, (None,) * 2, (0, 1))(1, 2)[0] == (1, 2)
    many = hook.Bound(function, ("p",) * 500 + (None,), (500,))
    assert many(7)[0] == ("p",) * 500 + (7,)
    with pytest.raises(TypeError, match="takes 2 positional inputs"):
        bound(1)
    with pytest.raises(ValueError, match="must rise"):
        hook.Bound(function, (None, None), (1, 0))
    context = hook.Context(lambda code, func, args: hook.SKIP)
    assert hook.Switched(lambda: bound(1, 2), context)() == ((1, "p", 2, "q"), None)


def test_switched_is_like_a_function():
    class Owner:
        swapped = Swapper()(lambda self, x: (self, x))

    owner = Owner()
    assert owner.swapped(1) == (owner, 1) and Owner.swapped(owner, 2) == (owner, 2)
    switched = Swapper()(lambda: None)
    switched.note = 1
    assert switched.note == 1 and weakref.ref(switched)() is switched


def least_growth(work):
    """By how many KiB the process grew, the least of three times: a leak grows each time."""
    grown = []
    for _ in range(3):
        gc.collect()
        before = resident_kib()
        work()
        gc.collect()
        grown.append(resident_kib() - before)
        if grown[-1] < 1000:
            break
    return min(grown)


def test_many_calls_use_constant_memory():
    def function(x, *rest, **more):
        return [x]

    def big(x, *rest, **more):
        return [x]

    contexts = []
    for size in (10, 40000):  # in place, and as a function
        new = big.__code__.replace(co_stacksize=size)
        context = hook.Context(
            lambda code, func, args, new=new: (
                (always, new) if code.co_name == "function" else hook.SKIP
            )
        )
        contexts.append(hook.Switched(function, context))

    def run(count):
        for _ in range(count):
            for swapped in contexts:
                swapped(object(), 1, k=2)

    run(2000)
    gc.collect()
    objects = len(gc.get_objects())
    assert least_growth(lambda: run(60000)) < 3500  # one leaked object a call would be 6,700
    gc.collect()
    assert len(gc.get_objects()) - objects < 100


def test_a_million_hits_use_constant_memory():
    def function(x, y=2):
        return x

    swapped = hook.Switched(
        function,
        hook.Context(lambda code, func, args: (always, function.__code__.replace(co_name="other"))),
    )

    def run(count):
        for i in range(count):
            swapped(i, y=i)

    run(1000)
    assert (
        least_growth(lambda: run(1_000_000)) < 3500
    )  # a byte a call would be 977, an object 27,000


def test_reference_counts_of_arguments_and_codes_stay():
    def function(x):
        return None

    new = copied(function.__code__)
    context = hook.Context(lambda code, func, args: (always, new))
    swapped = hook.Switched(function, context)
    marker = object()
    swapped(marker)
    before = sys.getrefcount(marker), sys.getrefcount(new), sys.getrefcount(function.__code__)
    for _ in range(100):
        swapped(marker)
    after = sys.getrefcount(marker), sys.getrefcount(new), sys.getrefcount(function.__code__)
    assert before == after
