"""What a setting of torch.compile's means here: an option, an argument of `compile`, nothing, or
something that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SetsOption:
    """It is the option `field` of `dovetail.Options`."""

    field: str


@dataclass(frozen=True)
class SetsSwitch:
    """It is the field `switch` of capture's `Switches`, which hold for every compiled function."""

    switch: str


@dataclass(frozen=True)
class SetsArgument:
    """It is an argument in calls of `compile` that do not give it."""

    argument: str


@dataclass(frozen=True)
class ChangesNothing:
    """It is accepted, with one warning that gives the reason where it is not the default."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Only the default can be had; any other value raises an error that gives the reason and the
    way round."""

    reason: str


Meaning = SetsOption | SetsSwitch | SetsArgument | ChangesNothing | Refused


@dataclass(frozen=True)
class Setting:
    """A setting: its name, with its group before a dot ("triton.cudagraphs"), torch's default, and
    what it means. `module` is where torch has it: "dynamo", "inductor", "functorch" or
    "compiler"."""

    name: str
    module: str
    default: object
    meaning: Meaning
