"""Guard clauses and their failures in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_guards import clauses as c
from dovetail_guards.check_clauses import changed_class_attr, tensor_mismatch
from dovetail_guards.evaluate import MISSING, FrameView, evaluate, instance_dict, ordered_keys
from dovetail_guards.float_expr import float_of_key
from dovetail_guards.relations import BoolExpr
from dovetail_guards.torch_state import READERS

_SYMBOL = re.compile(r"\b[stu]\d+\b")


@dataclass(frozen=True)
class GuardFailure:
    """Why a compiled frame could not be reused: the clause, what was seen, what to do. If a value
    is another one, `subject` is its name, as its user writes it."""

    clause: c.Clause
    text: str
    hint: str
    subject: str = ""
    wanted: str = ""
    found: str = ""

    def __str__(self) -> str:
        return f"{self.text}\n  hint: {self.hint}" if self.hint else self.text


def short(value: Any, limit: int = 80) -> str:
    """`repr(value)` on one line, cut; never raises."""
    try:
        if isinstance(value, type):
            return _name(value)
        text = " ".join(repr(value).split())
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _name(type_: type) -> str:
    if type_.__module__ == "builtins":
        return type_.__qualname__
    return f"{type_.__module__}.{type_.__qualname__}"


def _dims(dims: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("*" if d is None else str(d) for d in dims) + ")"


def _names(sources: tuple[Any, ...]) -> str:
    return ", ".join(str(source) for source in sources)


def _tensor_text(clause: c.TensorIs) -> str:
    parts = [
        str(clause.dtype).removeprefix("torch."),
        str(clause.device),
        f"sizes {_dims(clause.sizes)}",
    ]
    if clause.strides is not None:
        parts.append(f"strides {_dims(clause.strides)}")
    if clause.requires_grad:
        parts.append("requires grad")
    parts += ["conj"] * clause.is_conj + ["neg"] * clause.is_neg
    return f"{clause.source} is a {_name(clause.type_)}: {', '.join(parts)}"


def clause_text(clause: c.Clause) -> str:
    """The clause as a person would write it."""
    return _TEXTS.get(type(clause), str)(clause)


def _relation_text(clause: c.ShapeRelation) -> str:
    """The relation with each symbol as what it stands for: `x.size(0) <= 128`."""
    names = {name: str(source) for name, source in clause.symbols}
    if len(names) == 1 and clause.symbols[0][0][0] == "f":
        return _float_relation_text(clause.expr, clause.symbols[0][1])
    return _SYMBOL.sub(lambda found: names.get(found[0], found[0]), str(clause.expr))


def _float_relation_text(relation: BoolExpr, source: Any) -> str:
    """A bound of a float input's key as one of the float: `lr > 0.0`."""
    constant = sum(factor for monomial, factor in relation.args[0].terms if not monomial)
    factor = sum(factor for monomial, factor in relation.args[0].terms if monomial)
    bound = -constant // factor
    sign, other = ("<=", bound + 1) if factor > 0 else (">=", bound - 1)
    plain, strict = repr(float_of_key(bound)), repr(float_of_key(other))
    # The neighbour of a short number is long: what was compared with is the shorter one.
    short = len(plain) <= len(strict) or strict == "nan"
    return f"{source} {sign} {plain}" if short else f"{source} {sign[0]} {strict}"


def _presence(clause: Any) -> str:
    return "in" if clause.present else "not in"


