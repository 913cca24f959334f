# ruff: noqa: E731 (programs as users write them)
"""More than a hundred things that users of torch.compile do, each as a small function of two names:
`compile` (torch.compile or dovetail.compile) and `compiler` (torch.compiler or dovetail.compiler).

    python integration_tests/compile_features.py torch|dovetail|installed [NAME ...]

runs them with torch's names, with ours, or with torch's after `dovetail.install()`.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import io
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Feature = Callable[[Any, Any], None]
FEATURES: dict[str, Feature] = {}


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


class Counter:
    """A backend that counts the graphs that it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any], **_: Any) -> Any:
        self.graphs.append(gm)
        return gm.forward

    def __len__(self) -> int:
        return len(self.graphs)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.gelu(self.first(x)))


def wave(x: Tensor) -> Tensor:
    return torch.sin(x) * 2 + x


def same(compiled: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    torch.testing.assert_close(compiled(*args, **kwargs), function(*args, **kwargs))


def raises(error: Any, call: Callable[[], Any], words: str = "") -> None:
    try:
        call()
    except error as caught:
        assert words in str(caught), f"{words!r} not in {caught}"
    else:
        raise AssertionError(f"{error} was not raised")


# --- compile's arguments -------------------------------------------------------------------------


@feature
def function(compile: Any, compiler: Any) -> None:
    same(compile(wave), wave, torch.randn(5))


@feature
def decorator(compile: Any, compiler: Any) -> None:
    @compile
    def f(x: Tensor) -> Tensor:
        return wave(x)

    same(f, wave, torch.randn(5))
    assert f.__name__ == "f"


@feature
def decorator_with_arguments(compile: Any, compiler: Any) -> None:
    @compile(fullgraph=True, dynamic=False)
    def f(x: Tensor) -> Tensor:
        return wave(x)

    same(f, wave, torch.randn(5))


@feature
def module(compile: Any, compiler: Any) -> None:
    net = Net()
    same(compile(net), net, torch.randn(3, 4))


@feature
def module_of_torch_nn(compile: Any, compiler: Any) -> None:
    net = nn.Linear(4, 2)
    same(compile(net), net, torch.randn(3, 4))


@feature
def method(compile: Any, compiler: Any) -> None:
    net = Net()
    same(compile(net.forward), net, torch.randn(3, 4))


@feature
def lambda_function(compile: Any, compiler: Any) -> None:
    same(compile(lambda x: x.cos() + 1), lambda x: x.cos() + 1, torch.randn(3))


@feature
def partial_function(compile: Any, compiler: Any) -> None:
    f = functools.partial(torch.add, alpha=3)
    same(compile(f), f, torch.ones(3), torch.ones(3))


@feature
def builtin_operator(compile: Any, compiler: Any) -> None:
    same(compile(torch.sin), torch.sin, torch.randn(3))


@feature
def fullgraph_breaks_raise(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        print(end="")
        return x + 1

    raises(Exception, lambda: compile(f, fullgraph=True, backend="eager")(torch.ones(2)))


@feature
def dynamic_true_is_one_graph(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count, dynamic=True)
    for size in (3, 4, 7):
        same(f, wave, torch.randn(size))
    assert len(count) == 1


@feature
def dynamic_false_is_one_graph_a_size(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count, dynamic=False)
    for size in (3, 4, 7):
        f(torch.randn(size))
    assert len(count) == 3


@feature
def automatic_dynamic_is_two_graphs(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    for size in (3, 4, 7, 9):
        f(torch.randn(size))
    assert len(count) == 2


@feature
def backends_of_the_ladder(compile: Any, compiler: Any) -> None:
    for backend in ("eager", "aot_eager", "inductor"):
        same(compile(wave, backend=backend), wave, torch.randn(5))


@feature
def backend_of_the_users(compile: Any, compiler: Any) -> None:
    count = Counter()
    same(compile(wave, backend=count), wave, torch.randn(5))
    assert len(count) == 1 and isinstance(count.graphs[0], torch.fx.GraphModule)


@feature
def backend_with_options(compile: Any, compiler: Any) -> None:
    given: dict[str, Any] = {}

    def backend(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        given.update(kwargs)
        return gm.forward

    compile(wave, backend=backend, options={"level": 3})(torch.ones(2))
    assert given == {"options": {"level": 3}}


@feature
def backend_with_mode(compile: Any, compiler: Any) -> None:
    given: dict[str, Any] = {}

    def backend(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        given.update(kwargs)
        return gm.forward

    compile(wave, backend=backend, mode="reduce-overhead")(torch.ones(2))
    assert given == {"mode": "reduce-overhead"}


@feature
def unknown_backend_raises(compile: Any, compiler: Any) -> None:
    raises(
        Exception, lambda: compile(wave, backend="no_such_thing")(torch.ones(2)), "no_such_thing"
    )


@feature
def modes(compile: Any, compiler: Any) -> None:
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        same(compile(wave, mode=mode), wave, torch.randn(5))


@feature
def unknown_mode_raises(compile: Any, compiler: Any) -> None:
    raises(Exception, lambda: compile(wave, mode="fastest")(torch.ones(2)), "fastest")


@feature
def mode_and_options_raise(compile: Any, compiler: Any) -> None:
    both = {"mode": "max-autotune", "options": {"max_autotune": True}}
    raises(RuntimeError, lambda: compile(wave, **both)(torch.ones(2)))


@feature
def unknown_option_raises(compile: Any, compiler: Any) -> None:
    call = lambda: compile(wave, options={"no_such_option": 1})(torch.ones(2))
    raises(Exception, call, "no_such_option")


@feature
def options_that_tutorials_name(compile: Any, compiler: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for options in (
            {"epilogue_fusion": True},
            {"max_autotune": True},
            {"shape_padding": True},
            {"triton.cudagraphs": False},
            {"trace.enabled": False},
            {"coordinate_descent_tuning": True},
            {"fallback_random": True},
            {"emulate_precision_casts": True},
        ):
            same(compile(wave, options=options), wave, torch.randn(5))


@feature
def disable_argument(compile: Any, compiler: Any) -> None:
    count = Counter()
    same(compile(wave, backend=count, disable=True), wave, torch.randn(5))
    assert len(count) == 0


@feature
def isolate_recompiles(compile: Any, compiler: Any) -> None:
    count = Counter()
    for _ in range(2):
        compile(wave, backend=count, isolate_recompiles=True)(torch.ones(3))
    assert len(count) == 2


@feature
def compiled_code_is_shared(compile: Any, compiler: Any) -> None:
    count = Counter()
    for _ in range(3):
        compile(wave, backend=count)(torch.ones(3))
    assert len(count) == 1


@feature
def recompile_limit_of_a_function(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count, dynamic=False, recompile_limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in range(3, 8):
            f(torch.randn(size))
    assert len(count) == 2


@feature
def name_argument(compile: Any, compiler: Any) -> None:
    same(compile(wave, name="wave", isolate_recompiles=True), wave, torch.randn(3))


# --- modules -------------------------------------------------------------------------------------


@feature
def module_compiled_in_place(compile: Any, compiler: Any) -> None:
    net, x = Net(), torch.randn(3, 4)
    expected = net(x)
    net.compile(backend="eager")
    torch.testing.assert_close(net(x), expected)
    assert list(net.state_dict()) == list(Net().state_dict())


@feature
def original_module(compile: Any, compiler: Any) -> None:
    net = Net()
    assert compile(net)._orig_mod is net


@feature
def optimized_module_class(compile: Any, compiler: Any) -> None:
    from torch._dynamo import OptimizedModule  # noqa: TID251
    from torch._dynamo.eval_frame import OptimizedModule as Same  # noqa: TID251

    compiled = compile(Net())
    assert isinstance(compiled, OptimizedModule) and isinstance(compiled, Same)
    assert isinstance(compiled, nn.Module) and not isinstance(Net(), OptimizedModule)


@feature
def attributes_of_the_module(compile: Any, compiler: Any) -> None:
    net = Net()
    compiled = compile(net)
    assert compiled.first is net.first
    compiled.note = 3
    assert net.note == 3


@feature
def parameters_are_shared(compile: Any, compiler: Any) -> None:
    net = Net()
    assert {id(p) for p in compile(net).parameters()} == {id(p) for p in net.parameters()}


@feature
def train_and_eval(compile: Any, compiler: Any) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    compiled, x = compile(net), torch.randn(2, 4)
    compiled.eval()
    assert not net.training
    same(compiled, net, x)
    compiled.train()
    torch.manual_seed(1)
    first = compiled(x)
    torch.manual_seed(1)
    torch.testing.assert_close(first, net(x))


@feature
def state_dict_loads_into_the_plain_module(compile: Any, compiler: Any) -> None:
    net, other = Net(), Net()
    compiled = compile(net)
    compiled.load_state_dict(compiled.state_dict())
    other.load_state_dict(
        {k.removeprefix("_orig_mod."): v for k, v in compiled.state_dict().items()}
    )
    same(other, net, torch.randn(2, 4))


@feature
def saved_and_loaded(compile: Any, compiler: Any) -> None:
    net, file = Net(), io.BytesIO()
    compiled = compile(net)
    torch.save(compiled.state_dict(), file)
    file.seek(0)
    other = compile(Net())
    other.load_state_dict(torch.load(file))
    same(other, net, torch.randn(2, 4))


@feature
def module_deep_copied(compile: Any, compiler: Any) -> None:
    compiled, x = compile(Net(), backend="eager"), torch.randn(2, 4)
    same(copy.deepcopy(compiled), compiled, x)


@feature
def module_in_place_pickled(compile: Any, compiler: Any) -> None:
    net, x = nn.Linear(4, 2), torch.randn(2, 4)
    net.compile(backend="eager")
    net(x)
    same(pickle.loads(pickle.dumps(net)), net, x)


@feature
def forward_hooks(compile: Any, compiler: Any) -> None:
    net, x, seen = Net(), torch.randn(2, 4), []
    net.first.register_forward_hook(lambda m, args, out: seen.append(1) or out * 2)
    compiled = compile(net, backend="eager")
    same(compiled, net, x)
    assert len(seen) == 2


@feature
def hooks_on_the_compiled_module(compile: Any, compiler: Any) -> None:
    compiled, seen = compile(Net(), backend="eager"), []
    compiled.register_forward_pre_hook(lambda m, args: seen.append(1))
    compiled(torch.randn(2, 4))
    assert seen


@feature
def moved_to_a_dtype(compile: Any, compiler: Any) -> None:
    compiled = compile(Net(), backend="eager")
    compiled.to(torch.float64)
    assert compiled(torch.randn(2, 4, dtype=torch.float64)).dtype is torch.float64


@feature
def submodule_compiled(compile: Any, compiler: Any) -> None:
    net, x = Net(), torch.randn(2, 4)
    expected = net(x)
    net.first = compile(net.first)
    torch.testing.assert_close(net(x), expected)


@feature
def compiled_within_compiled(compile: Any, compiler: Any) -> None:
    net, count, x = Net(), Counter(), torch.randn(2, 4)
    expected = net(x)
    net.first = compile(net.first, backend=count)
    outer = compile(net, backend=count)
    torch.testing.assert_close(outer(x), expected)
    assert len(count) == 1


# --- torch.compiler ------------------------------------------------------------------------------


@feature
def namespace_compile(compile: Any, compiler: Any) -> None:
    same(compiler.compile(wave, backend="eager"), wave, torch.randn(3))


@feature
def disabled_function(compile: Any, compiler: Any) -> None:
    count = Counter()

    @compiler.disable
    def plain(x: Tensor) -> Tensor:
        return x * 3

    same(
        compile(lambda x: plain(x + 1) + 1, backend=count), lambda x: (x + 1) * 3 + 1, torch.ones(2)
    )
    assert len(count) == 2


@feature
def disabled_with_a_reason(compile: Any, compiler: Any) -> None:
    @compiler.disable(reason="it is short")
    def plain(x: Tensor) -> Tensor:
        return x * 3

    call = lambda: compile(lambda x: plain(x), fullgraph=True, backend="eager")(torch.ones(2))
    raises(Exception, call, "it is short")


@feature
def disabled_without_what_it_calls(compile: Any, compiler: Any) -> None:
    count = Counter()

    def inner(x: Tensor) -> Tensor:
        return x.sin()

    @compiler.disable(recursive=False)
    def plain(x: Tensor) -> Tensor:
        return inner(x) * 3

    compile(lambda x: plain(x), backend=count)(torch.ones(2))
    assert len(count) == 1


@feature
def disabled_module(compile: Any, compiler: Any) -> None:
    net = Net()
    net.first = compiler.disable(net.first)
    same(compile(net, backend="eager"), net, torch.randn(2, 4))


@feature
def allowed_in_graph(compile: Any, compiler: Any) -> None:
    count = Counter()

    def opaque(x: Tensor) -> Tensor:
        return x * 2 + 1

    compiler.allow_in_graph(opaque)
    compile(lambda x: opaque(x), backend=count, fullgraph=True)(torch.ones(2))
    assert any(node.target is opaque for node in count.graphs[0].graph.nodes)


@feature
def substituted(compile: Any, compiler: Any) -> None:
    import zlib  # the substitute stays for the whole process: true, and of what no test calls

    @compiler.substitute_in_graph(zlib.adler32)
    def adler32(data: Any, value: int = 1, /) -> int:
        low, high = value & 0xFFFF, value >> 16
        for byte in data:
            low = (low + byte) % 65521
            high = (high + low) % 65521
        return high << 16 | low

    def f(x: Tensor) -> Tensor:
        return x + zlib.adler32(b"abc")

    same(compile(f, fullgraph=True, backend="eager"), f, torch.ones(2))


@feature
def constant_result(compile: Any, compiler: Any) -> None:
    calls: list[int] = []

    @compiler.assume_constant_result
    def three() -> int:
        calls.append(1)
        return 3

    f = compile(lambda x: x * three(), backend="eager", fullgraph=True)
    torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 3.0))
    f(torch.ones(2))
    assert len(calls) == 1


@feature
def nonstrict(compile: Any, compiler: Any) -> None:
    @compiler.nonstrict_trace
    def traced(x: Tensor) -> Tensor:
        return x.sin() + 1

    same(
        compile(lambda x: traced(x), backend="aot_eager", fullgraph=True),
        lambda x: x.sin() + 1,
        torch.ones(2),
    )


@feature
def asks_whether_it_compiles(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return x + 1 if compiler.is_compiling() and compiler.is_dynamo_compiling() else x

    assert not compiler.is_compiling() and not compiler.is_exporting()
    same(compile(f, backend="eager"), lambda x: x + 1, torch.ones(2))


@feature
def stance_as_a_block(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    with compiler.set_stance("force_eager"):
        f(torch.ones(3))
    assert len(count) == 0
    f(torch.ones(3))
    assert len(count) == 1


@feature
def stance_as_a_decorator(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)

    @compiler.set_stance("force_eager")
    def outer(x: Tensor) -> Tensor:
        return f(x)

    outer(torch.ones(3))
    assert len(count) == 0


@feature
def stance_as_a_call(compile: Any, compiler: Any) -> None:
    count = Counter()
    compiler.set_stance("force_eager")
    try:
        compile(wave, backend=count)(torch.ones(3))
    finally:
        compiler.set_stance("default")
    assert len(count) == 0


@feature
def stance_fail_on_recompile(compile: Any, compiler: Any) -> None:
    f = compile(wave, backend="eager", dynamic=False)
    f(torch.ones(3))
    with compiler.set_stance("fail_on_recompile"):
        f(torch.ones(3))
        raises(RuntimeError, lambda: f(torch.ones(4)))


@feature
def stance_eager_on_recompile(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count, dynamic=False)
    f(torch.ones(3))
    with compiler.set_stance("eager_on_recompile"):
        same(f, wave, torch.ones(4))
    assert len(count) == 1


@feature
def stance_eager_then_compile(compile: Any, compiler: Any) -> None:
    count = Counter()
    with compiler.set_stance("eager_then_compile"):
        f = compile(wave, backend=count)
        f(torch.ones(3))
        assert len(count) == 0
        f(torch.ones(4))
        f(torch.ones(5))
    assert len(count) == 1


@feature
def stance_aot_eager_then_compile(compile: Any, compiler: Any) -> None:
    with compiler.set_stance("aot_eager_then_compile"):
        f = compile(wave)
        for size in (3, 4, 5):
            same(f, wave, torch.randn(size))


@feature
def stance_with_another_backend(compile: Any, compiler: Any) -> None:
    count, own = Counter(), Counter()
    with compiler.set_stance("default", force_backend=count):
        compile(wave, backend=own)(torch.ones(3))
    assert len(count) == 1 and len(own) == 0


@feature
def stance_that_skips_guards(compile: Any, compiler: Any) -> None:
    f = compile(wave, backend="eager")
    f(torch.ones(3))
    with compiler.set_stance(skip_guard_eval_unsafe=True):
        same(f, wave, torch.ones(3))


@feature
def reset(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    f(torch.ones(3))
    compiler.reset()
    f(torch.ones(3))
    assert len(count) == 2


@feature
def lists_backends(compile: Any, compiler: Any) -> None:
    assert {"inductor", "cudagraphs"} <= set(compiler.list_backends())
    assert {"eager", "aot_eager"} <= set(compiler.list_backends(exclude_tags=()))
    assert "eager" not in compiler.list_backends()


@feature
def default_backend(compile: Any, compiler: Any) -> None:
    count = Counter()
    before = compiler.get_default_backend()
    compiler.set_default_backend(count)
    try:
        compile(wave)(torch.ones(3))
    finally:
        compiler.set_default_backend(before)
    assert len(count) == 1 and compiler.get_default_backend() == before


@feature
def marks_a_step(compile: Any, compiler: Any) -> None:
    f = compile(wave, mode="reduce-overhead")
    for _ in range(3):
        compiler.cudagraph_mark_step_begin()
        f(torch.ones(3))


@feature
def wraps_numpy(compile: Any, compiler: Any) -> None:
    @compile(fullgraph=True)
    @compiler.wrap_numpy
    def f(x: Any) -> Any:
        return np.sin(x) + 1

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(f(x), x.sin() + 1)


@feature
def nested_region(compile: Any, compiler: Any) -> None:
    @compiler.nested_compile_region
    def layer(x: Tensor) -> Tensor:
        return x.sin() + 1

    f = lambda x: layer(layer(x))
    same(compile(f, fullgraph=True), lambda x: (x.sin() + 1).sin() + 1, torch.randn(3))


@feature
def guard_filters(compile: Any, compiler: Any) -> None:
    for filter in (
        compiler.skip_guard_on_globals_unsafe,
        compiler.keep_tensor_guards_unsafe,
        compiler.skip_guard_on_all_nn_modules_unsafe,
        compiler.skip_guard_on_inbuilt_nn_modules_unsafe,
        compiler.skip_all_guards_unsafe,
    ):
        f = compile(wave, options={"guard_filter_fn": filter}, backend="inductor")
        same(f, wave, torch.ones(3))


@feature
def cache_artifacts(compile: Any, compiler: Any) -> None:
    same(compile(wave), wave, torch.randn(3))
    saved = compiler.save_cache_artifacts()
    assert saved is not None
    data, info = saved
    assert isinstance(data, bytes) and info is not None
    assert compiler.load_cache_artifacts(data) is not None


@feature
def guard_collectives(compile: Any, compiler: Any) -> None:
    before = compiler.set_enable_guard_collectives(False)
    compiler.set_enable_guard_collectives(before)


@feature
def warmup_of_graphs(compile: Any, compiler: Any) -> None:
    compiler.cudagraph_mark_warmup_incomplete()


# --- torch._dynamo, by its own names -------------------------------------------------------------


@feature
def dynamo_mark_dynamic(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    for size in (3, 4, 5):
        x = torch.randn(size)
        torch._dynamo.mark_dynamic(x, 0)  # noqa: TID251
        f(x)
    assert len(count) == 1


@feature
def dynamo_mark_dynamic_within(compile: Any, compiler: Any) -> None:
    x = torch.randn(4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)  # noqa: TID251
    same(compile(wave, backend="eager"), wave, x)


@feature
def dynamo_maybe_mark_dynamic(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    for size in (3, 4, 5):
        x = torch.randn(size)
        torch._dynamo.maybe_mark_dynamic(x, 0)  # noqa: TID251
        f(x)
    assert len(count) == 1


@feature
def dynamo_mark_static(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    for size in (3, 4, 5):
        x = torch.randn(size)
        torch._dynamo.mark_static(x, 0)  # noqa: TID251
        f(x)
    assert len(count) == 3


@feature
def dynamo_mark_unbacked(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    for size in (3, 1, 5):
        x = torch.randn(size)
        torch._dynamo.decorators.mark_unbacked(x, 0)  # noqa: TID251
        f(x)
    assert len(count) == 1


@feature
def dynamo_mark_static_address(compile: Any, compiler: Any) -> None:
    cache = torch.zeros(4)
    torch._dynamo.mark_static_address(cache)  # noqa: TID251
    same(compile(lambda x: x + cache), lambda x: x + cache, torch.ones(4))


@feature
def dynamo_graph_break(compile: Any, compiler: Any) -> None:
    count = Counter()

    def f(x: Tensor) -> Tensor:
        x = x + 1
        torch._dynamo.graph_break()  # noqa: TID251
        return x * 2

    compile(f, backend=count)(torch.ones(2))
    assert len(count) == 2


@feature
def dynamo_error_on_graph_break(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        print(end="")
        return x + 1

    with torch._dynamo.error_on_graph_break(True):  # noqa: TID251
        raises(Exception, lambda: compile(f, backend="eager")(torch.ones(2)))


@feature
def dynamo_disable(compile: Any, compiler: Any) -> None:
    count = Counter()

    @torch._dynamo.disable  # noqa: TID251
    def plain(x: Tensor) -> Tensor:
        return x * 3

    compile(lambda x: plain(x + 1) + 1, backend=count)(torch.ones(2))
    assert len(count) == 2


@feature
def dynamo_allow_in_graph(compile: Any, compiler: Any) -> None:
    def opaque(x: Tensor) -> Tensor:
        return x * 2 + 1

    torch._dynamo.allow_in_graph(opaque)  # noqa: TID251
    count = Counter()
    compile(lambda x: opaque(x), backend=count, fullgraph=True)(torch.ones(2))
    assert any(node.target is opaque for node in count.graphs[0].graph.nodes)


@feature
def dynamo_reset(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = compile(wave, backend=count)
    f(torch.ones(3))
    torch._dynamo.reset()  # noqa: TID251
    f(torch.ones(3))
    assert len(count) == 2


@feature
def dynamo_recompile_limit(compile: Any, compiler: Any) -> None:
    count = Counter()
    with torch._dynamo.config.patch(recompile_limit=2), warnings.catch_warnings():  # noqa: TID251
        warnings.simplefilter("ignore")
        f = compile(lambda x: x.sin() + x.cos(), backend=count, dynamic=False)
        for size in range(3, 8):
            f(torch.randn(size))
    assert len(count) == 2


@feature
def dynamo_suppress_errors(compile: Any, compiler: Any) -> None:
    def fails(gm: Any, example_inputs: Any) -> Any:
        raise RuntimeError("boom")

    with torch._dynamo.config.patch(suppress_errors=True), warnings.catch_warnings():  # noqa: TID251
        warnings.simplefilter("ignore")
        same(compile(wave, backend=fails), wave, torch.randn(3))


@feature
def dynamo_capture_scalar_outputs(compile: Any, compiler: Any) -> None:
    count = Counter()
    f = lambda x: x * x.sum().item()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):  # noqa: TID251
        same(compile(f, backend=count), f, torch.randn(3))
    assert len(count) == 1


@feature
def dynamo_explain(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        print(end="")
        return x * 2

    told = torch._dynamo.explain(f)(torch.ones(2))  # noqa: TID251
    assert told.graph_count == 2 and told.graph_break_count == 1
    assert len(told.break_reasons) == 1 and len(told.graphs) == 2


@feature
def dynamo_optimize(compile: Any, compiler: Any) -> None:
    count = Counter()
    same(torch._dynamo.optimize(count)(wave), wave, torch.randn(3))  # noqa: TID251
    assert len(count) == 1


@feature
def dynamo_register_backend(compile: Any, compiler: Any) -> None:
    from torch._dynamo import register_backend  # noqa: TID251

    if "features_TESTING_ONLY" not in compiler.list_backends(exclude_tags=()):

        @register_backend
        def features_TESTING_ONLY(gm: Any, example_inputs: Any) -> Any:
            return gm.forward

    same(compile(wave, backend="features_TESTING_ONLY"), wave, torch.randn(3))


@feature
def dynamo_is_compiling(compile: Any, compiler: Any) -> None:
    f = compile(lambda x: x + 1 if torch._dynamo.is_compiling() else x, backend="eager")  # noqa: TID251
    assert f(torch.zeros(1)).item() == 1


# --- what programs hold --------------------------------------------------------------------------


@feature
def training_step(compile: Any, compiler: Any) -> None:
    net, twin = Net(), None
    twin = copy.deepcopy(net)
    compiled, x = compile(net), torch.randn(5, 4)
    compiled(x).pow(2).sum().backward()
    twin(x).pow(2).sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def _training_step() -> Callable[[Tensor], Tensor]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@feature
def whole_step_with_an_optimizer(compile: Any, compiler: Any) -> None:
    losses = []
    for wrap in (compile, lambda f: f):
        torch.manual_seed(0)
        run = wrap(_training_step())
        losses.append([run(torch.ones(2, 4)) for _ in range(3)])
    torch.testing.assert_close(*losses)


@feature
def optimizer_step_alone(compile: Any, compiler: Any) -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.ones(3)
    compile(lambda: optimizer.step())()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))


@feature
def autocast(compile: Any, compiler: Any) -> None:
    net = Net()

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x)

    compiled, x = compile(f), torch.randn(3, 4)
    assert compiled(x).dtype is torch.bfloat16
    torch.testing.assert_close(compiled(x), f(x), rtol=2e-2, atol=2e-2)


@feature
def no_grad_inside(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + x

    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compile(f)(x).sum(), x)
    torch.testing.assert_close(g, torch.ones(3))


@feature
def inference_mode_outside(compile: Any, compiler: Any) -> None:
    net = Net()
    compiled = compile(net)
    with torch.inference_mode():
        same(compiled, net, torch.randn(2, 4))


@feature
def activation_checkpoint(compile: Any, compiler: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    net = Net()
    f = lambda x: checkpoint(net, x, use_reentrant=False).sum()
    x = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(compile(f)(x), x), torch.autograd.grad(f(x), x))


@feature
def autograd_function(compile: Any, compiler: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(compile(lambda x: Double.apply(x).sum(), fullgraph=True)(x), x)
    torch.testing.assert_close(g, torch.full((3,), 3.0))


@feature
def tensor_hook(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 5)
        return y.sum()

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(compile(f)(x), x)[0], torch.full((3,), 10.0))


@feature
def batch_norm_statistics(compile: Any, compiler: Any) -> None:
    net, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    same(compile(net), twin, x)
    torch.testing.assert_close(net.running_mean, twin.running_mean)
    assert net.num_batches_tracked.item() == 1


@feature
def input_written(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3)
    compile(f)(x)
    torch.testing.assert_close(x, torch.ones(3))


@feature
def output_is_a_view(compile: Any, compiler: Any) -> None:
    x = torch.randn(4, 4)
    y = compile(lambda x: x[1:].t())(x)
    assert y.data_ptr() == x[1:].data_ptr() and y.stride() == (1, 4)


@feature
def random_numbers(compile: Any, compiler: Any) -> None:
    f = compile(lambda x: F.dropout(x, 0.5), backend="aot_eager")
    torch.manual_seed(3)
    first = f(torch.ones(50))
    torch.manual_seed(3)
    torch.testing.assert_close(f(torch.ones(50)), first)
    assert 0 < (first == 0).sum() < 50


@feature
def keyword_arguments(compile: Any, compiler: Any) -> None:
    def f(x: Tensor, *args: Tensor, scale: float = 1.0, **others: Tensor) -> Tensor:
        return (x + sum(args)) * scale + sum(others.values())

    x = torch.ones(2)
    same(compile(f, fullgraph=True), f, x, x, x, scale=3.0, a=x, b=x)


@feature
def containers(compile: Any, compiler: Any) -> None:
    def f(pairs: dict[str, Any]) -> dict[str, Any]:
        return {k: [v, (v + 1,)] for k, v in pairs.items()}

    same(compile(f, fullgraph=True), f, {"a": torch.ones(2), "b": torch.zeros(2)})


@dataclasses.dataclass
class Output:
    hidden: Tensor
    loss: Tensor | None = None


@feature
def dataclass_result(compile: Any, compiler: Any) -> None:
    out = compile(lambda x: Output(x + 1, loss=x.sum()), fullgraph=True)(torch.ones(2))
    assert type(out) is Output and out.loss is not None and out.loss.item() == 2


Pair = collections.namedtuple("Pair", ["left", "right"])


@feature
def namedtuple_result(compile: Any, compiler: Any) -> None:
    out = compile(lambda x: Pair(x, right=x + 1), fullgraph=True)(torch.ones(2))
    assert type(out) is Pair and out.right.sum().item() == 4


class Kind(enum.Enum):
    SINE = "sine"
    COSINE = "cosine"


@feature
def enum_argument(compile: Any, compiler: Any) -> None:
    f = lambda x, kind: x.sin() if kind is Kind.SINE else x.cos()
    compiled = compile(f, fullgraph=True)
    for kind in Kind:
        same(compiled, f, torch.randn(3), kind)


@feature
def closure_that_changes(compile: Any, compiler: Any) -> None:
    scale = 2.0

    def f(x: Tensor) -> Tensor:
        return x * scale

    compiled = compile(f)
    same(compiled, f, torch.ones(2))
    scale = 5.0
    same(compiled, f, torch.ones(2))


GLOBAL = [1.0]


@feature
def global_that_changes(compile: Any, compiler: Any) -> None:
    f = lambda x: x * GLOBAL[0]
    compiled = compile(f)
    same(compiled, f, torch.ones(2))
    GLOBAL[0] += 1
    same(compiled, f, torch.ones(2))


@feature
def attribute_written(compile: Any, compiler: Any) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + 1

    net = Counting()
    compiled = compile(net, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2))
    assert net.calls == 3


@feature
def list_written(compile: Any, compiler: Any) -> None:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        kept.append(x + 1)
        return x

    compile(f)(torch.zeros(2))
    torch.testing.assert_close(kept, [torch.ones(2)])


@feature
def branch_on_a_shape(compile: Any, compiler: Any) -> None:
    f = lambda x: x + 1 if x.shape[0] > 3 else x - 1
    compiled = compile(f)
    for size in (2, 5, 3, 9):
        same(compiled, f, torch.zeros(size))


@feature
def branch_on_data(compile: Any, compiler: Any) -> None:
    f = lambda x: x.sin() if x.sum() > 0 else x.cos()
    compiled = compile(f)
    for sign in (1, -1):
        same(compiled, f, sign * torch.ones(3))


@feature
def loop_and_comprehension(compile: Any, compiler: Any) -> None:
    f = lambda x, n: sum([x * i for i in range(n)], torch.zeros(2))
    same(compile(f, fullgraph=True), f, torch.ones(2), 5)


@feature
def generator_inside(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        def parts() -> Iterator[Tensor]:
            for i in range(3):
                yield x * i

        return sum(parts(), torch.zeros(2))

    same(compile(f, fullgraph=True), f, torch.ones(2))


@feature
def exception_caught_inside(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        try:
            raise ValueError("no")
        except ValueError as error:
            return x + len(str(error))

    same(compile(f, fullgraph=True), f, torch.ones(2))


@feature
def exception_of_the_program(compile: Any, compiler: Any) -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        raise KeyError("mine")

    raises(KeyError, lambda: compile(f, backend="eager")(torch.ones(2)), "mine")


@feature
def context_manager_of_the_users(compile: Any, compiler: Any) -> None:
    @contextlib.contextmanager
    def doubled(x: list[Tensor]) -> Iterator[None]:
        x[0] = x[0] * 2
        yield
        x[0] = x[0] + 1

    def f(x: Tensor) -> Tensor:
        held = [x]
        with doubled(held):
            held[0] = held[0] + 3
        return held[0]

    same(compile(f, backend="eager"), f, torch.ones(2))


@feature
def print_breaks_the_graph(compile: Any, compiler: Any) -> None:
    count, out = Counter(), io.StringIO()

    def f(x: Tensor) -> Tensor:
        x = x + 1
        print("here")
        return x * 2

    with contextlib.redirect_stdout(out):
        compile(f, backend=count)(torch.ones(2))
    assert len(count) == 2 and out.getvalue() == "here\n"


@feature
def item_under_fullgraph(compile: Any, compiler: Any) -> None:
    f = lambda x: x * x.sum().item()
    same(compile(f, fullgraph=True), f, torch.randn(3))


@feature
def nonzero_under_fullgraph(compile: Any, compiler: Any) -> None:
    f = lambda x: x.nonzero().sum()
    same(compile(f, fullgraph=True), f, torch.tensor([0.0, 1.0, 2.0]))


@feature
def check_of_a_size(compile: Any, compiler: Any) -> None:
    def f(x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size <= 4)
        return x[:4].sum() + torch.zeros(size).sum()

    same(compile(f, fullgraph=True), f, torch.ones(5), torch.tensor(3))


@feature
def numpy_inside(compile: Any, compiler: Any) -> None:
    f = lambda x: np.sum(np.multiply(x, x), axis=0)
    same(compile(f, fullgraph=True), f, np.ones((3, 4), np.float32))


@feature
def einsum(compile: Any, compiler: Any) -> None:
    f = lambda a, b: torch.einsum("bij,bjk->bik", a, b)
    same(compile(f, fullgraph=True), f, torch.randn(2, 3, 4), torch.randn(2, 4, 5))


@feature
def conditional(compile: Any, compiler: Any) -> None:
    f = lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    compiled = compile(f, fullgraph=True)
    for sign in (1, -1):
        same(compiled, f, sign * torch.ones(3))


@feature
def while_loop(compile: Any, compiler: Any) -> None:
    from torch._higher_order_ops.while_loop import while_loop as loop

    f = lambda n, x: loop(lambda n, x: n > 0, lambda n, x: (n - 1, x * 2), (n, x))
    got = compile(f, fullgraph=True)(torch.tensor(3), torch.ones(2))
    torch.testing.assert_close(got[1], torch.full((2,), 8.0))


@feature
def vmap(compile: Any, compiler: Any) -> None:
    f = lambda a, b: torch.vmap(torch.dot)(a, b)
    same(compile(f, fullgraph=True), f, torch.randn(3, 4), torch.randn(3, 4))


@feature
def functional_gradient(compile: Any, compiler: Any) -> None:
    f = lambda x: torch.func.grad(lambda y: y.sin().sum())(x)
    same(compile(f, fullgraph=True), f, torch.randn(3))


@feature
def functional_call(compile: Any, compiler: Any) -> None:
    net = Net()
    weights = {k: v.detach() * 2 for k, v in net.named_parameters()}
    f = lambda w, x: torch.func.functional_call(net, w, (x,))
    same(compile(f), f, weights, torch.randn(2, 4))


@feature
def attention(compile: Any, compiler: Any) -> None:
    f = lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True)
    same(compile(f, fullgraph=True), f, torch.randn(1, 2, 6, 8))


@feature
def flex_attention(compile: Any, compiler: Any) -> None:
    from torch.nn.attention.flex_attention import flex_attention as flex

    q = torch.randn(1, 2, 16, 16)
    score = lambda s, b, h, i, j: s + (i - j)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(compile(flex), flex, q, q, q, score_mod=score)


@feature
def recurrent_layer(compile: Any, compiler: Any) -> None:
    net = nn.LSTM(4, 5, batch_first=True)
    same(compile(net), net, torch.randn(2, 3, 4))


@feature
def transformer_layer(compile: Any, compiler: Any) -> None:
    net = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    same(compile(net), net, torch.randn(2, 5, 8))


@feature
def convolutions(compile: Any, compiler: Any) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
    ).eval()
    same(compile(net), net, torch.randn(1, 3, 8, 8))


@feature
def custom_operator(compile: Any, compiler: Any) -> None:
    name = "dovetail_features::twice"
    if not hasattr(torch.ops.dovetail_features, "twice"):

        @torch.library.custom_op(name, mutates_args=())
        def twice(x: Tensor) -> Tensor:
            return x * 2

        twice.register_fake(lambda x: torch.empty_like(x))
    f = lambda x: torch.ops.dovetail_features.twice(x) + 1
    same(compile(f, fullgraph=True), f, torch.ones(3))


@feature
def function_mode_subclass(compile: Any, compiler: Any) -> None:
    class Tagged(Tensor):
        pass

    x = torch.ones(3).as_subclass(Tagged)
    out = compile(lambda x: x + 1, backend="eager")(x)
    assert type(out) is Tagged


@feature
def threads(compile: Any, compiler: Any) -> None:
    f, found = compile(wave, backend="eager"), []
    run = lambda: found.append(f(torch.ones(3)))
    workers = [threading.Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4


@feature
def compiled_function_copied(compile: Any, compiler: Any) -> None:
    same(copy.deepcopy(compile(wave, backend="eager")), wave, torch.ones(3))


@feature
def static_and_class_methods(compile: Any, compiler: Any) -> None:
    class Tool:
        @staticmethod
        def double(x: Tensor) -> Tensor:
            return x * 2

        @classmethod
        def triple(cls, x: Tensor) -> Tensor:
            return cls.double(x) + x

        @property
        def one(self) -> int:
            return 1

    f = lambda x: Tool.triple(x) + Tool().one
    same(compile(f, fullgraph=True), f, torch.ones(2))


@feature
def strings_and_none(compile: Any, compiler: Any) -> None:
    def f(x: Tensor, how: str, bias: Tensor | None = None) -> Tensor:
        y = getattr(torch, how)(x)
        return y if bias is None else y + bias

    compiled = compile(f, fullgraph=True)
    same(compiled, f, torch.ones(2), "sin")
    same(compiled, f, torch.ones(2), "cos", torch.ones(2))


@feature
def dtype_and_device_arguments(compile: Any, compiler: Any) -> None:
    f = lambda x, dtype, device: x.to(device=device, dtype=dtype) + torch.zeros(2, dtype=dtype)
    same(compile(f, fullgraph=True), f, torch.ones(2), torch.float64, torch.device("cpu"))


@feature
def signature_is_kept(compile: Any, compiler: Any) -> None:
    import inspect

    def f(x: Tensor, scale: float = 2.0) -> Tensor:
        """Doubles."""
        return x * scale

    compiled = compile(f)
    assert str(inspect.signature(compiled)) == str(inspect.signature(f))
    assert compiled.__doc__ == "Doubles."
    net = Net()
    assert str(inspect.signature(compile(net).forward)) == str(inspect.signature(net.forward))


def run(names: list[str], compile: Any, compiler: Any) -> dict[str, str]:
    """Run features by name; what failed, with the reason."""
    failed = {}
    for name in names or FEATURES:
        compiler.reset()
        try:
            FEATURES[name](compile, compiler)
        except Exception as error:
            lines = traceback.extract_tb(error.__traceback__)
            line = [f.lineno for f in lines if f.filename == __file__][-1]
            words = (str(error).strip().splitlines() or [""])[0]
            failed[name] = f"line {line}: {type(error).__name__}: {words[:200]}"
    return failed


def main() -> None:
    system, *names = sys.argv[1:]
    if system == "dovetail":
        import dovetail

        failed = run(names, dovetail.compile, dovetail.compiler)
    else:
        if system == "installed":
            import dovetail

            dovetail.install()
        failed = run(names, torch.compile, torch.compiler)  # noqa: TID251
    for name, reason in failed.items():
        print(f"{name}: {reason}")
    print(f"{system}: {len(names or FEATURES) - len(failed)} of {len(names or FEATURES)} run")


if __name__ == "__main__":
    main()
