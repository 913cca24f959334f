"""`CapturedFrame`: the boundary value of capture, and the parts it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from dis import get_instructions
from pathlib import Path
from traceback import FrameSummary
from types import CodeType
from typing import Any

import torch
from dovetail_guards.assumptions import Assumptions
from dovetail_guards.clauses import TorchState
from dovetail_guards.guard_set import GuardSet
from dovetail_guards.shape_env import ShapeEnv
from dovetail_guards.source import Source
from torch.fx import GraphModule

from dovetail_capture.environment.torch_state import SettingOfGraph
from dovetail_capture.recipe import CallFunction, Effect, FrameEnd

_LAYERS = str(Path(torch.nn.modules.__file__).parent)  # the sources of torch's layers


@dataclass(frozen=True)
class GraphInput:
    """One placeholder of the graph.

    `source` says where the value is fetched from at run time. `example` is the real value seen at
    capture (a tensor; an int or float when symbolic). A `static` input (a parameter or buffer
    whose identity a guard pins) is bound at compile time instead of being fetched at each call; its
    placeholder has it as `meta["static"]`.
    """

    name: str
    source: Source
    example: Any
    static: bool


@dataclass(frozen=True)
class GraphBreak:
    """Why capture stopped: the construct, the user's file and line, and the way round. `raises`
    is what eager mode raises there, if it does."""

    reason: str
    filename: str
    lineno: int
    line: str
    hint: str
    frames: tuple[str, ...] = ()  # the inlined call stack, outermost first
    allowed: bool = False  # in a block of `error_on_graph_break(False)`
    raises: Exception | None = field(default=None, compare=False)

    def as_text(self) -> str:
        """The break as a user reads it."""
        return f"{self.reason}\n{self.place()}\n  hint: {self.hint}"

    @property
    def user_stack(self) -> list[FrameSummary]:
        """The user's line, as torch.compile's reasons of breaks have it."""
        return [FrameSummary(self.filename, self.lineno, "", line=self.line, lookup_line=False)]

    def place(self) -> str:
        """Where it is: the user's line, and the calls that lead to the construct."""
        here = f"{self.filename}:{self.lineno}"
        stack = "".join(f"\n    from {frame}" for frame in self.frames)
        return f"  at {here}: {self.line.strip()}{stack}"


@dataclass(frozen=True)
class ValueChecks:
    """What the graph tells of the data that the program checks.

    The graph's outputs at `outputs` are tensors of one truth value: if one is false, the frame is
    run again, by Python, from its beginning, and raises what the program raises. With `catches`
    it is, too, if the graph raises. `places` are the checks, for people; `random` the devices whose
    random numbers the graph may draw, which then are drawn again. `handled`: the program handles
    exceptions, so that it may be none that the graph raised. `saved` are inputs that the graph
    writes to: they are what they were when the frame runs again.
    """

    outputs: tuple[int, ...]
    places: tuple[str, ...]
    catches: bool
    random: tuple[str, ...]
    handled: bool = False
    saved: tuple[Source, ...] = ()


@dataclass(frozen=True)
class AttemptOptions:
    """How a frame is captured: what a program learns that asks whether it is compiled, whether
    functions of autograd that nothing differentiates are inlined, and whether checks of tensors'
    data are left to the graph's end.

    Where they are not, as the frame could not be run again, `leaves` says of each row of `finally`
    blocks around what may raise, in the order of the program, what leaving them does: "nothing"
    that is to be seen, "effects", which can be replayed where the graph raises, or "no": only
    Python can tell.

    `counters` are the places of ints that the frame both reads and writes (`str` of their sources):
    these are symbolic from the start, as the next call finds others there. `told_compiling`: the
    program asked whether it is compiled, and was told so.
    """

    compiling: bool = True
    inlines: bool = False
    checks: bool = True
    leaves: tuple[str, ...] = ()
    counters: frozenset[str] = frozenset()
    told_compiling: bool = False

    def admits(self, row: int) -> bool:
        """May the graph hold what raises in this row of blocks? It has to be the only one, if
        leaving it does anything: it is not known which operation raised."""
        before = [one for one in self.leaves[:row] if one != "no"]
        return (self.leaves[row] == "nothing" and "effects" not in before) or (
            self.leaves[row] == "effects" and not before
        )


@dataclass(frozen=True)
class BeforeGraph:
    """What replacement code does before the graph runs: `settings` of torch are made, which hold
    while it runs, then `draws`, calls for random numbers; a `DrawSource` fetches what they give."""

    settings: tuple[SettingOfGraph, ...] = ()
    draws: tuple[CallFunction, ...] = ()