_TEXTS: dict[type[c.Clause], Callable[[Any], str]] = {
    c.TypeIs: lambda clause: f"type({clause.source}) is {_name(clause.type_)}",
    c.IdIs: lambda clause: f"{clause.source} is {short(clause.obj)}",
    c.ConstantIs: lambda clause: f"{clause.source} == {short(clause.value)}",
    c.LengthIs: lambda clause: f"len({clause.source}) == {clause.length}",
    c.DictKeysAre: lambda clause: f"list({clause.source}) == {short(list(clause.keys))}",
    c.HasKey: lambda clause: f"{clause.key!r} {_presence(clause)} {clause.source}",
    c.HasInstanceAttr: lambda clause: (
        f"{clause.name!r} {_presence(clause)} {clause.source}.__dict__"
    ),
    c.SlotIsEmpty: lambda clause: f"{clause.source}.{clause.name} is not set",
    c.NoAccumulatorHooks: lambda clause: (
        f"no hooks on the node that accumulates the gradient of {clause.source}"
    ),
    c.ClassAttrsAre: lambda clause: (
        f"attributes of {clause.source}: {', '.join(row[0] for row in clause.attrs)}"
    ),
    c.FunctionIs: lambda clause: f"code and defaults of {clause.source}",
    c.GlobalPresent: lambda clause: f"{clause.name!r} {_presence(clause)} globals",
    c.TensorIs: _tensor_text,
    c.SameObject: lambda clause: f"{_names(clause.sources)} are one object",
    c.DistinctObjects: lambda clause: f"{_names(clause.sources)} are different objects",
    c.DistinctStorage: lambda clause: f"{_names(clause.sources)} share no storage",
    c.TorchState: lambda clause: f"torch's {clause.name} is {short(clause.value)}",
    c.AbstractAnswers: lambda clause: " and ".join(
        f"{cls.__qualname__} is {'a' if answer else 'no'} subclass of {other.__qualname__}"
        for cls, other, answer in clause.answers
    ),
    c.ShapeRelation: _relation_text,
}


def explain(clause: c.Clause, frame: FrameView) -> GuardFailure:
    """Words for a clause that is known to fail in this frame."""
    if isinstance(clause, c.TensorIs):
        tensor = evaluate(clause.source, frame)
        mismatch = None if tensor is MISSING else tensor_mismatch(clause, tensor)
        if mismatch is not None:
            return _of_tensor(clause, *mismatch)
    if isinstance(clause, c.ConstantIs):
        value = evaluate(clause.source, frame)
        if value is not MISSING:
            hint = _seen_and_hint(clause, frame)[1]
            return _of_value(clause, str(clause.source), clause.value, value, hint)
    seen, hint = _seen_and_hint(clause, frame)
    return GuardFailure(clause, f"expected {clause_text(clause)}, but {seen}", hint)


def _of_value(clause: c.Clause, subject: str, wanted: Any, found: Any, hint: str) -> GuardFailure:
    was, now = short(wanted), short(found)
    if was == now and type(wanted) is not type(found):
        was, now = f"the {_name(type(wanted))} {was}", f"the {_name(type(found))} {now}"
    text = f"{subject} is {now} instead of {was}"
    return GuardFailure(clause, text, hint, subject, was, now)


def _other_dims(wanted: Sequence[int | None], found: Sequence[Any]) -> list[int]:
    pairs = enumerate(zip(wanted, found, strict=True))
    return [dim for dim, (was, now) in pairs if was is not None and was != now]


def _of_tensor(clause: c.TensorIs, name: str, wanted: Any, found: Any) -> GuardFailure:
    hint = _tensor_hint(clause, name, found)
    if name in ("sizes", "strides") and len(wanted) == len(found):
        others = _other_dims(wanted, found)
        if len(others) == 1:
            (dim,) = others
            subject = f"{clause.source}.{name[:-1]}({dim})"
            return _of_value(clause, subject, wanted[dim], found[dim], hint)
    asked = {"sizes": "size()", "strides": "stride()"}
    subject = f"{clause.source}.{asked.get(name, name)}"
    if name == "type":
        subject = f"type({clause.source})"
    return _of_value(clause, subject, wanted, found, hint)


