"""The native check: its C interface, lifetimes, refusals, and cases the fuzzer does not reach."""

from __future__ import annotations

import abc
import ctypes
import gc
import sys
import threading
import weakref
from pathlib import Path
from types import FunctionType
from typing import Any

import dovetail_guards.native_load as native_load
import pytest
import torch
from dovetail_guards import FrameView, GuardSet
from dovetail_guards import clauses as c
from dovetail_guards import source as s
from dovetail_guards.torch_state import READERS
from guard_costs import module_clauses, tensor_clause

X = s.LocalSource("x")

# torch.use_deterministic_algorithms does this, and imports much besides.
set_deterministic: Any = torch._C._set_deterministic_algorithms


def f(x: Any, *rest: Any, k: Any = 1, **kw: Any) -> Any:
    return x


def raw(x: Any, *rest: Any, k: Any = 1, **kw: Any) -> tuple[Any, ...]:
    return (x, k, rest, kw)


def both(guards: GuardSet, args: tuple[Any, ...], func: FunctionType = f) -> bool:
    native = guards.compile(func.__code__)
    slow = guards.check_slow(FrameView(args, func))
    for _ in range(3):
        assert native(args, func) == slow
    return slow


class DovetailGuard(ctypes.Structure):
    """What the capsule points to, declared again as the frame hook does."""

    _fields_ = (
        ("abi", ctypes.c_uint64),
        (
            "check",
            ctypes.PYFUNCTYPE(
                ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.py_object
            ),
        ),
        ("ctx", ctypes.c_void_p),
    )


def entry_of(capsule: Any) -> DovetailGuard:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return DovetailGuard.from_address(get(capsule, b"dovetail.guard.v1"))


def test_the_capsule_is_the_check_and_keeps_the_guard() -> None:
    x = torch.ones(2)
    capsule = GuardSet([tensor_clause(X, x)]).compile(f.__code__).capsule
    gc.collect()
    entry = entry_of(capsule)
    assert entry.abi == 1
    args = (ctypes.c_void_p * 4)(id(x), None, None, None)
    assert entry.check(entry.ctx, args, f) == 1
    other = torch.ones(3)
    args[0] = id(other)
    assert entry.check(entry.ctx, args, f) == 0
    args[0] = None  # an argument slot may be empty
    assert entry.check(entry.ctx, args, f) == 0


