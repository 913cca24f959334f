"""The whole of capture: functions and modules, captured, equal to eager, with counts."""

from __future__ import annotations

import collections
import copy
import functools
import gc
import operator
import sys
import threading
import warnings
from pathlib import Path

import dovetail_capture as dc
import pytest
import torch
from dovetail_capture._frame_hook import Switched
from dovetail_capture.errors import CaptureError
from dovetail_capture.frames.context import CaptureContext
from dovetail_capture.frames.frame_versions import FactsByCode
from dovetail_capture.options import CaptureOptions
from torch import nn


class Counting:
    """A backend that runs the graph as it is and counts."""

    backend_traits = dc.BackendTraits(symbolic=True)

    def __init__(self):
        self.graphs = []
        self.runs = 0

    def __call__(self, gm, inputs):
        self.graphs.append((gm, inputs))

        def run(*args):
            self.runs += 1
            return gm.forward(*args)

        return run


def check(function, *args, graphs=1, breaks=0, **kwargs):
    """Captured equals eager, twice, with this many graphs and breaks."""
    backend = Counting()
    optimized = dc.optimize(function, backend)
    for _ in range(2):
        expected, got = function(*args, **kwargs), optimized(*args, **kwargs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    log = optimized.capture_context.log
    assert len(backend.graphs) == graphs, log.as_text()
    assert len(log.breaks) == breaks, log.as_text()
    return optimized


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)
        self.scale = 2.0

    def forward(self, x, *, loud=False):
        y = torch.relu(self.first(x)) * self.scale
        if loud:
            print("loud", end="")
        return self.second(y)


X = torch.randn(3, 4)


def test_functions():
    check(lambda x: x + 1, X)
    check(lambda x, k=2: {"a": [x * k, x], "b": (x.sum(), k)}, X, k=5)

    def with_rest(x, *rest, scale, **more):
        return sum(rest, x) * scale + more["y"]

    check(with_rest, X, X, X, scale=3, y=X)


def test_a_module_with_and_without_a_break():
    net = Net()
    check(net, X)
    optimized = check(net, X, graphs=2, breaks=1, loud=True)
    with pytest.raises(dc.GraphBreakError, match=r"test_optimize\.py"):
        dc.optimize(net, Counting(), fullgraph=True)(X, loud=True)
    assert optimized.capture_context.log.graph_count == 2


def test_gradients_flow():
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    dc.optimize(net, Counting())(X).sum().backward()
    twin(X).sum().backward()
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name


def test_static_inputs_are_bound_and_a_new_parameter_recompiles():
    net, backend = Net(), Counting()
    optimized = dc.optimize(net, backend)
    optimized(X)
    assert sum(p is q for p in net.parameters() for q in backend.graphs[0][1]) == 4
    with torch.no_grad():
        net.first.weight.mul_(2)
    assert torch.equal(optimized(X), net(X)) and len(backend.graphs) == 1
    net.first.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(optimized(X), net(X)) and len(backend.graphs) == 2
    log = optimized.capture_context.log
    assert [e for e in log.events if e.kind == "recompile" and "weight" in e.text]


def test_breaks_in_nested_calls_with_blocks_and_branches(capsys):
    def helper(x):
        y = x * 2
        print("helper", end="")
        return y + 1

    def nested(x):
        return helper(x) * 3

    check(nested, X, graphs=3, breaks=2)  # the outer call breaks at helper, helper at print

    def branch(x):
        y = x + 1
        if y.sum() > 0:
            return y * 2
        return y - 5

    check(branch, X.abs(), graphs=2, breaks=1)
    optimized = dc.optimize(branch, Counting())
    for value in (X.abs(), -X.abs() - 5, X.abs()):
        assert torch.equal(optimized(value), branch(value))

    def in_block(x):
        with torch.no_grad():
            y = x * 2
            print("block", end="")
            z = y + 1
        return z * x

    x = X.clone().requires_grad_()
    optimized = dc.optimize(in_block, Counting())
    for _ in range(2):
        got, expected = optimized(x), in_block(x)
        assert torch.equal(got, expected)
        gradients = [torch.autograd.grad(out.sum(), x)[0] for out in (got, expected)]
        assert torch.equal(*gradients)
    assert torch.is_grad_enabled()


