"""From a `CapturedFrame` and its compiled graph to the code that replaces the frame's.

The code is generated as Python source text with the frame's signature and compiled; objects are
then patched into its constants. Names matter only by position: an argument keeps its place, free
variables keep their order, everything of ours starts with `_dt_`.

The order of events: random numbers are drawn; everything that existed before (each `Fetch`, each
graph input) is read; the compiled graph runs; effects are replayed in order, values being rebuilt
where they are first needed; the frame returns, or goes on behind a graph break.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from dovetail_capture import rebuild
from dovetail_capture import recipe as r
from dovetail_capture._frame_hook import Bound, set_attribute, skip_code
from dovetail_capture.bytecode.assembler import encode_lines
from dovetail_capture.bytecode.continuation import Resume, Resumption, leave_blocks
from dovetail_capture.captured_frame import CapturedFrame, GraphInput, ValueChecks
from dovetail_capture.environment.torch_state import SettingOfGraph
from dovetail_capture.replacement.replacement_values import PLACEHOLDER, ValueWriter, in_pairs

_VARARGS, _VARKEYWORDS = 0x04, 0x08


@dataclass(frozen=True)
class Replacement:
    """Code to run instead of a frame's, and the text it was compiled from."""

    code: CodeType
    text: str


def bind_static_inputs(
    compiled: Callable[..., Any], inputs: Sequence[GraphInput]
) -> Callable[..., Any]:
    """The compiled graph as a function of its dynamic inputs only, run with capture off."""
    template = tuple(i.example if i.static else None for i in inputs)
    dynamic = tuple(place for place, i in enumerate(inputs) if not i.static)
    bound: Callable[..., Any] = Bound(compiled, template, dynamic)
    return bound


def build_replacement(
    frame: CapturedFrame,
    compiled: Callable[..., Any] | None,
    resumption: Resumption | None = None,
    unwinding: CodeType | None = None,
    leave: Callable[..., None] | None = None,
) -> Replacement:
    """The replacement of `frame`, whose graph was compiled to `compiled` (all inputs positional,
    a sequence of outputs); `resumption` says how to go on when the frame ends in a break;
    `unwinding` is the code that leaves the blocks which the frame, a continuation, begins in;
    `leave` leaves others: it is called with the error that the graph raises, and the frame's
    globals, closure and arguments."""
    writer = _FrameWriter(frame.code, unwinding, leave)
    writer.write_frame(frame, compiled, resumption)
    line = frame.code.co_firstlineno if resumption is None else resumption.line
    return Replacement(writer.compile(line), writer.text())


