"""Backward with `create_graph=True`.

A compiled backward is a black box to autograd. When its result must itself be differentiable, the
captured graph and its differentiation become one graph, from inputs and incoming gradients to
gradients (`captured_run.py`), which is compiled like any other: with a backward of its own, and
so on for every order. Where that cannot be, the captured graph is run again with eager operators
and autograd differentiates that run: slower, counted in the log with the reason.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from dovetail_prims.sizes.at_sizes import exactly
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dovetail_autograd_aot.aot_log import AotLog
from dovetail_autograd_aot.boundary import JointGraph
from dovetail_autograd_aot.calls.captured_run import CapturedRun, NotOneGraph
from dovetail_autograd_aot.graph.op_info import (
    CHANGES_OF_SHAPE,
    draws_in_backward,
    draws_random_numbers,
)

# Read at every forward, for every input: by a C loop.
_version = attrgetter("_version")
# Compiled differentiable backwards of one graph: for other sizes, or other incoming gradients.
MAX_COMPILED = 8

Gradients = tuple[Tensor | None, ...]


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated. Its derivatives, and those of the graph's results,
    come to the user's code in two parts, where eager calls it once with their sum."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError(
            "a second backward through a compiled graph with a hook, or a backward of a "
            "torch.autograd.Function, that is not linear in the gradient: compile a function that "
            "calls torch.autograd.grad itself, or leave this function uncompiled"
        )


class Replay(NamedTuple):
    """What one forward leaves for a differentiable backward. (`training_calls.cpp` makes such
    tuples, too.)"""

    inputs: tuple[Any, ...]
    versions: tuple[int | None, ...]
    random_state: Tensor | None
    cuda_random_state: tuple[torch.device, Tensor] | None


class DoubleBackward:
    """The differentiable backward of one captured graph. `compile_graph` makes a callable of a
    graph and example inputs. The inputs `cut` require grad, but come here without: no output
    depends on them (derivatives that the graph itself asks for may)."""

    def __init__(
        self,
        gm: GraphModule,
        joint: JointGraph,
        compile_graph: Callable[[GraphModule, tuple[Any, ...]], Callable[..., Gradients]],
        log: AotLog,
        cut: list[int],
    ) -> None:
        self.joint = joint
        self.compile_graph = compile_graph
        self.log = log
        self.compiled: dict[Any, Callable[..., Gradients]] = {}
        self.refused: str | None = None  # why it cannot be compiled
        self.cut = cut
        self.signature = joint.signature
        self.num_extra = len(joint.added.constants) + len(joint.added.storages)
        random = [n for n in joint.gm.graph.nodes if draws_random_numbers(n)]
        devices = {d for n in random for d in _devices(n)}
        self.random = any(d.type == "cpu" for d in devices)
        self.cuda_device = next((d for d in devices if d.type == "cuda"), None)
        self.captured = CapturedRun(gm, joint)
        values = [n.meta["val"] for n in joint.gm.graph.nodes if n.op == "placeholder"]
        self.all_tensors = all(isinstance(v, Tensor) for v in values[: joint.signature.num_primals])
        self.mutated = {m.index for m in self.signature.changes.mutated}
        # The history of these is about to go through this graph, which would hold itself.
        self.overtaken = [m.index for m in self.signature.changes.mutated if not m.data_only]
        reshaped = self.signature.changes.reshaped
        self.reshaped = [*(r.index for r in reshaped), *self.signature.changes.set_inputs]
        # (A copy has other strides, and none of what lies beside it.)
        self.moved = any(step.op not in CHANGES_OF_SHAPE for r in reshaped for step in r.steps)
        count = self.signature.num_forward_outputs
        everything: Any = joint.gm.graph.output_node().args[0]
        matter = _inputs_of(joint, everything[count:])
        self.mutated_matters = not self.mutated.isdisjoint(matter)
        # The inputs whose values the gradients depend on; not known where they read storages.
        self.matter = None if joint.added.storages else matter
        # What an output from which no input gets a gradient gives others is told by no gradient.
        known = functools.reduce(int.__or__, joint.backward.reached, 0)
        differentiable = self.signature.differentiable
        outputs = [everything[i] for i in differentiable]
        all_known = known == (1 << len(differentiable)) - 1
        self.values_matter = not all_known and not self.mutated.isdisjoint(
            _inputs_of(joint, outputs)
        )

    @property
    def is_plain(self) -> bool:
        """Whether the backward does nothing but compute gradients of gradients, by operators that
        have derivatives: what reads no saved values may be run as it is."""
        drawn = any(map(draws_in_backward, self.joint.gm.graph.nodes))
        return not (drawn or self.joint.backward.user_code or self.joint.added.carriers)

    @property
    def remembers_inputs_only(self) -> bool:
        """Whether what a forward leaves are its inputs as they are, and their versions."""
        drawn = self.random or self.cuda_device is not None
        return not (drawn or self.overtaken or self.reshaped)

    def remember(self, inputs: tuple[Any, ...]) -> Replay:
        """Called at the end of each forward."""
        random_state = torch.get_rng_state() if self.random else None
        cuda = None
        if self.cuda_device is not None:
            cuda = (self.cuda_device, torch.cuda.get_rng_state(self.cuda_device))
        versions = self._versions(inputs)
        if self.overtaken:
            inputs = self._without_history(inputs)
        inputs = self.in_shape(inputs)
        return Replay(inputs, versions, random_state, cuda)

    def counted_again(self, replay: Replay) -> Replay:
        """After the graph's own writes, which inputs that share a version counter tell of, too."""
        return replay._replace(versions=self._versions(replay.inputs))

    def _versions(self, inputs: tuple[Any, ...]) -> tuple[int | None, ...]:
        """Of the tensors; None of those that inference mode made, which have none."""
        tensors = inputs if self.all_tensors else [i for i in inputs if isinstance(i, Tensor)]
        try:
            return tuple(map(_version, tensors))
        except RuntimeError:
            return tuple(None if t.is_inference() else t._version for t in tensors)

    def _without_history(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, of those that autograd sees a write to what does not depend on contents:
        no gradient does, or there is no backward of this kind (see `run`)."""
        kept = list(inputs)
        for i in self.overtaken:
            kept[i] = inputs[i].detach().requires_grad_(inputs[i].requires_grad)
        return tuple(kept)

    def in_shape(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs, of those that are about to change their shape others in the one they have."""
        if not self.reshaped:
            return inputs
        with torch.enable_grad():
            views = {id(inputs[i]): inputs[i].view_as(inputs[i]) for i in self.reshaped}
        return tuple(views.get(id(value), value) for value in inputs)

    def run(self, replay: Replay | None, tangents: list[Tensor | None]) -> Gradients:
        """The gradients of the inputs, differentiable."""
        if replay is None:  # (some paths may still be open, but not this one)
            raise RuntimeError(
                "Trying to backward through a compiled graph a second time, with create_graph=True:"
                " specify retain_graph=True"
            )
        self.check(replay, "backward with create_graph=True", self.mutated_matters, self.matter)
        if all(t is None for t in tangents):
            return (None,) * len(replay.inputs)
        replay = self.whole(replay)
        with ExitStack() as stack:
            stack.enter_context(self.as_in_forward(replay))
            compiled = self._compiled(replay.inputs, tangents)
            if compiled is None:
                found = self._replayed(replay, tangents)
            else:
                own = replay.inputs[: len(replay.inputs) - self.num_extra]
                found = compiled(*own, *[t for t in tangents if t is not None])
        if self.joint.backward.additive:
            return found
        return tuple(None if g is None else _Once.apply(g) for g in found)

    def whole(self, replay: Replay) -> Replay:
        """With the inputs that were cut off requiring gradients: the graph may ask for those."""
        if not self.cut:
            return replay
        inputs = [v.detach().requires_grad_() if i in self.cut else v
                  for i, v in enumerate(replay.inputs)]  # fmt: skip
        return replay._replace(inputs=tuple(inputs))

    def check(
        self,
        replay: Replay,
        what: str,
        needs_overwritten: bool,
        matter: Container[int] | None = None,
    ) -> None:
        """Raise an error if the captured graph cannot be run again for `what`, such as a backward
        with `create_graph`: it may need what was overwritten, of the inputs that `matter`."""
        if any(map(draws_in_backward, self.joint.gm.graph.nodes)):
            raise RuntimeError(
                f"{what} through a compiled graph that draws random numbers in its backward"
            )
        if self.joint.added.carriers:
            raise RuntimeError(
                f"{what} through a compiled graph whose inputs are tensor "
                "subclasses that wrap tensors"
            )
        if needs_overwritten:
            raise RuntimeError(
                f"{what} through a compiled graph that overwrites an "
                "input its gradients depend on: the old contents are gone"
            )
        if self.moved:
            raise RuntimeError(
                f"{what} through a compiled graph that changes in place where an input lies"
            )
        tensors = [(i, v) for i, v in enumerate(replay.inputs) if isinstance(v, Tensor)]
        for (i, value), version in zip(tensors, replay.versions, strict=True):
            if version is None or i in self.mutated or (matter is not None and i not in matter):
                continue
            if value._version != version:
                raise RuntimeError(
                    f"input {i} of a compiled graph was modified in place (version "
                    f"{value._version}, expected {version}) before {what}"
                )

    @contextmanager
    def as_in_forward(self, replay: Replay) -> Iterator[None]:
        """The state of random numbers that the forward found; no autocast but the graph's own."""
        with ExitStack() as stack:
            self._restore_random(stack, replay)
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _compiled(
        self, inputs: tuple[Any, ...], tangents: list[Tensor | None]
    ) -> Callable[..., Gradients] | None:
        """What computes the gradients for calls like this one, if it can be compiled."""
        if self.refused is not None:
            return None
        key = tuple(map(_kind_of, (*inputs, *tangents)))
        found = self.compiled.get(key)
        if found is not None:
            return found
        if len(self.compiled) >= MAX_COMPILED:
            return None
        given = tuple(i for i, t in enumerate(tangents) if t is not None)
        own = inputs[: len(inputs) - self.num_extra]
        examples = (*own, *[t for t in tangents if t is not None])
        try:
            gm = self.captured.gradient_graph(given)
            found = self.compile_graph(gm, examples)
        except NotOneGraph as error:
            self.refused = str(error)
            return None
        except Exception as error:
            # Whatever it is, eager's operators tell it too, if it is the program's fault.
            self.refused = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            return None
        self.compiled[key] = found
        self.log.note_double_backward()
        return found

    def blame_nan(self, replay: Replay, tangents: list[Tensor | None]) -> None:
        """In anomaly mode, for gradients that are NaN: raise eager's error with the user's line.

        Compiled code cannot tell which operation it was; the captured graph, run again by eager's
        operators, can.
        """
        if self.mutated_matters:
            return
        running: list[Node] = []

        def note(node: Node, result: Any) -> None:
            for value in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    value.grad_fn.register_prehook(lambda _: running.append(node))

        with ExitStack() as stack, torch.enable_grad():
            self._restore_random(stack, replay)
            try:
                self.captured.gradients(replay.inputs, tangents, note)
            except RuntimeError as error:
                if not running:
                    raise
                node = running[-1]
                where = node.meta.get("stack_trace") or "  (no line is known)"
                raise RuntimeError(
                    f"{error}\nIt is the backward of `{node.name}` in a compiled graph:\n{where}"
                ) from error

    def _replayed(self, replay: Replay, tangents: list[Tensor | None]) -> Gradients:
        """The same, by eager's operators."""
        self.log.note_replay(self.refused or f"more than {MAX_COMPILED} kinds of calls")
        return self.captured.gradients(replay.inputs, tangents)

    def _restore_random(self, stack: ExitStack, replay: Replay) -> None:
        devices = [] if self.cuda_device is None else [self.cuda_device]
        if replay.random_state is None and not devices:
            return
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if replay.random_state is not None:
            torch.set_rng_state(replay.random_state)
        if replay.cuda_random_state is not None:
            torch.cuda.set_rng_state(replay.cuda_random_state[1], replay.cuda_random_state[0])


def _kind_of(value: Any) -> Any:
    """What a compiled graph is specialised to."""
    if not isinstance(value, Tensor):
        return exactly(value)
    return value.shape, value.stride(), value.dtype, value.requires_grad, value.is_leaf


def _devices(node: Node) -> list[torch.device]:
    value = node.meta["val"]
    values = value if isinstance(value, (list, tuple)) else [value]
    return [v.device for v in values if isinstance(v, Tensor)]


def _inputs_of(joint: JointGraph, values: Sequence[Any]) -> set[int]:
    """The inputs that some values depend on the contents of."""
    placeholders = {n: i for i, n in enumerate(joint.gm.graph.find_nodes(op="placeholder"))}
    stack = [value for value in values if isinstance(value, Node)]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(_read(node))
    return {placeholders[node] for node in seen if node in placeholders}


def _read(node: Node) -> list[Node]:
    """The inputs of a node that it computes gradients from: batch norm in training does not use the
    statistics that it updates."""
    target = node.target
    if not isinstance(target, OpOverload):
        return node.all_input_nodes
    names = [argument.name for argument in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    flag = next((name for name in ("training", "train", "update") if name in names), None)
    if "running_mean" not in names or (flag is not None and given[flag] is not True):
        return node.all_input_nodes
    unused = (given["running_mean"], given.get("running_var"))
    return [n for n in node.all_input_nodes if n not in unused]