def test_a_break_in_a_loop_is_resumed_in_each_iteration():
    def step(x):
        return x * 2 + 1

    def loop(x):
        for _ in range(3):
            x = step(x)
            if x.sum() > 1e9:
                break
        return x

    backend = Counting()
    optimized = dc.optimize(loop, backend)
    assert torch.equal(optimized(X), loop(X))
    log = optimized.capture_context.log
    assert not [e for e in log.events if e.kind == "plain"], log.as_text()
    assert backend.runs == 3  # the call of step in each iteration
    assert torch.equal(optimized(X), loop(X)) and backend.runs == 6
    assert len(backend.graphs) == 2  # from the start of the frame, and from the next iteration


def test_mutations_outlive_the_frame():
    class Holder:
        pass

    def mutate(x, holder, items):
        holder.total = getattr(holder, "total", 0) + 1
        items.append(x * 2)
        holder.last = items[-1] + 1
        return holder.last * 2

    seen = []
    for function in (mutate, dc.optimize(mutate, Counting())):
        holder, items = Holder(), []
        for _ in range(3):
            out = function(X, holder, items)
        seen.append((holder.total, holder.last, items, out))
        assert items[-1] + 1 is not holder.last
    torch.testing.assert_close(seen[0], seen[1])


def test_recompile_limit_warns_and_runs_plainly():
    def function(x, n):
        return x * len(n)

    backend = Counting()
    optimized = dc.optimize(function, backend, recompile_limit=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(6):
            assert torch.equal(optimized(X, "n" * n), X * n)
    assert len(backend.graphs) == 3 and len(caught) == 1
    message = str(caught[0].message)
    assert "recompile limit" in message and "n" in message
    optimized(X, "")
    assert backend.runs == 4  # what was compiled is still used
    strict = dc.optimize(function, backend, recompile_limit=1, fullgraph=True)
    strict(X, "")
    with pytest.raises(dc.RecompileLimitError):
        strict(X, "n")


def test_backend_errors_name_the_function_and_leave_state_alone():
    def fails(gm, inputs):
        torch.set_grad_enabled(False)
        torch.manual_seed(5)
        raise KeyError("backend")

    before = torch.random.get_rng_state()
    with pytest.raises(dc.BackendError, match=r"fails failed .*test_optimize.py"):
        dc.optimize(lambda x: x + 1, fails)(X)
    assert torch.is_grad_enabled() and torch.equal(before, torch.random.get_rng_state())
    with pytest.raises(dc.BackendError, match=r"backend .*<lambda> returned NoneType .*a callable"):
        dc.optimize(lambda x: x + 1, lambda gm, inputs: None)(X)


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (lambda x: (x, x), "a tuple of 2"),
        (lambda x: [], "a list of 0"),
        (lambda x: x, "a Tensor"),  # which Python would unpack along its first dimension
        (lambda x: None, "a NoneType"),
        (lambda x: {0: x}, "a dict"),
    ],
)
def test_a_backend_whose_results_are_not_the_graph_s_is_named(results, told):
    def miscounts(gm, inputs):
        return results

    for backend in (miscounts, functools.partial(miscounts)):
        with pytest.raises(dc.BackendError, match=f"miscounts compiled .* a? ?{told}; .* of 1"):
            dc.optimize(lambda x: x + 1, backend)(torch.ones(1))


def test_results_that_a_backend_gives_as_a_list_are_taken():
    compiled = dc.optimize(lambda x: (x + 1, x * 2), lambda gm, inputs: lambda x: [x, x])
    assert all(found is X for found in compiled(X))


def test_the_backend_s_own_python_is_not_captured():
    def helper(x):
        return x * 3

    backend_calls = []

    def backend(gm, inputs):
        backend_calls.append(gm)
        helper(inputs[0])
        return lambda *args: (helper(args[0]),)

    assert torch.equal(dc.optimize(lambda x: x * 3, backend)(X), X * 3)
    assert len(backend_calls) == 1