class _FrameWriter(ValueWriter):
    """Writes the replacement function: draws, fetched sources, the graph, effects, the end."""

    def __init__(
        self, code: CodeType, unwinding: CodeType | None, leave: Callable[..., None] | None
    ) -> None:
        super().__init__(code)
        self._unwinding, self._leave = unwinding, leave

    def effect(self, effect: r.Effect) -> None:
        """One statement that replays an effect."""
        match effect:
            case r.SetAttr(target, name, value, raw):
                where = self.value(target)
                if raw:
                    setter = self.constant(set_attribute)
                    self.emit(f"{setter}({where}, {name!r}, {self.value(value)})")
                else:
                    setter = self.constant(setattr)
                    self.emit(f"{setter}({where}, {name!r}, {self.value(value)})")
            case r.DelAttr(target, name, raw):
                deleter = self.constant(rebuild.del_attribute if raw else delattr)
                self.emit(f"{deleter}({self.value(target)}, {name!r})")
            case r.ReplaceContents(target, kind, items):
                replacer = self.constant(rebuild.REPLACERS[kind])
                where, parts = self.value(target), self.values(items)
                if rebuild.REPLACERS[kind] in (rebuild.replace_dict, rebuild.set_items):
                    parts = [f"({pair})" for pair in in_pairs(parts, ", ")]
                self.emit(f"{replacer}({where}, [{', '.join(parts)}])")
            case r.SetGlobal(globals_, name, value):
                place = self.value(globals_)
                if value is None:  # it may never have been there: made and deleted in the frame
                    self.emit(f"{place}.pop({name!r}, None)")
                else:
                    self.emit(f"{place}[{name!r}] = {self.value(value)}")
            case r.SetCell(cell, value):
                place = f"{self.value(cell)}.cell_contents"
                if value is None:
                    self.emit(f"del {place}")
                else:
                    self.emit(f"{place} = {self.value(value)}")
            case r.RunCall(call):
                self.value(call)
            case r.UnderLock(lock, effects):
                self.emit(f"with {self.value(lock)}:")
                self.indent += "    "
                self.emit("pass")
                for inner in effects:
                    self.effect(inner)
                self.indent = self.indent[:-4]
            case _:
                raise TypeError(f"replacement code cannot replay a {type(effect).__name__}")

    # --- the whole -------------------------------------------------------------------------------

    def write_frame(
        self,
        frame: CapturedFrame,
        compiled: Callable[..., Any] | None,
        resumption: Resumption | None,
    ) -> None:
        """All statements, in the order the module's docstring gives."""
        roots: list[r.Recipe | r.Effect | r.FrameEnd] = [*frame.after.effects, frame.end]
        recipes = r.below([*frame.before.draws, *roots], self.uses)
        for one in frame.before.settings:
            self.emit(f"{self.constant(one.write)}({self.constant(one.value)})")
        for place, call in enumerate(frame.before.draws):
            self.emit(f"_dt_draw{place} = {self.call(call)}")
            self.temporaries.append(f"_dt_draw{place}")
        for recipe in recipes:
            if isinstance(recipe, r.Fetch):
                self.source(recipe.source)
        if frame.graph is not None:
            if compiled is None:
                raise ValueError("the frame has a graph: its compiled form is needed")
            self._run_graph(frame, compiled)
        for effect in frame.after.effects:
            self.effect(effect)
        if resumption is not None:
            self._resume(frame.end, resumption)
        elif frame.end.returns is not None:
            self.emit(f"return {self.value(frame.end.returns)}")
        else:
            raise ValueError("the frame ends in a graph break: a resumption is needed")

    def _run_graph(self, frame: CapturedFrame, compiled: Callable[..., Any]) -> None:
        arguments = [self.source(i.source) for i in frame.inputs if not i.static]
        graph = self.constant(bind_static_inputs(compiled, frame.inputs), "the compiled graph")
        count = frame.output_count()
        call = f"{graph}({', '.join(arguments)})"
        if count:
            outputs = [f"_dt_out{i}" for i in range(count)]
            self.temporaries += outputs
            targets = ", ".join(outputs)
            call = f"{targets}{',' if count == 1 else ''} = {call}"
        undo = frame.grad_mode_before()
        passes = self._where_errors_pass(undo, frame.before.settings)
        if frame.checks is not None:
            self._run_checked(call, frame.checks, undo, passes)
            return
        for line in ["try:", f"    {call}", *passes]:
            self.emit(line)

    def _where_errors_pass(
        self, undo: tuple[bool, ...], settings: tuple[SettingOfGraph, ...]
    ) -> list[str]:
        """What becomes of an error that the graph raises: it has no entries of ours, and what is to
        be put in order is."""
        base, set_mode = self.constant(BaseException), self.constant(torch._C._set_grad_enabled)
        end = "raise" if self._unwinding is None else self._leave_blocks(self._unwinding)
        lines = [f"{self.constant(rebuild.hide_ours)}(_dt_error)"]
        lines += [f"{set_mode}({mode})" for mode in undo]
        lines += [f"{self.constant(s.write)}({self.constant(s.after)})" for s in settings]
        if self._leave is not None:
            lines.append(f"{self.constant(self._leave)}({self._of_frame()})")
        lines.append(end)
        return [f"except {base} as _dt_error:", *(f"    {line}" for line in lines)]

    def _leave_blocks(self, unwinding: CodeType) -> str:
        leave, code = self.constant(leave_blocks), self.constant(unwinding)
        return f"{leave}({self._of_frame(code)})"

    def _of_frame(self, *parts: str) -> str:
        """The error that passes, and what the frame was called with."""
        globals_ = f"{self.constant(globals, 'globals')}()"
        closure = self.build("tuple", [self.cell(name) for name in self.free])
        return ", ".join(["_dt_error", *parts, globals_, closure, *self.arguments.values()])

    def _run_checked(
        self, call: str, checks: ValueChecks, undo: tuple[bool, ...], passes: list[str]
    ) -> None:
        """Run the graph; where a check of its data fails, the frame runs again, by Python."""
        hold, again = self.constant(rebuild.all_hold), self.constant(rebuild.uncaptured)
        code = self.constant(self.code, f"code of {self.code.co_qualname}")
        hide, tell = self.constant(rebuild.hide_caller), self.constant(rebuild.tell_of_graph_error)
        states, put_back = (
            self.constant(f) for f in (rebuild.random_states, rebuild.set_random_states)
        )
        globals_, set_mode = (
            self.constant(globals, "globals"),
            self.constant(torch._C._set_grad_enabled),
        )
        base, error = self.constant(BaseException), self.constant(Exception)
        if checks.saved:
            written = ", ".join(map(self.source, checks.saved))
            self.emit(f"_dt_saved = {self.constant(rebuild.copies)}({written})")
        if checks.random:
            self.emit(f"_dt_random = {states}({', '.join(map(repr, checks.random))})")
        test = f"{hold}({', '.join(f'_dt_out{place}' for place in checks.outputs)})"
        lines = [call, f"_dt_error = None if {test} else {hold}"]
        lines = ["try:", *(f"    {line}" for line in lines)]
        if checks.catches:
            lines += [f"except {error} as _dt_raised:", "    _dt_error = _dt_raised"]
        lines += passes
        lines.append("if _dt_error is not None:")
        lines += [f"    {set_mode}({mode})" for mode in undo]
        lines += [f"    {put_back}(_dt_random)"] * bool(checks.random)
        lines += [f"    {self.constant(rebuild.put_back)}(_dt_saved)"] * bool(checks.saved)
        closure = self.build("tuple", [self.cell(name) for name in self.free])
        tells = f"        if _dt_error is not {hold}:"
        lines += [
            "    try:",
            f"        _dt_again = {again}({code}, {globals_}(), {closure})",
            f"        _dt_result = _dt_again({self._own_arguments()})",
            *([] if checks.handled else [tells, f"            {tell}(_dt_error)"]),
            "        return _dt_result",
            f"    except {base} as _dt_raised:",
            f"        {hide}(_dt_raised)",
            "        raise",
            "    finally:",
            "        del _dt_error",
            *["del _dt_saved"] * bool(checks.saved),
        ]
        for line in lines:
            self.emit(line)

    def _own_arguments(self) -> str:
        """The frame's arguments, as its function is called with them."""
        code, names = self.code, list(self.arguments.items())
        parts = [ours for _, ours in names[: code.co_argcount]]
        rest = names[code.co_argcount + code.co_kwonlyargcount :]
        if code.co_flags & _VARARGS:
            parts.append(f"*{rest.pop(0)[1]}")
        only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        if only:
            parts.append("**{" + ", ".join(f"{name!r}: {ours}" for name, ours in only) + "}")
        if code.co_flags & _VARKEYWORDS:
            parts.append(f"**{rest.pop(0)[1]}")
        return ", ".join(parts)

    def _resume(self, end: r.FrameEnd, resumption: Resumption) -> None:
        locals_ = dict(end.locals_)
        cells = dict(end.cells)
        closure: list[str] = []
        for name in resumption.free:
            if name not in resumption.from_cells:
                closure.append(self.assign(self.cell(name), "cell"))
            elif name in cells:
                closure.append(self.value(cells[name]))
            else:
                closure.append(f"{self.constant(CellType)}()")
        arguments = [self.value(locals_[name]) for name in resumption.locals_]
        for item in end.stack:
            error = item.error if isinstance(item, r.HandledHere) else item
            if error is not None:
                arguments.append(self.value(error))
        where = "()"
        if closure:
            where = self.assign(self.build("tuple", closure), "closure")
        globals_ = self.assign(f"{self.constant(globals, 'globals')}()", "globals")
        skip_code(resumption.step)
        step = self._code_function(resumption.step, globals_, where)
        resume = self.constant(Resume)
        take = self.constant(rebuild.take_all)
        kind = self.constant(type)
        # This frame keeps nothing of the program's while the rest runs: what dies there dies then,
        # and an exception that passes through here is in no cycle with this frame.
        self.emit(f"_dt_next = [{', '.join([step, *arguments])}]")
        held = [*self.arguments.values(), *self.temporaries]
        if held:
            self.emit(f"del {', '.join(held)}")
        hide = self.constant(rebuild.hide_caller)
        base = self.constant(BaseException)
        self.emit("try:")
        if resumption.nested:
            self.emit(f"    return _dt_next.pop(0)(*{take}(_dt_next))")
        else:
            self.emit(f"    _dt_next = _dt_next.pop(0)(*{take}(_dt_next))")
            self.emit(f"    while {kind}(_dt_next) is {resume}:")
            self.emit("        _dt_next = [*_dt_next]")
            self.emit(f"        _dt_next = _dt_next.pop(0)(*{take}(_dt_next))")
            self.emit("    return _dt_next")
        # What the user's code raises passes through here: a traceback names his function once.
        self.emit(f"except {base} as _dt_error:")
        self.emit(f"    {hide}(_dt_error)")
        self.emit("    raise")

    def _code_function(self, code: CodeType, globals_: str, closure: str) -> str:
        maker = self.constant(FunctionType)
        label = f"code of {code.co_qualname}"
        closure = "None" if closure == "()" else closure
        text = (
            f"{maker}({self.constant(code, label)}, {globals_}, {code.co_name!r}, None, {closure})"
        )
        return self.assign(text, "fn")

    # --- text and code ---------------------------------------------------------------------------

    def text(self) -> str:
        """The source text."""
        body = [f"def _dt_frame({self._signature()}):"]
        if self.free:  # every free variable is mentioned, so that all keep their places
            body.append(f"    if 0: {', '.join(self.free.values())}")
        body += [f"    {line}" for line in self.lines]
        if not self.free:
            return "\n".join(body) + "\n"
        names = ", ".join(self.free.values())
        return "\n".join([f"def _dt_outer({names}):", *(f"    {line}" for line in body)]) + "\n"

    def _signature(self) -> str:
        code, names = self.code, list(self.arguments.values())
        positional = names[: code.co_argcount]
        if code.co_posonlyargcount:
            positional.insert(code.co_posonlyargcount, "/")
        keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        rest = names[code.co_argcount + code.co_kwonlyargcount :]
        parts = positional
        if code.co_flags & _VARARGS:
            parts.append(f"*{rest.pop(0)}")
        elif keyword_only:
            parts.append("*")
        parts += keyword_only
        if code.co_flags & _VARKEYWORDS:
            parts.append(f"**{rest.pop(0)}")
        return ", ".join(parts)

    def compile(self, line: int) -> CodeType:
        """The code object, with objects in place of placeholders and the user's names and lines."""
        module = compile(self.text(), self.code.co_filename, "exec", dont_inherit=True)
        code = _nested_code(module)
        if self.free:
            code = _nested_code(code)
        table = {PLACEHOLDER.format(place, ""): value for place, value in enumerate(self.constants)}
        units = len(code.co_code) // 2
        return code.replace(
            co_consts=tuple(_patched(constant, table) for constant in code.co_consts),
            co_name=self.code.co_name,
            co_qualname=self.code.co_qualname,
            co_firstlineno=self.code.co_firstlineno,
            co_freevars=self.code.co_freevars,
            co_linetable=encode_lines(
                [((line, None, None, None), units)], self.code.co_firstlineno
            ),
        )


def _nested_code(code: CodeType) -> CodeType:
    return next(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _patched(constant: Any, table: dict[str, Any]) -> Any:
    prefix = PLACEHOLDER.partition("{")[0]
    if isinstance(constant, str) and constant.startswith(prefix):
        return table[constant[: constant.index(":")] + ": >"]
    return constant