def _seen_and_hint(clause: c.Clause, frame: FrameView) -> tuple[str, str]:
    match clause:
        case c.TorchState():
            seen = short(READERS[clause.name]())
            return f"it is {seen}", f"call it with the {clause.name} it was compiled under"
        case c.AbstractAnswers():
            return "a class was registered", "register classes before the first call"
        case c.GlobalPresent():
            word = "missing" if clause.present else "there"
            return f"it is {word}", "do not define or delete globals between calls"
        case c.ShapeRelation():
            values = ", ".join(
                f"{source} is {short(evaluate(source, frame))}" for _, source in clause.symbols
            )
            return f"{values}", "sizes outside this relation are compiled separately"
        case c.SameObject() | c.DistinctObjects() | c.DistinctStorage():
            return (
                "which of them alias each other has changed",
                "pass clones, or pass the same tensors aliased in the same way",
            )
    source = clause.source  # type: ignore[attr-defined]
    value = evaluate(source, frame)
    if value is MISSING:
        return f"{source} does not exist", "the object or container it is read from has changed"
    match clause:
        case c.TensorIs():
            return "it holds now", ""
        case c.TypeIs():
            if _name(type(value)) == _name(clause.type_):
                hint = "define the class outside of the function, which makes a new one each time"
                return "its type is another class of that name", hint
            return f"its type is {_name(type(value))}", ""
        case c.IdIs():
            return (
                f"it is another object: {short(value)}",
                "the compiled code belongs to that very object; do not replace it between calls",
            )
        case c.ConstantIs():
            hint = "each value of a Python constant is compiled separately"
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                hint += "; pass it as a tensor, or as a dynamic size, if it changes often"
            return f"it is {short(value)}", hint
        case c.LengthIs():
            seen = short(len(value)) if hasattr(value, "__len__") else "undefined"
            return f"its length is {seen}", "each length is compiled separately"
        case c.DictKeysAre():
            keys = short(ordered_keys(value)) if isinstance(value, dict) else "undefined"
            return f"its keys are {keys}", "keep the same keys in the same order"
        case c.HasKey():
            return f"it is{' not' if clause.present else ''} there", ""
        case c.HasInstanceAttr():
            there = "no __dict__" if instance_dict(value) is None else "another __dict__"
            return (
                f"the object has {there if clause.present else 'it'}",
                "do not add or delete attributes of the object between calls",
            )
        case c.SlotIsEmpty():
            return "it is", "do not set or delete attributes of the object between calls"
        case c.NoAccumulatorHooks():
            return "it has some", "register hooks on the tensor itself, before the first call"
        case c.ClassAttrsAre():
            changed = changed_class_attr(clause, value)
            return f"the class's `{changed}` is another", "do not patch classes between calls"
        case c.FunctionIs():
            return "the function has others", "do not replace the parts of a function in use"
    return f"it is {short(value)}", ""


def _tensor_hint(clause: c.TensorIs, name: str, found: Any) -> str:
    if name == "sizes" and len(found) == len(clause.sizes):
        dims = _other_dims(clause.sizes, found)
        return f"mark_dynamic({clause.source}, {dims[0] if len(dims) == 1 else dims})"
    if name == "sizes":
        return "each rank (number of dimensions) is compiled separately"
    if name == "strides":
        return f"call {clause.source}.contiguous() before, so that one memory layout is used"
    if name == "requires_grad":
        return "calls with and without gradients are compiled separately"
    return f"each {name} is compiled separately"


# --- in short ------------------------------------------------------------------------------------

_OBJECTS = (
    c.AbstractAnswers, c.ClassAttrsAre, c.FunctionIs, c.GlobalPresent, c.HasInstanceAttr, c.HasKey,
    c.IdIs, c.SlotIsEmpty, c.TypeIs,
)  # fmt: skip
_MOST_NAMED = 6


def in_short(clauses: Sequence[c.Clause]) -> list[str]:
    """Clauses by kind: a line for each value that is looked at, one for all objects that are to
    stay what they are, one for the settings of torch."""
    values, objects, settings = [], [], []
    for clause in clauses:
        if isinstance(clause, c.TorchState) or clause_text(clause) == _FORWARD_LEVEL:
            settings.append(getattr(clause, "name", "forward-mode level"))
        elif isinstance(clause, _OBJECTS):
            objects.append(_subject_of(clause))
        else:
            values.append(clause_text(clause))
    lines = _cut(values)
    if objects:
        lines.append(f"unchanged: {', '.join(_cut(list(dict.fromkeys(objects))))}")
    if settings:
        lines.append(f"torch's settings: {', '.join(_cut(settings))}")
    return lines


_FORWARD_LEVEL = "forward_ad['_current_level'] == -1"


def _subject_of(clause: c.Clause) -> str:
    match clause:
        case c.GlobalPresent():
            return clause.name
        case c.HasKey():
            return f"{clause.source}[{clause.key!r}]"
        case c.AbstractAnswers():
            return "subclasses"
    name = getattr(clause, "name", "")
    return f"{clause.source}.{name}" if name else str(clause.source)  # type: ignore[attr-defined]


def _cut(parts: list[str]) -> list[str]:
    more = len(parts) - _MOST_NAMED
    return parts if more <= 1 else [*parts[:_MOST_NAMED], f"and {more} more"]