def test_disable_ours_and_torch_s():
    @dc.disable
    def ours(x):
        return inner(x)

    @torch.compiler.disable
    def theirs(x):
        return inner(x)

    def inner(x):
        return x * 5

    for disabled in (ours, theirs):

        def function(x, disabled=disabled):
            return disabled(x + 1) - 1

        backend = Counting()
        optimized = dc.optimize(function, backend)
        assert torch.equal(optimized(X), function(X))
        operations = [n.target for gm, _ in backend.graphs for n in gm.graph.nodes]
        assert len(backend.graphs) == 2 and torch.mul not in operations


def test_explain_and_reset():
    explanation = dc.explain(Net())(X, loud=True)
    assert len(explanation.graphs) == 2 and len(explanation.breaks) == 1
    assert "print" in explanation.reasons[0] and "test_optimize.py" in explanation.reasons[0]
    assert (explanation.graph_count, explanation.graph_break_count) == (2, 1)
    assert "print" in explanation.break_reasons[0].reason
    assert explanation.op_count == sum(map(len, explanation.ops_per_graph)) > 2
    for wrapper in (dc.optimize(Net(), Counting()), dc.optimize(Net(), Counting()).forward):
        assert dc.explain(wrapper)(X, loud=True).graph_count == 2
    text = explanation.as_text(verbose=True)
    assert "def _dt_frame(self, x, *, loud)" in text and "guards (" in text
    backend = Counting()
    optimized = dc.optimize(lambda x: x + 1, backend)
    optimized(X)
    dc.reset()
    optimized(X)
    assert len(backend.graphs) == 2


def test_user_exceptions_pass_through_with_their_lines():
    def raises(x):
        y = x + 1
        raise ValueError("mine")
        return y

    with pytest.raises(ValueError, match="mine") as info:
        dc.optimize(raises, Counting())(X)
    assert info.traceback[-1].name == "raises"
    assert str(info.traceback[-1].statement).strip().startswith('raise ValueError("mine")')