def test_a_million_checks_use_constant_memory() -> None:
    """Settled guards, guards with a dict that changes, and such as ask Python."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    x = torch.ones(2)
    clauses = [*module_clauses(X, module), c.SameObject((X, X)), c.TorchState("autocast", ())]
    native = GuardSet(clauses).compile(f.__code__)
    asking = GuardSet([c.ConstantIs(s.AttrSource(X, "training"), True)]).compile(f.__code__)
    tensor = GuardSet([tensor_clause(X, x)]).compile(f.__code__)
    args, before = raw(module), 0
    for attempt in range(4):
        assert native.repeat(args, f, 500_000) == 500_000
        assert tensor.repeat(raw(x), f, 500_000) == 500_000
        assert asking.repeat(args, f, 100_000) == 100_000
        for step in range(2000):
            module.note = step
            assert native(args, f)
        resident = int(Path("/proc/self/statm").read_text().split()[1])
        if attempt:
            grown = (resident - before) * 4
            if grown < 1000:
                return
        before = resident
    raise AssertionError(f"every million checks the process grows by {grown} KiB")


def test_every_torch_state() -> None:
    changes: dict[str, Any] = {
        "grad_mode": lambda: torch.no_grad(),
        "inference_mode": lambda: torch.inference_mode(),
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "torch_function_modes": lambda: torch.device("meta"),
        "default_device": lambda: torch.device("meta"),
        "saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(id, id),
        "anomaly_mode": lambda: torch.autograd.set_detect_anomaly(True),
        "torch_dispatch_modes": lambda: _Dispatch(),
    }
    for name, read in READERS.items():
        guards = GuardSet([c.TorchState(name, read())])
        assert both(guards, raw(0)), name
        if name in changes:
            with changes[name]():
                assert not both(guards, raw(0)), name
                assert both(GuardSet([c.TorchState(name, read())]), raw(0)), name
            assert both(guards, raw(0)), name


def test_transforms_of_functions() -> None:
    guards, seen = GuardSet([c.TorchState("function_transforms", False)]), []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(both(guards, raw(0)))
        return x.sum()

    x = torch.ones(2, 3)
    for transformed in (torch.vmap(look), torch.func.grad(look), torch.func.vmap(torch.vmap(look))):
        assert both(guards, raw(0))
        transformed(x)
    assert seen == [False] * 3 and both(guards, raw(0))


@pytest.mark.parametrize(
    ("name", "change", "back"),
    [
        ("default_dtype", lambda: torch.set_default_dtype(torch.float64), torch.float32),
        ("deterministic", lambda: set_deterministic(True, warn_only=True), False),
        ("num_threads", lambda: torch.set_num_threads(3), None),
        ("float32_matmul_precision", lambda: torch.set_float32_matmul_precision("high"), None),
        ("sdp_kernels", lambda: torch.backends.cuda.enable_math_sdp(False), None),
        ("cudnn", lambda: setattr(torch.backends.cudnn, "deterministic", True), None),
    ],
)
def test_every_torch_setting(name: str, change: Any, back: Any) -> None:
    threads = torch.get_num_threads()
    restore: dict[str, Any] = {
        "default_dtype": torch.set_default_dtype,
        "deterministic": set_deterministic,
        "num_threads": lambda: torch.set_num_threads(threads),
        "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("highest"),
        "sdp_kernels": lambda: torch.backends.cuda.enable_math_sdp(True),
        "cudnn": lambda: setattr(torch.backends.cudnn, "deterministic", False),
    }
    guards = GuardSet([c.TorchState(name, READERS[name]())])
    assert both(guards, raw(0))
    change()
    try:
        assert not both(guards, raw(0))
        assert both(GuardSet([c.TorchState(name, READERS[name]())]), raw(0))
    finally:
        restore[name](*(() if back is None else (back,)))
    assert both(guards, raw(0))


class _Dispatch(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_all_kinds_of_roots() -> None:
    captured = [1, 2]

    def outer(x: Any) -> Any:
        return captured, x

    guards = GuardSet(
        [
            c.LengthIs(s.ClosureSource("captured"), 2),
            c.IdIs(s.GlobalSource("torch"), torch),
            c.IdIs(s.BuiltinSource("len"), len),
            c.GlobalPresent("len", False),
            c.ConstantIs(s.ItemSource(s.ObjectSource(captured, "held"), 0), 1),
        ]
    )
    assert both(guards, (0,), outer)
    captured.append(3)
    assert not both(guards, (0,), outer)
    captured.pop()
    outer.__globals__["len"] = abs
    try:
        assert not both(guards, (0,), outer)
    finally:
        del outer.__globals__["len"]
    assert both(guards, (0,), outer)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="not in"):
        GuardSet([c.TypeIs(s.LocalSource("zork"), int)]).compile(f.__code__)


def test_relations_between_tensors() -> None:
    a, b = torch.ones(4), torch.ones(4)
    first, second = s.ItemSource(X, 0), s.ItemSource(X, 1)
    distinct = GuardSet([c.DistinctObjects((first, second))])
    same = GuardSet([c.SameObject((first, second))])
    storage = GuardSet([c.DistinctStorage((first, second))])
    assert both(distinct, raw((a, b))) and not both(distinct, raw((a, a)))
    assert both(same, raw((a, a))) and not both(same, raw((a, b)))
    assert both(storage, raw((a, b))) and not both(storage, raw((a, a[1:])))
    assert not both(storage, raw((a, 3))) and not both(same, raw((a,)))
    many = [torch.ones(1) for _ in range(40)]
    clause = c.DistinctStorage(tuple(s.ItemSource(X, i) for i in range(40)))
    assert both(GuardSet([clause]), raw(many))
    many[39] = many[3].view(1, 1)
    assert not both(GuardSet([clause]), raw(many))


def test_hooks_of_the_node_that_accumulates() -> None:
    guards = GuardSet([c.NoAccumulatorHooks(X)])
    tensor = torch.ones(2, requires_grad=True)
    assert both(guards, raw(tensor)) and both(guards, raw(torch.ones(2)))
    assert not both(guards, raw(3))
    assert both(guards, raw(tensor * 2))  # no leaf has such a node
    tensor.register_hook(lambda gradient: None)
    node = torch.autograd.graph.get_gradient_edge(tensor).node
    assert both(guards, raw(tensor))
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *gradients: None)
        assert not both(guards, raw(tensor))
        failed = guards.explain_failure(FrameView(raw(tensor), f))
        assert failed is not None and "no hooks on the node" in str(failed)
        handle.remove()
        assert both(guards, raw(tensor))


def test_a_descriptor_that_changes_what_is_guarded() -> None:
    class Nasty:
        def __init__(self) -> None:
            self.items = {"a": [1]}

        @property
        def poke(self) -> int:
            self.items = {"a": [1]}  # what was read before is freed now
            return 1

    items = s.InstanceAttrSource(X, "items")
    guards = GuardSet(
        [
            c.LengthIs(s.ItemSource(items, "a"), 1),
            c.ConstantIs(s.AttrSource(X, "poke"), 1),
            c.ConstantIs(s.ItemSource(s.ItemSource(items, "a"), 0), 1),
        ]
    )
    native = guards.compile(f.__code__)
    args = raw(Nasty())
    assert native.repeat(args, f, 1000) == 1000


def test_a_check_that_raises_no_exception_goes_up() -> None:
    class Stops:
        @property
        def poke(self) -> int:
            raise KeyboardInterrupt

        @property
        def fails(self) -> int:
            raise RuntimeError

    native = GuardSet([c.ConstantIs(s.AttrSource(X, "poke"), 1)]).compile(f.__code__)
    with pytest.raises(KeyboardInterrupt):
        native(raw(Stops()), f)
    assert not both(GuardSet([c.ConstantIs(s.AttrSource(X, "fails"), 1)]), raw(Stops()))


def test_an_address_used_again_is_not_mistaken() -> None:
    class Holder:
        pass

    def holder(value: Any) -> Holder:
        made = Holder()
        made.value = value
        made.__dict__  # noqa: B018 - reading it makes the dict
        return made

    native = GuardSet([c.ConstantIs(s.InstanceAttrSource(X, "value"), 7)]).compile(f.__code__)
    addresses = set()
    for i in range(2000):
        thing = holder(7 if i % 3 else 8)
        addresses.add(id(thing))
        for _ in range(2):
            assert native(raw(thing), f) == (i % 3 != 0)
        del thing
    assert len(addresses) < 100


def test_constant_memory_and_references_over_a_million_calls() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    x = torch.ones(2)
    relation = c.DistinctObjects((X, s.LocalSource("k")))
    guards = GuardSet([tensor_clause(X, x), relation, *module_clauses(s.LocalSource("k"), model)])
    native = guards.compile(f.__code__)
    args = raw(x, k=model)
    assert native.repeat(args, f, 10) == 10
    gc.collect()
    held = [x, model, model[0].weight, model.__dict__, model._modules, True, f]
    before = [sys.getrefcount(o) for o in held]
    blocks = sys.getallocatedblocks()
    assert native.repeat(args, f, 1_000_000) == 1_000_000
    assert native.repeat(raw(torch.ones(3), k=model), f, 1000) == 0
    assert [sys.getrefcount(o) for o in held] == before
    assert abs(sys.getallocatedblocks() - blocks) < 200


def test_a_guard_lets_go_of_what_it_holds() -> None:
    class Thing:
        guard: object

    watch = weakref.ref(Thing)
    native = GuardSet([c.IdIs(X, Thing)]).compile(f.__code__)
    capsule = native.capsule
    Thing.guard = native  # a cycle through the guard, which the collector must see
    del Thing, native
    gc.collect()
    assert watch() is not None
    del capsule
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("traced", [False, True])
def test_a_guard_expires_with_the_object_that_it_wants(traced: bool) -> None:
    """Whatever comes to lie at its address."""

    class Thing:
        number = 1

    class Holder:
        pass

    holder = Holder()
    holder.thing = Thing()  # type: ignore[attr-defined]
    clause = c.IdIs(s.InstanceAttrSource(X, "thing"), holder.thing)  # type: ignore[attr-defined]
    guards = GuardSet([clause])
    native = guards.compile(f.__code__)
    for _ in range(10 * traced):
        assert native(raw(holder), f)
    assert native.is_traced == traced and not native.is_expired
    watch, address = weakref.ref(holder.thing), id(holder.thing)  # type: ignore[attr-defined]
    del holder.thing  # type: ignore[attr-defined]
    assert watch() is None and native.is_expired
    assert clause.obj is c.DEAD and "gone" in guards.as_text()
    others = []
    while not others or id(others[-1]) != address:
        others.append(Thing())
        if len(others) == 10_000:
            pytest.skip("nothing came to lie at its address")
    holder.thing = others.pop()  # type: ignore[attr-defined]
    assert id(holder.thing) == address  # type: ignore[attr-defined]
    assert not native(raw(holder), f) and not guards.check_slow(FrameView(raw(holder), f))
    failure = guards.explain_failure(FrameView(raw(holder), f))
    assert failure is not None and "another object" in str(failure)


@pytest.mark.parametrize("traced", [False, True])
def test_a_tensor_that_is_compared_by_its_address(traced: bool) -> None:
    """No weak reference, and whatever comes to lie there must be as other clauses say."""
    layer = torch.nn.Linear(2, 2)
    place = s.ItemSource(s.InstanceAttrSource(X, "_parameters"), "weight")
    clause = c.IdIs(place, layer.weight, by_address=True)
    guards = GuardSet([clause, tensor_clause(place, layer.weight)])
    native = guards.compile(f.__code__)
    for _ in range(10 * traced):
        assert native(raw(layer), f)
    assert native.is_traced == traced
    assert not weakref.getweakrefs(layer.weight)
    assert clause.is_met_by(layer.weight) and clause.obj is c.UNKNOWN
    first, address = layer.weight, id(layer.weight)
    layer.weight = torch.nn.Parameter(torch.ones(2, 2))
    assert not native(raw(layer), f) and not guards.check_slow(FrameView(raw(layer), f))
    layer.weight = first
    assert native(raw(layer), f)
    del first
    watch = torch._C._WeakTensorRef(layer.weight)  # type: ignore[attr-defined]
    del layer.weight
    assert watch.expired()
    for dtype in (torch.float64, torch.float32):
        for _ in range(100):
            layer.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=dtype))
            there = id(layer.weight) == address and dtype is torch.float32
            view = FrameView(raw(layer), f)
            assert native(raw(layer), f) == guards.check_slow(view) == there


def test_many_guards_come_and_go() -> None:
    model = torch.nn.Linear(2, 2)
    guards = GuardSet(module_clauses(X, model))
    for _ in range(20):
        guards.compile(f.__code__).repeat(raw(model), f, 3)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(300):
        guards.compile(f.__code__).repeat(raw(model), f, 3)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 300


def test_threads() -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
    native = GuardSet(module_clauses(X, model)).compile(f.__code__)
    wrong: list[bool] = []

    def work() -> None:
        for _ in range(300):
            if native.repeat(raw(model), f, 50) != 50:
                wrong.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_another_torch_is_refused_with_the_way_to_rebuild() -> None:
    native_load.check_version("2.15.0", "2.15.0")
    with pytest.raises(ImportError, match=r"built against torch 2\.11\.0.*setup\.py build_ext"):
        native_load.check_version("2.11.0", "2.15.0")
    native_load.check_tables(native_load.TABLES)
    with pytest.raises(ImportError, match="Rebuild"):
        native_load.check_tables(native_load.TABLES - 1)


def test_a_wrong_view_of_torch_is_refused() -> None:
    from dovetail_guards import _native  # type: ignore[attr-defined]

    class Lies:
        def __getattr__(self, name: str) -> Any:
            return getattr(_native, name)

        def probe_address(self, tensor: torch.Tensor) -> int:
            return 16

    with pytest.raises(ImportError, match="reads TensorImpl wrongly"):
        native_load.prove_layout(Lies())


def test_malformed_tables_are_refused() -> None:
    from dovetail_guards import _native  # type: ignore[attr-defined]

    with pytest.raises(TypeError):
        _native.NativeGuard(1, [(0,)], [], [], [])
    with pytest.raises(TypeError):
        _native.NativeGuard(1, [(5, 7, "x", 0)], [], [], [])
    with pytest.raises(TypeError, match="no tensor type"):
        clause = c.TensorIs(X, int, torch.float32, torch.device("cpu"), False, (), ())
        GuardSet([clause]).compile(f.__code__)


class Pair:
    """Says what it holds, as tensor subclasses do that wrap tensors."""

    def __init__(self, context: Any) -> None:
        self.context = context

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        if self.context is None:
            raise ValueError
        return ["a", "b"], self.context


def test_what_a_tensor_subclass_says_of_itself() -> None:
    guards = GuardSet([c.ConstantIs(s.FlattenSource(X), (["a", "b"], 2))])
    assert both(guards, raw(Pair(2)))
    assert not both(guards, raw(Pair(3)))
    assert not both(guards, raw(Pair(2.0)))
    assert not both(guards, raw(Pair(None)))
    assert not both(guards, raw(1))
    guard = guards.compile(f.__code__)
    pair = Pair(2)
    for _ in range(300):
        assert guard(raw(pair), f)
    pair.context = 5
    assert not guard(raw(pair), f)


def test_answers_about_abstract_classes_are_asked_again() -> None:
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def name(self) -> str: ...

    class First:
        pass

    class Second:
        pass

    Abstract.register(First)
    answers = c.AbstractAnswers(((First, Abstract, True), (Second, Abstract, False)))
    guards = GuardSet([answers])
    assert both(guards, raw(0))
    Abstract.register(type("Other", (), {}))
    assert both(guards, raw(0)) and "First is a subclass of" in guards.as_text()
    Abstract.register(Second)
    assert not both(guards, raw(0))
    assert "a class was registered" in str(guards.explain_failure(FrameView(raw(0), f)))


def test_names_of_classes() -> None:
    class Named:
        pass

    class Meta(type):
        __name__ = property(lambda cls: "its own")  # type: ignore[assignment]

    class Own(metaclass=Meta):
        pass

    held = s.ObjectSource(Named, "Named")
    guards = GuardSet(
        [
            c.ConstantIs(s.AttrSource(held, "__name__"), "Named"),
            c.ConstantIs(s.AttrSource(held, "__qualname__"), Named.__qualname__),
            c.ConstantIs(s.AttrSource(s.ObjectSource(int, "int"), "__name__"), "int"),
            c.ConstantIs(s.AttrSource(s.ObjectSource(Own, "Own"), "__name__"), "its own"),
        ]
    )
    guard = guards.compile(f.__code__)
    for _ in range(300):
        assert guard(raw(0), f)
    Named.__name__ = "".join(["Nam", "ed"])  # an equal one
    assert guard(raw(0), f) and both(guards, raw(0))
    Named.__qualname__ = "Other"
    assert not guard(raw(0), f) and not both(guards, raw(0))


def test_a_class_s_name_takes_no_call() -> None:
    names = [type(f"Named{i}", (), {}) for i in range(50)]
    guards = GuardSet(
        [
            c.ConstantIs(s.AttrSource(s.ObjectSource(cls, cls.__name__), "__name__"), cls.__name__)
            for cls in names
        ]
    )
    guard = guards.compile(f.__code__)
    for _ in range(300):
        assert guard(raw(0), f)
    assert guard.is_traced
    names[-1].__name__ = "Other"
    assert not guard(raw(0), f)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        (0.0, -0.0),
        ((True,), (1,)),
        ((1,), (1.0,)),
        (((0.0,),), ((-0.0,),)),
        (complex(0.0, 0.0), complex(-0.0, 0.0)),
        (frozenset({1}), frozenset({True})),
    ],
)
def test_keys_that_only_look_equal(key: Any, other: Any) -> None:
    guards = GuardSet([c.DictKeysAre(X, (key,))])
    equal = eval(repr(key))
    assert both(guards, raw({key: 1})) and both(guards, raw({equal: 1}))
    assert not both(guards, raw({other: 1}))
