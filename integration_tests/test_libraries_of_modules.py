"""What libraries ask of a compiled module: how they know, unwrap, save and shard it.

The checks of accelerate, diffusers, Lightning and PEFT are written out here as these libraries make
them. PyTorch's own are called.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail


def theirs() -> Any:
    """torch.compile's class of compiled modules."""
    return importlib.import_module("torch._dynamo").OptimizedModule


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))

    def training_step(self, x: Tensor) -> Tensor:
        return self(x).sum()


class Outer(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) * 2


def compiled(prefix: bool = False) -> Any:
    return dovetail.compile(Net(), backend="eager", options={"state_dict_prefix": prefix})


PREFIXED = pytest.mark.parametrize("prefix", [False, True])


@PREFIXED
def test_is_compiled_module(prefix: bool) -> None:
    module = compiled(prefix)
    assert isinstance(module, theirs()) and not issubclass(type(module), theirs())
    assert isinstance(module, nn.Module) and not isinstance(module, nn.Linear)
    assert not isinstance(Net(), theirs())
    for copied in (copy.copy(module), copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert isinstance(copied, theirs()) and type(copied) is type(module)
        assert list(copied.state_dict()) == list(module.state_dict())
    assert repr(module).startswith("OptimizedModule(\n  (_orig_mod): Net(\n    (first): Linear(")
    assert isinstance(module._orig_mod, Net) and module.__class__ is theirs()
    assert any(isinstance(m, theirs()) for m in nn.Sequential(module).modules())
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert isinstance(torch.load(file, weights_only=False)._orig_mod, Net)


def test_asking_loads_nothing() -> None:
    program = (
        "import sys, torch, dovetail\n"
        "m = dovetail.compile(torch.nn.Linear(2, 2), backend='eager')\n"
        "assert isinstance(m, torch.nn.Linear) is False and m.__class__ is type(m)\n"
        "m(torch.ones(1, 2)), repr(m), m.state_dict()\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "assert isinstance(m, torch._dynamo.OptimizedModule)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_pipeline_saves_its_parts() -> None:
    """diffusers: the class of what was unwrapped tells how a part is saved."""

    class Unet(Net):
        def save_pretrained(self) -> dict[str, Tensor]:
            return self.state_dict()

    part: Any = dovetail.compile(Unet(), backend="eager")
    unwrapped = part._orig_mod if isinstance(part, theirs()) else part
    assert issubclass(unwrapped.__class__, Unet) and len(unwrapped.save_pretrained()) == 9


@pytest.mark.parametrize("keep", [False, True])
def test_unwrap_model(keep: bool) -> None:
    """accelerate: unwrapped, and wrapped again by an assignment."""
    module = compiled()
    assert isinstance(module, theirs())
    inner = module._orig_mod
    if keep:
        module._orig_mod = inner
        assert module._orig_mod is inner and "_orig_mod" not in dict(module.named_parameters())
        assert torch.equal(module(torch.ones(3, 2)), inner(torch.ones(3, 2)))
    else:
        assert type(inner) is Net


def test_functions_are_compiled_as_their_module() -> None:
    """Lightning: the steps of a module are compiled with its `dynamo_ctx`."""
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(gm)
        return gm.forward

    module: Any = dovetail.compile(Net(), backend=backend, fullgraph=True)
    context = module.dynamo_ctx
    inner = module._orig_mod
    inner.training_step = context(inner.training_step)
    inner.training_step(torch.ones(3, 2)).backward()
    assert len(seen) == 1 and inner.first.weight.grad is not None
    loaded = pickle.loads(pickle.dumps(compiled().dynamo_ctx)).settings
    own = {key: loaded[key] for key in ("fullgraph", "backend_key")}
    assert loaded == context.settings | own and not own["fullgraph"]


def test_compiled_again_with_the_same_arguments() -> None:
    """Lightning Fabric: unwrapped, wrapped in a module of its own, and compiled as before."""
    module: Any = dovetail.compile(Net(), backend="eager", dynamic=False)
    again: Any = dovetail.compile(Outer(module._orig_mod), **module._compile_kwargs)
    assert again(torch.ones(3, 2)).shape == (3, 1)
    assert again.dynamo_ctx.settings["dynamic"] is False
    module._compile_kwargs = {"backend": "eager"}  # as Fabric notes them
    assert module._compile_kwargs == {"backend": "eager"}


def test_names_for_those_who_count_on_the_prefix() -> None:
    """PEFT: where there is an `_orig_mod`, names of a state dict begin with it."""
    asking: dict[str, Any] = {"__name__": "peft.utils.hotswap"}
    exec("def missing(model): return set(model.state_dict())", asking)
    module = compiled()
    missing = asking["missing"](module)
    for name in module.state_dict():
        missing.remove(f"_orig_mod.{name}")
    assert not missing


WALK = """
def named(module, prefix=""):
    for name, tensor in module.named_parameters(recurse=False):
        yield prefix + name, tensor
    for name, child in module.named_children():
        yield from named(child, prefix + name + ".")
"""


@PREFIXED
@pytest.mark.parametrize("nested", [False, True])
def test_names_made_of_those_of_children(prefix: bool, nested: bool) -> None:
    """accelerate: hooks that bring offloaded weights are found by names made on the way down."""
    walking: dict[str, Any] = {"__name__": "accelerate.hooks"}
    exec(WALK, walking)
    for part in (compiled(prefix), dovetail.compile(nn.Linear(2, 1), backend="eager")):
        model = Outer(part) if nested else part
        found = dict(walking["named"](model))
        assert sorted(found) == sorted(name for name, _ in model.named_parameters())
        model.load_state_dict(model.state_dict())


@PREFIXED
@pytest.mark.parametrize("nested", [False, True])
def test_distributed_checkpoints(prefix: bool, nested: bool) -> None:
    from torch.distributed.checkpoint import state_dict as checkpoints

    def made(part: nn.Module) -> nn.Module:
        return Outer(part) if nested else part

    model, plain = made(compiled(prefix)), made(Net())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    saved = checkpoints.get_model_state_dict(model)
    assert list(saved) == list(plain.state_dict())
    steps = checkpoints.get_optimizer_state_dict(model, optimizer)
    assert list(steps["state"]) == [n for n, _ in plain.named_parameters()]
    other = made(compiled(prefix))
    checkpoints.set_model_state_dict(other, saved)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    restored = torch.optim.Adam(other.parameters())
    checkpoints.set_optimizer_state_dict(other, restored, steps)
    assert len(restored.state) == len(optimizer.state)


@pytest.fixture
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel() -> None:
    from torch.distributed.checkpoint import state_dict as checkpoints

    wrap = nn.parallel.DistributedDataParallel
    inside: Any = wrap(compiled())
    outside: Any = dovetail.compile(wrap(Net()), backend="eager")
    names = [name for name, _ in Net().named_parameters()]
    for model in (inside, outside):
        assert [n for n, _ in model.named_parameters()] == [f"module.{name}" for name in names]
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        assert list(checkpoints.get_optimizer_state_dict(model, optimizer)["state"]) == names
        assert list(checkpoints.get_model_state_dict(model)) == list(Net().state_dict())


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("first", ["compile", "shard"])
def test_layers_sharded_and_compiled(first: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))

    def prepared(layer: nn.Module) -> nn.Module:
        steps = [
            lambda m: dovetail.compile(m, backend="eager"),
            lambda m: fully_shard(m, mesh=mesh),
        ]
        for step in steps if first == "compile" else reversed(steps):
            layer = step(layer)
        return layer

    plain = nn.Sequential(nn.Linear(2, 3), Outer(nn.Linear(3, 3)), nn.Linear(3, 1))
    model = copy.deepcopy(plain)
    model[1], model[2] = prepared(model[1]), prepared(model[2])
    fully_shard(model, mesh=mesh)
    x = torch.ones(4, 2)
    for either in (plain, model):
        either(x).sum().backward()
    for (name, mine), (other, theirs) in zip(
        model.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == other and mine.grad is not None
        assert torch.equal(mine.grad.full_tensor(), theirs.grad)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("within", [False, True])
def test_optimizer_states_under_fsdp(within: bool) -> None:
    from torch.distributed.checkpoint import state_dict as checkpoints
    from torch.distributed.fsdp import FullyShardedDataParallel

    model: Any = dovetail.compile(Outer(nn.Linear(2, 2)), backend="eager")
    if within:
        model = Outer(dovetail.compile(nn.Linear(2, 2), backend="eager"))
    cpu = torch.device("cpu")
    sharded = FullyShardedDataParallel(model, use_orig_params=True, device_id=cpu)
    optimizer = torch.optim.Adam(sharded.parameters())
    sharded(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    options = checkpoints.StateDictOptions(full_state_dict=True)
    states = checkpoints.get_optimizer_state_dict(sharded, optimizer, options=options)
    assert sorted(states["state"]) == ["part.bias", "part.weight"]
    saved = checkpoints.get_model_state_dict(sharded, options=options)
    assert list(saved) == ["part.weight", "part.bias"]


def test_a_class_made_from_the_one_it_answers() -> None:
    """FSDP2 makes a class of a module's, and gives it to the module."""

    class Sharded:
        def unshard(self) -> str:
            return "unsharded"

    module = compiled()
    assert isinstance(module, theirs())
    cls = module.__class__
    module.__class__ = type(f"FSDP{cls.__name__}", (Sharded, cls), {})
    assert isinstance(module, Sharded) and isinstance(module, theirs())
    assert type(module).__name__ == "FSDPOptimizedModule" and module.unshard() == "unsharded"
    assert isinstance(module, type(compiled())) and not issubclass(type(module), theirs())
    assert module(torch.ones(3, 2)).shape == (3, 1)


def test_data_parallel_within_says_what_to_do() -> None:
    module = compiled()
    with pytest.raises(RuntimeError, match=r"compile the nn\.DataParallel itself"):
        module._replicate_for_data_parallel()


def test_old_checkpoints_of_torch_compile() -> None:
    module, saved = compiled(), compiled(prefix=True).state_dict()
    assert next(iter(saved)) == "_orig_mod.first.weight"
    module.load_state_dict(saved)
    assert torch.equal(module.first.weight, saved["_orig_mod.first.weight"])


def add_one(module: nn.Module, args: Any, result: Tensor) -> Tensor:
    return result + 1


def test_compiling_in_place() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(gm)
        return gm.forward

    module = Net()
    names = list(module.state_dict())
    module.register_forward_hook(add_one)
    x = torch.ones(3, 2)
    expected = copy.deepcopy(module)(x)
    dovetail.compile_in_place(module, backend=backend, fullgraph=True)
    assert torch.equal(module(x), expected) and len(seen) == 1
    assert list(module.state_dict()) == names and dovetail.report(module).graphs == 1
    for copied in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert copied._compiled_call_impl is None and torch.equal(copied(x), expected)
    assert len(dovetail.explain(module)(x).graphs) == 1
    whole = dovetail.compile(Outer(module), backend=backend, fullgraph=True)
    whole(x)
    assert len(seen) == 2  # the part is in the graph of the whole
    dovetail.compile_in_place(module, disable=True)
    assert module._compiled_call_impl is None
    with pytest.raises(TypeError, match="takes a module"):
        dovetail.compile_in_place(torch.sin)  # type: ignore[arg-type]


def test_passes_that_replace_each_child() -> None:
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(compiled())
    assert isinstance(converted.norm, nn.SyncBatchNorm) and len(converted.state_dict()) == 9
    module = compiled()
    for name, child in module.named_children():
        module._modules[name] = child
    assert len(list(module.modules())) == 5


def double(x: Tensor) -> Tensor:
    return x * 2


class Method(Net):
    @dovetail.compile(backend="eager")
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Doubles(nn.Module):
    @dovetail.compile(backend="eager")
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def in_place() -> Net:
    module = Net()
    dovetail.compile_in_place(module, backend="eager")
    return module


HOLDERS = {
    "function": lambda: dovetail.compile(double, backend="eager"),
    "closure": lambda: (lambda call: lambda x: call(x) + 1)(dovetail.compile(double)),
    "in place": in_place,
    "method": Method,
    "part": lambda: Outer(in_place()),
    "compiled part": lambda: Outer(compiled()),
    "compiled": compiled,
}


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("holder", HOLDERS)
def test_torchs_tracers_run_what_is_compiled_uncompiled(holder: str, warm: bool) -> None:
    made = HOLDERS[holder]()
    x, other = torch.ones(3, 2), torch.randn(3, 2)
    if isinstance(made, nn.Module):
        made.eval()
    if warm:
        made(x)
    expected = made(other) if warm else None
    if holder in ("compiled", "compiled part"):
        with pytest.raises(RuntimeError, match=r"trace the module that it was"):
            torch.jit.trace(made, x)
        with pytest.raises(RuntimeError, match=r"script the module that it was"):
            torch.jit.script(made)
    else:
        traced = torch.jit.trace(made, x)
        assert torch.equal(traced(other), made(other))
        assert not isinstance(made, nn.Module) or len(list(traced.parameters())) == 6
    if holder != "compiled":
        graph = torch.fx.symbolic_trace(made)
        assert torch.equal(graph(other), made(other))
    if isinstance(made, nn.Module):
        export = importlib.import_module("torch.export").export
        assert torch.equal(export(made, (x,)).module()(other), made(other))
    assert expected is None or torch.equal(made(other), expected)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning", "ignore::DeprecationWarning")
def test_scripts_of_compiled_functions() -> None:
    x = torch.ones(2)
    assert torch.equal(torch.jit.script(dovetail.compile(double))(x), x * 2)
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    dovetail.compile_in_place(module, backend="eager")
    assert torch.equal(torch.jit.script(module)(x), module(x))
    doubles = Doubles()
    assert torch.equal(torch.jit.script(doubles)(x), x * 2)
    module._compiled_call_impl = dovetail.compile(module._call_impl, backend="eager")
    assert torch.equal(torch.jit.script(module)(x), module(x))


def test_inspect_takes_a_compiled_function_for_a_function() -> None:
    compiled: Any = dovetail.compile(double)
    assert inspect.isfunction(compiled) and inspect.isroutine(compiled)
    assert inspect.getsource(compiled) == inspect.getsource(double)
    assert inspect.getsourcefile(compiled) == __file__
    assert inspect.signature(compiled) == inspect.signature(double)
    assert compiled.__class__ is type(compiled)