def test_threads_compile_once():
    backend, results = Counting(), []
    optimized = dc.optimize(Net(), backend)
    threads = [threading.Thread(target=lambda: results.append(optimized(X))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and len(backend.graphs) == 1


def test_optimized_module_behaves_like_the_module():
    net = Net()
    optimized = dc.optimize(net, Counting())
    assert list(optimized.state_dict()) == list(net.state_dict())
    assert [n for n, _ in optimized.named_children()] == ["_orig_mod"]
    optimized.eval()
    assert not net.training and not optimized.training
    net.train()
    assert optimized.training
    optimized.scale = 7.0
    assert net.scale == 7.0 and optimized.scale == 7.0 and "scale" not in vars(optimized)
    assert torch.equal(optimized(X), net(X))
    del optimized.scale
    assert not hasattr(net, "scale")
    net.scale = 1.0
    assert isinstance(optimized, nn.Module) and optimized._orig_mod is net
    assert next(iter(optimized.parameters())) is net.first.weight
    calls = []
    optimized.register_forward_hook(lambda *_: calls.append("wrapper"))
    net.register_forward_hook(lambda *_: calls.append("module"))
    optimized(X)
    assert calls == ["module", "wrapper"]
    other = copy.deepcopy(optimized)
    assert isinstance(other, dc.OptimizedModule) and other._orig_mod is not net
    assert torch.equal(other(X), net(X))
    again = dc.optimize(optimized, Counting())
    assert again._orig_mod is net


def test_class_of_an_optimized_module_is_its_own():
    """Sharding gives modules classes that it makes of theirs."""
    net = nn.Linear(2, 2)
    optimized = dc.optimize(net, Counting())
    x = torch.randn(3, 2)
    optimized.__class__ = type("Sharded", (dc.OptimizedModule,), {})
    assert type(net) is nn.Linear and type(optimized).__name__ == "Sharded"
    assert torch.equal(optimized(x), net(x))


def test_a_torch_module_is_captured_too():
    check(nn.Sequential(nn.Linear(4, 4), nn.GELU()), X)
    check(nn.Linear(4, 4), X)


def test_a_lazy_module_in_one_graph():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    whole = dc.optimize(lazy, Counting(), fullgraph=True)
    assert torch.equal(whole(X), lazy(X))
    assert type(lazy[0]) is nn.Linear and not lazy[0]._forward_pre_hooks


def test_optimize_refuses_what_it_cannot_wrap():
    with pytest.raises(TypeError, match="instances of Config are not callable"):
        dc.optimize(type("Config", (), {}), Counting())
    with pytest.raises(TypeError, match="not callable"):
        dc.optimize(3, Counting())


def test_wrapper_keeps_name_and_signature():
    import inspect

    def named(x, k=1):
        "Doc."
        return x + k

    optimized = dc.optimize(named, Counting())
    assert optimized.__name__ == "named" and optimized.__doc__ == "Doc."
    place = f"test_optimize.py:{named.__code__.co_firstlineno}"
    told = f"<compiled function {named.__qualname__} ({place}), backend Counting"
    assert repr(optimized) == f"{told}, nothing compiled yet>"
    optimized(torch.ones(2))
    assert repr(optimized) == f"{told}, 1 graph>"
    assert optimized.__code__ is named.__code__ and optimized.__globals__ is globals()
    assert str(inspect.signature(optimized)) == "(x, k=1)"

    class Owner:
        def __init__(self):
            self.k = 2

        @staticmethod
        def _backend(gm, inputs):
            return gm.forward

        def method(self, x):
            return x + self.k

    Owner.method = dc.optimize(Owner.method, Counting())
    assert torch.equal(Owner().method(X), X + 2)


def test_a_mistake_of_ours_costs_speed_and_warns(monkeypatch):
    def broken(code, func, args, *, options):
        raise AssertionError("a mistake")

    def doubled(t):
        return t * 2

    def context(fullgraph):
        return CaptureContext(
            lambda gm, inputs: gm,
            broken,
            options=CaptureOptions(fullgraph=fullgraph, on_error="run_uncompiled"),
        )

    loose = context(False)
    captured = Switched(doubled, loose.hook)
    with pytest.warns(RuntimeWarning, match="internal error while capturing .*a mistake"):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    assert [event.kind for event in loose.log.events] == ["error", "plain"]
    assert torch.equal(captured(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(CaptureError, match="a mistake"):
        Switched(doubled, context(True).hook)(torch.ones(2))


def test_a_profiler_s_own_function_is_not_captured():
    backend = Counting()
    calls = {}

    def profiler(frame, event, argument):
        if event == "call":
            calls[frame.f_code.co_name] = calls.get(frame.f_code.co_name, 0) + 1

    optimized = dc.optimize(lambda x: torch.nn.functional.silu(x) * 2, backend)
    x = torch.randn(3)
    sys.setprofile(profiler)
    try:
        optimized(x)
        results = [optimized(x) for _ in range(3)]
    finally:
        sys.setprofile(None)
    assert calls
    assert len(backend.graphs) == 1
    assert all(torch.equal(r, torch.nn.functional.silu(x) * 2) for r in results)


def test_modules_loaded_by_a_compiled_function_run_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "loaded_late.py").write_text(
        "import threading\n"
        "class Settings(threading.local):\n"
        "    def __init__(self, **values):\n"
        "        self.__dict__.update(values)\n"
        "settings = Settings(scale=3)\n"
    )

    def fn(x: torch.Tensor) -> torch.Tensor:
        from loaded_late import settings

        return x * settings.scale

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        compiled = dc.optimize(fn, lambda gm, inputs: gm)
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))


def test_generated_functions_of_skipped_modules_are_not_captured():
    """What a compiler makes when its backward runs: records of our packages and of torch."""
    point = collections.namedtuple("point", "a b")
    made = []

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            made.append((CaptureOptions(), point(1, 2)))
            return grad

    def backend(gm, inputs):
        return lambda *args: tuple(Late.apply(out) for out in gm.forward(*args))

    def step(x):
        y = (x * 2).sum()
        dc.graph_break()
        y.backward()
        return y

    optimized = dc.optimize(step, backend)
    optimized(X.clone().requires_grad_())
    assert made == [(CaptureOptions(), point(1, 2))]
    names = [event.name for event in optimized.capture_context.log.events]
    assert not [name for name in names if "__init__" in name or name == "<lambda>"], names
    assert any("backward" in name for name in names)  # what is the user's is looked at


@pytest.mark.parametrize("pre", [False, True])
def test_backward_hooks_of_modules_run_with_gradients(pre):
    """A module with backward hooks is called by Python: a counted break, and eager's results."""
    seen = []
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    if pre:
        net[2].register_full_backward_pre_hook(lambda m, out: (out[0] * 2,))
    net[2].register_full_backward_hook(lambda m, into, out: seen.append((into[0], out[0])))
    net[0].register_full_backward_hook(lambda m, into, out: seen.append((into[0], out[0])))

    def step(x):
        y = x * 2
        return (net(y) + 1).sum()

    def gradients(call):
        seen.clear()
        x = X.clone().requires_grad_()
        call(x).backward()
        found = [x.grad, *(p.grad for p in net.parameters())]
        net.zero_grad()
        return [*found, *(part for pair in seen for part in pair)]

    backend = Counting()
    optimized = dc.optimize(step, backend)
    for _ in range(3):
        for expected, got in zip(gradients(step), gradients(optimized), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert len(seen) == 2
    assert len(backend.graphs) <= 4
    log = optimized.capture_context.log
    assert any("backward hooks" in b.reason for b in log.breaks), log.as_text()
    with pytest.raises(dc.GraphBreakError, match="backward hooks"):
        dc.optimize(step, Counting(), fullgraph=True)(X.clone().requires_grad_())
    net[2]._backward_hooks.clear()  # of a module without any, the next call is one graph
    net[2]._backward_pre_hooks.clear()
    net[0]._backward_hooks.clear()
    dc.optimize(step, Counting(), fullgraph=True)(X)


def test_what_is_known_of_a_code_goes_when_the_code_dies() -> None:
    facts = FactsByCode()
    kept, dying = compile("1", "a", "eval"), compile("2", "b", "eval")
    facts.of(kept).plain_floats = True
    facts.of(dying).refused[0] = "a reason"
    assert facts.of(kept) is facts.of(kept) and len(facts.all()) == 2
    del dying
    gc.collect()
    assert [known.plain_floats for known in facts.all()] == [True]


def scaled(x, by):
    return x * by


@functools.singledispatch
def dispatched(x):
    return x * 3


dispatched.register(int, abs)
LAYER = nn.Linear(8, 8)
FRAMELESS = {
    "function in C": (torch.add, 2),
    "torch.nn.functional's": (nn.functional.gelu, 1),
    "method in C": (torch.Tensor.mul, 2),
    "bound method in C": (torch.ones(8).add, 1),
    "operator": (torch.ops.aten.add, 2),
    "overload": (torch.ops.aten.add.Tensor, 2),
    "operator's function": (operator.matmul, 2),
    "partial of C": (functools.partial(torch.add, alpha=2), 2),
    "partial of Python": (functools.partial(scaled, by=torch.ones(8)), 1),
    "partial of a module": (functools.partial(LAYER), 1),
    "module's forward": (LAYER.forward, 1),
    "function by the type of its argument": (dispatched, 1),
    "getter of an item": (operator.itemgetter(slice(2, 5)), 1),
    "getter of attributes": (operator.attrgetter("real", "data"), 1),
    "caller of a method": (operator.methodcaller("sum", dim=0), 1),
}


@pytest.mark.parametrize("name", FRAMELESS)
def test_targets_without_python_frames_are_captured(name):
    """Callables in C, whose call runs no Python frame, are one graph, too."""
    target, arguments = FRAMELESS[name]
    inputs = [torch.randn(8, requires_grad=True) for _ in range(arguments)]
    backend = Counting()
    compiled = dc.optimize(target, backend, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), target(*inputs))
    assert len(backend.graphs) == backend.runs == 1
    exported = dc.export(target, tuple(inputs))
    torch.testing.assert_close(exported(*inputs), target(*inputs))


def test_parts_of_an_optimized_container():
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = dc.optimize(layers, Counting())
    assert compiled[0] is layers[0] and compiled[-1] is layers[1]
    assert list(compiled[:1]) == [layers[0]] and len(compiled) == 2
    with pytest.raises(TypeError, match="not subscriptable"):
        dc.optimize(layers[0], Counting())[0]


def test_a_hook_on_all_modules_runs_once_for_a_compiled_one():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiled = dc.optimize(module, lambda gm, inputs: gm.forward)
    x, seen = torch.ones(1, 2), []
    before = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda m, args: seen.append(type(m).__name__)
    )
    after = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        expected, names = module(x), list(seen)
        seen.clear()
        assert torch.equal(compiled(x), expected)
        assert seen == names
    finally:
        before.remove()
        after.remove()
    assert torch.equal(compiled(x), module(x))


