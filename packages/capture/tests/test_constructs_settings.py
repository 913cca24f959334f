"""Constructs: settings of torch that change in a frame, chains of exceptions, the ends of
generators, and what outlives a capture."""

# ruff: noqa  (programs as users write them, odd ones included)

from __future__ import annotations

import contextlib
import gc
import traceback
import unittest
import weakref

import pytest
import torch
import torch.nn.functional as F
from dovetail_capture import graph_break, optimize
from torch.nn.attention import SDPBackend, sdpa_kernel
from construct_cases import Case, CountingBackend, Table, run_case, same

construct = Table()
asserts = unittest.TestCase()


# --- settings of torch ----------------------------------------------------------------------------


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        yield
    finally:
        torch.set_default_dtype(before)


@construct()
def a_default_dtype_for_a_block(x):
    with default_dtype(torch.float64):
        inside = torch.tensor([3.0, 1 + 2j]), torch.ones(2), torch.get_default_dtype()
    return inside, torch.ones(2), x + 1


@construct(graphs=None, breaks=None)
def a_default_dtype_around_a_break(x):
    with default_dtype(torch.float64):
        first = torch.ones(2) + 1
        print(torch.get_default_dtype())
        second = torch.ones(3) + 1
    return first, second, torch.ones(1)


@construct()
def a_default_dtype_that_is_refused(x):
    try:
        torch.set_default_dtype(torch.int64)
    except TypeError as error:
        return x + 1, str(error)


def _attention(x):
    q = x.reshape(1, 1, 2, 3)
    return F.scaled_dot_product_attention(q, q, q)


def _flags():
    return torch.nn.attention._cur_sdpa_kernel_backends(), torch._C._get_sdp_priority_order()


@construct()
def kernels_of_attention_for_a_block(x):
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION], set_priority=True):
        y, inside = _attention(x), _flags()
        with sdpa_kernel(SDPBackend.MATH):
            y, within = y + _attention(x), _flags()
    return y, str(inside), str(within), str(_flags())


@construct(graphs=None, breaks=None)
def kernels_of_attention_around_a_break(x):
    with sdpa_kernel(SDPBackend.MATH):
        y = _attention(x)
        print(_flags())
        y = y + _attention(x)
    return y, str(_flags())


@construct()
def kernels_of_attention_by_their_switches(x):
    torch.backends.cuda.enable_flash_sdp(False)
    off = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(True)
    return _attention(x), off, torch.backends.cuda.flash_sdp_enabled()


@construct()
def no_kernel_of_attention(x):
    try:
        with sdpa_kernel(3):
            pass
    except AssertionError as error:
        return x + 1, str(error)


def test_a_setting_that_is_left_changed_is_left_changed() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.set_default_dtype(torch.float64)
        made = torch.ones(2)
        graph_break()
        return made, torch.ones(3), x + 1

    captured = optimize(program, CountingBackend())
    x = torch.ones(2, dtype=torch.float32)
    for _ in range(2):
        seen = []
        for call in (program, captured):
            try:
                seen.append((call(x), torch.get_default_dtype()))
            finally:
                torch.set_default_dtype(torch.float32)
        assert same(*seen), seen


def test_another_setting_at_the_start_is_another_program() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        with sdpa_kernel(SDPBackend.MATH):
            y = _attention(x)
        return y, str(_flags())

    captured = optimize(program, CountingBackend(), fullgraph=True)
    x = torch.arange(6.0)
    assert same(program(x), captured(x))
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert same(program(x), captured(x))
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert same(program(x), captured(x))


# --- exceptions -----------------------------------------------------------------------------------


@construct()
def a_cause_that_is_set_hides_the_context(x):
    error = ValueError("first")
    plain = error.__suppress_context__
    error.__cause__ = None
    hidden = error.__suppress_context__
    error.__suppress_context__ = False
    error.__context__ = KeyError(1)
    return x + 1, plain, hidden, error.__suppress_context__, type(error.__context__)


@construct()
def an_exception_raised_again_is_taken_out_of_the_chain(x):
    try:
        try:
            raise KeyError(1)
        except KeyError as first:
            try:
                raise IndexError(2)
            except IndexError as second:
                try:
                    raise OSError(3)
                except OSError as third:
                    raise first
    except KeyError as error:
        chain = [error, error.__context__, error.__context__.__context__]
        return x + 1, [type(e) for e in chain], chain[-1].__context__


@construct()
def a_chain_of_contexts_that_goes_round(x):
    try:
        try:
            raise ValueError(1)
        except ValueError as first:
            first.__context__ = first
            raise TypeError(2)
    except TypeError as error:
        inner = error.__context__
        return x + 1, inner.__context__ is inner


@construct()
def assertions_of_unittest(x):
    asserts.assertRaises(KeyError, lambda: {}[1])
    with asserts.assertRaisesRegex(ValueError, "bo+m") as caught:
        raise ValueError("booom")
    try:
        with asserts.assertRaises(ValueError):
            x = x + 1
    except AssertionError as error:
        return x * 2, str(error), caught.exception.args


@construct()
def frames_of_a_traceback_that_are_cleared(x):
    try:
        {}[3]
    except KeyError as error:
        traceback.clear_frames(error.__traceback__)
    return x + 1


# --- generators -----------------------------------------------------------------------------------


