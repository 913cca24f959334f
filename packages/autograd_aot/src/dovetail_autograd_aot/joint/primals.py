"""The inputs of one trace: what they are examples of, and what stands for them while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from dovetail_prims.fake_tensor import FakeTensor
from dovetail_prims.node_facts import STATIC
from torch import Tensor
from torch.fx import GraphModule, Node

from dovetail_autograd_aot.boundary import SharedStorage, ViewStep
from dovetail_autograd_aot.graph.fast_graph import WHOLE_STORAGE
from dovetail_autograd_aot.trace import input_storages
from dovetail_autograd_aot.trace.autograd_queries import first_sharing, give_counter
from dovetail_autograd_aot.trace.node_values import attribute_of
from dovetail_autograd_aot.trace.storage import TracedStorage, TraceError, wrap
from dovetail_autograd_aot.trace.tracer import Tracer


class Examples:
    """The example inputs of a trace, by number: those of the captured graph, its attributes
    `lifted` to inputs, then the `storages` that are inputs themselves: those of the inputs
    `by_storage`. Of a symbolic number, the symbol."""

    def __init__(
        self, gm: GraphModule, inputs: Sequence[Any], lifted: list[str], by_storage: list[int]
    ) -> None:
        placeholders = gm.graph.find_nodes(op="placeholder")
        if len(placeholders) != len(inputs):
            raise TraceError(
                f"the graph has {len(placeholders)} inputs, but {len(inputs)} examples were given"
            )
        self.lifted = {name: attribute_of(gm, name) for name in lifted}
        self.symbols = input_storages.symbolic_values(gm)
        self.values: list[Any] = [*inputs, *self.lifted.values()]
        for position, symbolic in self.symbols.items():
            if not isinstance(self.values[position], Tensor):
                self.values[position] = symbolic
        self.static = input_storages.static_inputs(gm, self.values)
        self.count = len(self.values)  # without storages
        self._in_storage: dict[int, list[int]] = {}  # inputs by what they lie in
        for position, example in enumerate(self.values):
            if isinstance(example, Tensor):
                self._in_storage.setdefault(input_storages.storage_key(example), []).append(
                    position
                )
        self.storages = self._shared_storages(by_storage)
        self.base_of = {  # the input that is its storage, by input
            member: self.count + i
            for i, shared in enumerate(self.storages)
            for member in shared.members
        }
        self.values += [input_storages.base_of(shared, self.values) for shared in self.storages]
        names = [str(node.target) for node in placeholders]
        names += [name.replace(".", "_") for name in self.lifted]
        self.names = [*names, *(f"storage_{i}" for i in range(len(self.storages)))]

    def __getitem__(self, index: int) -> Any:
        return self.values[index]

    def _shared_storages(self, by_storage: list[int]) -> list[SharedStorage]:
        """The storages of the inputs numbered in `by_storage`, each once."""
        found: dict[int, SharedStorage] = {}
        for index in by_storage:
            # The one that asked comes first: its version counter is bumped by writes.
            members = sorted(self.in_storage_of(index), key=lambda i: i != index)
            found.setdefault(
                input_storages.storage_key(self.values[index]),
                input_storages.shared_storage(members, self.values),
            )
        return list(found.values())

    def in_storage_of(self, index: int) -> list[int]:
        """The inputs that lie in the storage of input `index`, itself among them."""
        return self._in_storage[input_storages.storage_key(self.values[index])]

    def members(self, storage: int) -> tuple[int, ...]:
        """The inputs that lie in the storage that is input number `storage`."""
        return self.storages[storage - self.count].members


@dataclass
class Primal:
    """What stands for one input while the captured graph runs.

    The graph is run on `value`; a gradient is asked for of `leaf`, which is None for what is no
    tensor, or came before. The tensor lies in `storage`, at `chain` if that is an input. `grad_fn`,
    `version` and the `counter` (by the first primal that shares it) are of before the run; an
    inference tensor has no version.
    """

    value: Any
    leaf: FakeTensor | None = None
    storage: TracedStorage | None = None
    chain: tuple[ViewStep, ...] = ()
    grad_fn: Any = None
    version: int | None = None
    counter: int | None = None

    @property
    def writes(self) -> int:
        """How many writes its version counter tells of."""
        return 0 if self.version is None else int(self.value._version) - self.version


class Primals:
    """The primals of a trace, by number, with their placeholders. Carriers are added behind those
    of the examples once the backward is traced.

    Raises TraceError for an example that is lazily conjugated and lies in memory that it shares.
    """

    def __init__(self, examples: Examples, tracer: Tracer) -> None:
        self.examples = examples
        self.tracer = tracer
        self.placeholders: list[Node] = []
        self.carriers = 0
        self._all: list[Primal] = []
        for position in range(len(examples.values)):  # (before the nodes that read their sizes)
            self._add_placeholder(position)
        first: dict[int, int] = {}
        bases = {
            index: self._whole_storage(index)
            for index in range(examples.count, len(examples.values))
        }
        for index, (node, example) in enumerate(
            zip(self.placeholders, examples.values, strict=True)
        ):
            if index in bases:
                root = bases[index].root
                primal = Primal(root, root, bases[index])
            elif not isinstance(example, Tensor):
                if isinstance(example, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    tracer.sizes.bind(example, node)
                primal = Primal(example)
            else:
                tracer.sizes.bind_sizes(node, node.meta["val"])
                known = first.setdefault(id(example), index)
                if known != index:  # the same tensor twice: the same traced tensor twice
                    primal = Primal(self[known].value, storage=self[known].storage)
                else:
                    base = examples.base_of.get(index)
                    primal = self._make(index, None if base is None else bases[base])
            self._all.append(primal)

    def __getitem__(self, index: int) -> Primal:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Primal]:
        return iter(self._all)

    @property
    def values(self) -> list[Any]:
        """What the captured graph is run on; None for carriers."""
        return [primal.value for primal in self._all]

    def tensors(self) -> Iterator[tuple[int, Primal]]:
        """The primals that are tensors, each tensor once, with their numbers."""
        return ((i, primal) for i, primal in enumerate(self._all) if primal.leaf is not None)

    def counted(self) -> Iterator[tuple[int, Primal]]:
        """Those that have a version counter, with their numbers."""
        return ((i, primal) for i, primal in enumerate(self._all) if primal.version is not None)

    def sharing_counter(self, index: int) -> list[int]:
        """The primals with the version counter of primal `index`."""
        counter = self._all[index].counter
        return [i for i, primal in self.counted() if primal.counter == counter]

    def add_carrier(self, value: FakeTensor) -> None:
        """One more primal, which nothing reads: it stands for a piece of a tensor subclass."""
        node = self.tracer.graph.placeholder(f"carrier_{self.carriers}")
        node.meta["val"] = value
        self.carriers += 1
        self.placeholders.append(node)
        self._all.append(Primal(None))

    def follow_grown_storages(self) -> None:
        """Let chains begin at storages as they are now, where the graph gave them more memory."""
        for primal in self._all:
            if primal.chain:
                assert primal.storage is not None
                primal.chain = (*reversed(primal.storage.grown), *primal.chain)

    # --- making them ------------------------------------------------------------------------------

    def _add_placeholder(self, position: int) -> None:
        examples = self.examples
        node = self.tracer.graph.placeholder(examples.names[position])
        example = examples.values[position]
        if isinstance(example, Tensor):
            node.meta["val"] = input_storages.snapshot(examples.symbols.get(position, example))
            if position in examples.static:
                STATIC.tell(node, True)
        else:
            node.meta["val"] = example
        self.placeholders.append(node)

    def _whole_storage(self, index: int) -> TracedStorage:
        """The storage that is input `index`, with a tensor that is all of it."""
        node = self.placeholders[index]
        storage = TracedStorage(node, primal=index, shared=True)
        WHOLE_STORAGE.tell(node, True)
        wrap(node, storage)
        return storage

    def _make(self, index: int, shared: TracedStorage | None) -> Primal:
        """What stands for a tensor, which lies in the storage `shared` if that is an input."""
        node, example = self.placeholders[index], self.examples[index]
        chain: tuple[ViewStep, ...] = ()
        if shared is None:
            storage = TracedStorage(node, primal=index)
            storage.lazy = example.is_conj(), example.is_neg()
        elif example.is_conj() or example.is_neg():
            raise TraceError("a lazily conjugated or negated input that shares memory: clone it")
        else:
            storage, node = shared, shared.node
            chain = input_storages.view_in(node.meta["val"], example)
            for step in chain:
                node = self.tracer.apply_view(step, node)
        leaf = wrap(node, storage, chain)
        value = leaf
        if example.requires_grad:
            leaf.requires_grad_()
            if not example.is_leaf:
                with torch.enable_grad():
                    value = input_storages.NonLeaf.apply(leaf, node, storage, chain)
                if shared is None:
                    storage.root = value
        if isinstance(example, torch.nn.Parameter):
            leaf._is_param = True
        self.tracer.inputs.add(id(value))
        primal = Primal(value, leaf, storage, chain, value.grad_fn)
        if not value.is_inference():
            before = (i for i in self.examples.in_storage_of(index) if i < index)
            known = [i for i in before if self[i].version is not None]
            first = first_sharing(index, known, self.examples.values)
            if first != index:
                give_counter(value, self[first].value)
            primal.counter = index if first == index else self[first].counter
            primal.version = value._version
        return primal