def test_a_class_gets_instances_whose_calls_are_captured():
    backend = Counting()

    @functools.partial(dc.optimize, backend=backend)
    class Scaled(nn.Module):
        def __init__(self, factor=1):
            super().__init__()
            self.inner, self.factor = nn.Linear(2, 2), factor

        def forward(self, x):
            return self.inner(x) * self.factor

    class Shifted(Scaled):
        def forward(self, x):
            return super().forward(x) + 1

    @functools.partial(dc.optimize, backend=backend)
    class Times:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x):
            return x * self.factor

    x = torch.ones(2, 2)
    for instance in (Scaled(), Scaled(3), Shifted(2)):
        assert torch.equal(instance(x), instance.forward(x))
        assert list(instance.state_dict()) == ["inner.weight", "inner.bias"]
        assert torch.equal(copy.deepcopy(instance)(x), instance.forward(x))
    assert torch.equal(Times(3)(x), x * 3)
    assert isinstance(Scaled(), Scaled) and len(backend.graphs) >= 3
    instance = Scaled()
    instance.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(instance(x), instance.forward(x) * 2)
    assert "Scaled.forward" in Scaled.capture_context.log.as_text()


def test_what_a_frame_without_a_graph_calls_is_not_captured_again():
    def inner(key):
        return len(key)

    def outer(x):
        return {name: inner(name) for name in ("a", "bb", "ccc")}, x

    captured = dc.optimize(outer, Counting())
    x = torch.ones(2)
    for _ in range(3):
        assert captured(x)[0] == {"a": 1, "bb": 2, "ccc": 3}
    assert [event.kind for event in captured.capture_context.log.events] == ["no graph"]