@construct()
def what_is_thrown_into_a_generator(x):
    def waits():
        try:
            yield 1
        except ValueError as error:
            yield error.args

    def thrown(*what):
        generator = waits()
        next(generator)
        try:
            return generator.throw(*what)
        except (KeyError, TypeError) as error:
            return type(error), str(error)

    return x + 1, [
        thrown(ValueError),
        thrown(ValueError, "text"),
        thrown(ValueError, (1, 2)),
        thrown(ValueError, ValueError(3)),
        thrown(ValueError(4)),
        thrown(ValueError(4), None),
        thrown(ValueError(4), 5),
        thrown(KeyError, "key"),
        thrown(3),
    ]


@construct()
def what_a_closed_generator_returned(x):
    def waits():
        try:
            yield 1
        except GeneratorExit:
            return x * 2

    generator = waits()
    next(generator)
    return x + 1, generator.close(), generator.close()


@pytest.mark.parametrize("case", construct.cases, ids=construct.names)
def test_construct(case: Case) -> None:
    run_case(case)


# --- what outlives a capture ----------------------------------------------------------------------


class _Holder:
    pass


def _given(kind: str) -> object:
    holder = _Holder()
    holder.x = torch.ones(2)
    return {"object": holder, "tensor": torch.ones(2), "generator": (i for i in range(3))}[kind]


_USES = {
    "object": lambda given, x: x + given.x,
    "tensor": lambda given, x: x + given,
    "generator": lambda given, x: x + next(given),
}


@pytest.mark.parametrize("kind", _USES)
@pytest.mark.filterwarnings("ignore")
def test_arguments_live_no_longer_than_without_capture(kind: str) -> None:
    captured = optimize(_USES[kind], CountingBackend())
    given = _given(kind)
    alive = weakref.ref(given)
    gc.collect()
    gc.disable()
    try:
        captured(given, torch.ones(2))
        del given
        assert alive() is None
    finally:
        gc.enable()


def test_a_generator_left_in_a_try_ends_with_its_frame() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        log: list[int] = []

        def waits():  # type: ignore[no-untyped-def]
            try:
                yield x + 1
            finally:
                log.append(1)

        generator = waits()
        return next(generator) * 2, log

    captured = optimize(program, CountingBackend())
    gc.disable()
    try:
        for _ in range(2):
            assert same(program(torch.ones(2)), captured(torch.ones(2)))
    finally:
        gc.enable()


# --- graphs that raise when they run --------------------------------------------------------------

_LEFT: list[object] = []


class _Notes:
    def __init__(self, name: str, fails: bool = False) -> None:
        self.name, self.fails = name, fails

    def __enter__(self) -> None:
        _LEFT.append(f"enters {self.name}")

    def __exit__(self, kind: type | None, error: object, trace: object) -> None:
        _LEFT.append((self.name, kind and kind.__name__, error is not None, trace is not None))
        if self.fails:
            raise KeyError(self.name)


def _within_blocks(x, index):
    with _Notes("outer"), torch.no_grad():
        print("break")
        with _Notes("inner"):
            print("break")
            y = x[index]
    return y


def _around_a_try(x, index):
    with _Notes("outer"):
        try:
            with _Notes("inner"):
                print("break")
                y = x[index] + 1
        except KeyError:
            y = x
    return y


def _an_exit_that_raises(x, index):
    with _Notes("outer"), _Notes("inner", fails=True):
        print("break")
        y = x[index] + 1
    return y


def _a_mode_in_the_graph(x, index):
    with torch.no_grad():
        y = x[index]
    return y


@pytest.mark.parametrize(
    "program", [_within_blocks, _around_a_try, _an_exit_that_raises, _a_mode_in_the_graph]
)
def test_blocks_are_left_when_a_graph_raises(program) -> None:
    captured = optimize(program, CountingBackend())
    for index in ([0], [7], [1]):
        seen = []
        for call in (program, captured):
            _LEFT.clear()
            try:
                result = call(torch.ones(3), torch.tensor(index))
            except Exception as error:
                result = type(error), type(error.__context__)
            seen.append((result, list(_LEFT), torch.is_grad_enabled()))
            torch.set_grad_enabled(True)
        assert same(*seen), seen


# --- gradients that only requires_grad_() asks for ------------------------------------------------


def test_what_only_requires_grad_asks_for_is_in_no_graph_without_gradients() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.sin().cos()
        first.requires_grad_()
        second = x * 2
        second.requires_grad_()
        return first, second * 3

    backend = CountingBackend()
    captured = optimize(program, backend)
    assert same(program(torch.ones(3)), captured(torch.ones(3)))
    for gm in backend.graphs:  # a compiler would drop what nothing that is given asks for
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        if any(node.target == "requires_grad_" for node in gm.graph.nodes):
            assert any(node.meta["val"].requires_grad for node in inputs)


def test_leaves_that_are_made_requiring_a_gradient_are_made_by_python() -> None:
    def program(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scale = torch.ones(3, requires_grad=True)
        shift = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        (inner,) = torch.autograd.grad((shift * w.detach()).sum(), shift)
        return scale * x, w * 2 + shift, scale, inner

    backend = CountingBackend()
    captured = optimize(program, backend)
    given = torch.ones(3, requires_grad=True), torch.ones(3)
    assert same(program(*given), captured(*given))
    made = [node.target for gm in backend.graphs for node in gm.graph.nodes]
    assert torch.ones not in made
    assert captured(*given)[2].is_leaf
