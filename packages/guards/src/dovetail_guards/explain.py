"""Guard clauses and their failures in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dovetail_guards import clauses as c
from dovetail_guards.evaluate import (
    MISSING,
    FrameView,
    changed_class_attr,
    evaluate,
    instance_dict,
    ordered_keys,
    tensor_mismatch,
)
from dovetail_guards.float_expr import float_of_key
from dovetail_guards.relations import BoolExpr
from dovetail_guards.torch_state import READERS

_SYMBOL = re.compile(r"\b[stu]\d+\b")


@dataclass(frozen=True)
class GuardFailure:
    """Why a compiled frame could not be reused: the clause, what was seen, what to do."""

    clause: c.Clause
    text: str
    hint: str

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
    match clause:
        case c.TypeIs():
            return f"type({clause.source}) is {_name(clause.type_)}"
        case c.IdIs():
            return f"{clause.source} is {short(clause.obj)}"
        case c.ConstantIs():
            return f"{clause.source} == {short(clause.value)}"
        case c.LengthIs():
            return f"len({clause.source}) == {clause.length}"
        case c.DictKeysAre():
            return f"list({clause.source}) == {short(list(clause.keys))}"
        case c.HasKey():
            return f"{clause.key!r} {'in' if clause.present else 'not in'} {clause.source}"
        case c.HasInstanceAttr():
            word = "in" if clause.present else "not in"
            return f"{clause.name!r} {word} {clause.source}.__dict__"
        case c.SlotIsEmpty():
            return f"{clause.source}.{clause.name} is not set"
        case c.NoAccumulatorHooks():
            return f"no hooks on the node that accumulates the gradient of {clause.source}"
        case c.ClassAttrsAre():
            return f"attributes of {clause.source}: {', '.join(row[0] for row in clause.attrs)}"
        case c.FunctionIs():
            return f"code and defaults of {clause.source}"
        case c.GlobalPresent():
            return f"{clause.name!r} {'in' if clause.present else 'not in'} globals"
        case c.TensorIs():
            return _tensor_text(clause)
        case c.SameObject():
            return f"{_names(clause.sources)} are one object"
        case c.DistinctObjects():
            return f"{_names(clause.sources)} are different objects"
        case c.DistinctStorage():
            return f"{_names(clause.sources)} share no storage"
        case c.TorchState():
            return f"torch's {clause.name} is {short(clause.value)}"
        case c.AbstractAnswers():
            return " and ".join(
                f"{cls.__qualname__} is {'a' if answer else 'no'} subclass of {other.__qualname__}"
                for cls, other, answer in clause.answers
            )
        case c.ShapeRelation():
            return _relation_text(clause)
    return str(clause)


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


def explain(clause: c.Clause, frame: FrameView) -> GuardFailure:
    """Words for a clause that is known to fail in this frame."""
    seen, hint = _seen_and_hint(clause, frame)
    return GuardFailure(clause, f"expected {clause_text(clause)}, but {seen}", hint)


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
            mismatch = tensor_mismatch(clause, value)
            if mismatch is None:
                return "it holds now", ""
            name, expected, found = mismatch
            verb = "are" if name.endswith("s") else "is"
            text = f"its {name} {verb} {short(found)} instead of {short(expected)}"
            return text, _tensor_hint(clause, name, found)
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
        dims = [
            i
            for i, (e, v) in enumerate(zip(clause.sizes, found, strict=True))
            if e is not None and e != v
        ]
        return f"mark_dynamic({clause.source}, {dims[0] if len(dims) == 1 else dims})"
    if name == "sizes":
        return "each rank (number of dimensions) is compiled separately"
    if name == "strides":
        return f"call {clause.source}.contiguous() before, so that one memory layout is used"
    if name == "requires_grad":
        return "calls with and without gradients are compiled separately"
    return f"each {name} is compiled separately"