def test_what_runs_only_uncompiled_is_captured_where_it_runs():
    def inner(x):
        return x + 1

    def outer(x):
        return 3 if torch.compiler.is_compiling() else inner(x)

    backend = Counting()
    assert torch.equal(dc.optimize(outer, backend)(torch.ones(2)), torch.full((2,), 2.0))
    assert len(backend.graphs) == 1


def test_a_loop_with_a_break_that_fills_a_list_is_compiled_for_any_length():
    def filled(xs):
        out = []
        for x in xs:
            out.append(x * x.sum().item())
        return out, [x * x.sum().item() for x in xs]

    captured = dc.optimize(filled, Counting())
    xs = [torch.full((2,), float(number)) for number in range(1, 20)]
    for count in (19, 12):
        found, expected = captured(xs[:count]), filled(xs[:count])
        assert all(map(torch.equal, found[0] + found[1], expected[0] + expected[1]))
        assert len(found[0]) == len(found[1]) == count
    told = captured.capture_context.recompiles()
    assert len(told) < 8 and not [why for why in told if "len(out)" in why]


def test_a_list_that_grows_with_each_call_is_one_version():
    history, watched = [], []

    def step(x):
        history.append(x + 1)
        watched.append(x.sum())
        return x * 2, len(watched)

    captured = dc.optimize(step, Counting())
    for number in range(1, 4):
        x = torch.full((2,), float(number))
        assert torch.equal(captured(x)[0], x * 2)
        assert captured(x)[1] == len(watched) == len(history) == 2 * number
        assert torch.equal(history[-1], x + 1) and watched[-1] == x.sum()
    told = captured.capture_context.recompiles()
    assert told and all("len(watched)" in why for why in told)


def test_a_list_that_was_appended_to_is_read_with_what_it_had():
    def program(items, x):
        items.append(x + 1)
        first = items[0] * 2
        items.append(first)
        return len(items), items[-2], sum(items)

    captured = dc.optimize(program, Counting(), fullgraph=True)
    for length in (0, 1, 3, 1):
        ones, same = ([torch.ones(2)] * length for _ in range(2))
        ones, same = list(ones), list(same)
        found, expected = captured(ones, torch.ones(2)), program(same, torch.ones(2))
        assert found[0] == expected[0] and all(map(torch.equal, found[1:], expected[1:]))
        assert len(ones) == len(same) and all(map(torch.equal, ones, same))
