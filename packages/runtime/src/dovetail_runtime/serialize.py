"""Plans as bytes and files, and back. The format is a line with its version, a JSON document, and
the constants as `torch.save` writes them (read with `weights_only`)."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import torch

from dovetail_runtime import plan as plan_module
from dovetail_runtime.plan import Constant, Plan

FORMAT_VERSION = 3
_LONG_STRING = 100
_MAGIC = b"dovetail plan, format "

_CLASSES = {
    name: value
    for name, value in vars(plan_module).items()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
}
_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)


class PlanFormatError(ValueError):
    """The bytes are no plan, or one of another format version."""


def plan_to_bytes(plan: Plan) -> bytes:
    """`plan` with its constants, as bytes."""
    bare = dataclasses.replace(plan, constants=())
    strings: dict[str, int] = {}
    body = _encode(bare, strings)
    document = json.dumps([list(strings), body], separators=(",", ":")).encode()
    constants = io.BytesIO()
    torch.save([(c.name, c.value.detach()) for c in plan.constants], constants)
    head = _MAGIC + f"{FORMAT_VERSION} {len(document)}\n".encode()
    return head + document + constants.getvalue()


def plan_from_bytes(data: bytes) -> Plan:
    """The plan that `plan_to_bytes` wrote."""
    head, newline, rest = data.partition(b"\n")
    if not newline or not head.startswith(_MAGIC):
        raise PlanFormatError("these bytes are not a Dovetail plan")
    version, length = (int(word) for word in head[len(_MAGIC) :].split())
    if version != FORMAT_VERSION:
        raise PlanFormatError(f"plan format {version} cannot be read: this is {FORMAT_VERSION}")
    strings, body = json.loads(rest[:length])
    plan = _decode(body, strings)
    if not isinstance(plan, Plan):
        raise PlanFormatError("these bytes hold no plan")
    loaded = torch.load(io.BytesIO(rest[length:]), weights_only=True)
    return dataclasses.replace(plan, constants=tuple(Constant(n, v) for n, v in loaded))


def save_plan(plan: Plan, path: Path | str) -> None:
    """Write `plan` to one file that another process or machine can load."""
    Path(path).write_bytes(plan_to_bytes(plan))


def load_plan(path: Path | str) -> Plan:
    """Read a file that `save_plan` wrote."""
    return plan_from_bytes(Path(path).read_bytes())


def _encode(value: Any, strings: dict[str, int]) -> Any:
    """`value` as JSON; long strings (kernels share a preamble) are written once, in `strings`."""
    if isinstance(value, str) and len(value) > _LONG_STRING:
        return {"$string": strings.setdefault(value, len(strings))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_encode(item, strings) for item in value]
    if isinstance(value, _TORCH_NAMES):
        return {"$torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$device": str(value)}
    if isinstance(value, complex):
        return {"$complex": [value.real, value.imag]}
    if type(value).__name__ in _CLASSES:
        names = [f.name for f in dataclasses.fields(value)]
        encoded = {name: _encode(getattr(value, name), strings) for name in names}
        return {"$": type(value).__name__, **encoded}
    raise TypeError(f"a plan cannot hold {value!r}")


def _decode(value: Any, strings: list[str]) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, strings) for item in value)
    if not isinstance(value, dict):
        return value
    if "$string" in value:
        return strings[value["$string"]]
    if "$torch" in value:
        return getattr(torch, value["$torch"])
    if "$device" in value:
        return torch.device(value["$device"])
    if "$complex" in value:
        return complex(*value["$complex"])
    made = _CLASSES[value["$"]]
    parts = {name: _decode(part, strings) for name, part in value.items() if name != "$"}
    return made(**parts)