@dataclass(frozen=True)
class AfterGraph:
    """What replacement code does after the graph has run: it replays `effects` in order, and then
    ends as the frame did. `break_` is set when `end` is a graph break."""

    effects: tuple[Effect, ...]
    end: FrameEnd
    break_: GraphBreak | None = None


@dataclass(frozen=True)
class CapturedFrame:
    """A captured stretch of a frame: from its start (or a continuation's) to a return or break.

    `graph` is a TORCH-dialect graph whose placeholders follow `inputs`, with a tuple output; None
    when nothing was recorded. `shape_env` holds the symbolic sizes (None if there are none);
    `assumed`, what capture assumed of them, is not among `guards`, see `all_guards`. `checks` are
    read after the graph has run, before anything else. `attempt_options` say how it was captured.
    """

    code: CodeType
    graph: GraphModule | None
    inputs: tuple[GraphInput, ...]
    guards: GuardSet
    after: AfterGraph
    before: BeforeGraph = field(default_factory=BeforeGraph)
    shape_env: ShapeEnv | None = None
    checks: ValueChecks | None = None
    attempt_options: AttemptOptions = field(default_factory=AttemptOptions)
    assumed: Assumptions = field(default_factory=Assumptions)

    @property
    def end(self) -> FrameEnd:
        """How it ends: with a return, or before an instruction."""
        return self.after.end

    @property
    def break_(self) -> GraphBreak | None:
        """Why it ends before the frame does, if so."""
        return self.after.break_

    def output_count(self) -> int:
        """How many results the graph gives."""
        assert self.graph is not None
        output = next(node for node in reversed(self.graph.graph.nodes) if node.op == "output")
        outputs = output.args[0]
        return len(outputs) if isinstance(outputs, (tuple, list)) else 1

    def is_its_graph(self) -> bool:
        """Whether the frame is little but calls of its graph's operators: it calls nothing else. If
        autograd records them, it may read a module, and inline a method of torch's layers or one of
        these: that takes Python's time in each call, but less than a compiled graph's node does."""
        assert self.graph is not None
        nodes = [node for node in self.graph.graph.nodes if node.op.startswith("call_")]
        frames = [(node.meta.get("stack_trace") or "").split('File "')[1:] for node in nodes]
        names = [instruction.opname for instruction in get_instructions(self.code)]
        calls = sum(name.startswith(("CALL", "BEFORE_WITH")) for name in names)
        if self.attempt_options.told_compiling or calls > len(nodes):
            return False
        wanted = (getattr(one.example, "requires_grad", False) for one in self.inputs)
        if torch.is_grad_enabled() and any(wanted):
            return all(len(f) == 1 or (len(f) == 2 and f[1].startswith(_LAYERS)) for f in frames)
        return all(len(f) == 1 for f in frames) and not any(one.static for one in self.inputs)

    def grad_mode_before(self) -> tuple[bool, ...]:
        """The grad mode at the start of a frame whose graph sets another, else nothing: a graph
        that raises leaves it so."""
        assert self.graph is not None
        if not any(node.target is torch._C._set_grad_enabled for node in self.graph.graph.nodes):
            return ()
        clauses = [clause for clause in self.guards.clauses if isinstance(clause, TorchState)]
        return tuple(clause.value for clause in clauses if clause.name == "grad_mode")

    def assumed_since(self) -> Assumptions:
        """What was assumed of symbolic sizes since the frame was captured: by a backend."""
        return Assumptions() if self.shape_env is None else self.shape_env.assumed(self.assumed)

    def all_guards(self, by_backend: Assumptions | None = None) -> GuardSet:
        """`guards`, and what was assumed of symbolic sizes by capture and by a backend."""
        if self.shape_env is None:
            return self.guards
        assumed = self.assumed if by_backend is None else self.assumed + by_backend
        return GuardSet((*self.guards.clauses, *self.shape_env.clauses(assumed)))

    def as_text(self) -> str:
        """Inputs, guards, graph and end, for people."""
        lines = [f"frame {self.code.co_qualname} ({self.code.co_filename})"]
        lines += [
            f"  input {i.name} <- {i.source}{' (static)' if i.static else ''}" for i in self.inputs
        ]
        lines.append(self.all_guards().as_text())
        if self.graph is not None:
            lines.append(self.graph.code)
        lines.append(
            f"  {len(self.before.draws)} draws, {len(self.after.effects)} effects; end: {self.end}"
        )
        if self.checks is not None:
            lines += [f"  check {place}" for place in self.checks.places]
        if self.break_ is not None:
            lines.append(self.break_.as_text())
        return "\n".join(lines)
