"""The names in the text of an emitted C++ kernel: each is declared in a block around its use."""

from __future__ import annotations

import re

# Declarations and uses of the names that the emitter makes: loop variables, values, accumulators,
# arrays, pointers, sizes.
_NAME = r"(?:i\d+|t\d+|acc\d+|scratch\d+|tile\d+|row\d+|resultacc\d+|p\d+|size_\w+|base\d+|rest\d+)"
_TOKEN = re.compile(
    rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<open>{{)|(?P<close>}})"
    rf"|(?P<name>(?<![\w.]){_NAME}\b)(?P<declares>\s*(?:=(?!=)|\[[^\]]*\];|\())?",
    re.DOTALL,
)
_FUNCTION = re.compile(r'^extern "C" void .*?^}', re.DOTALL | re.MULTILINE)
# What stands before the name in a declaration, a type; in the head of a loop a second name follows
# a comma.
_TYPE = re.compile(r"[\w>*]\s+$")
_SECOND = re.compile(r"\bfor \(int64_t [^;{}]*,\s*$")


class ScopeError(AssertionError):
    """A kernel's text names what is not declared there; the message holds the lines around it."""


def check_scopes(source: str) -> None:
    """Raise `ScopeError` at the first name of a kernel's function that no block around it declares
    before."""
    for function in _FUNCTION.finditer(source):
        _check_function(function.group())


def _check_function(text: str) -> None:
    scopes: list[set[str]] = [set()]
    head: set[str] = set()  # declared in the parentheses that stand before a block
    for token in _TOKEN.finditer(text):
        if token["open"] == "{":
            scopes.append(head)
            head = set()
        elif token["close"] == "}":
            scopes.pop()
        elif name := token["name"]:
            before = text[max(0, token.start() - 200) : token.start()]
            if token["declares"] and (_TYPE.search(before) or _SECOND.search(before)):
                in_head = (
                    before.rfind("for (") > before.rfind("{")
                    and ";" not in before[before.rfind("for (") :]
                )
                (head if in_head else scopes[-1]).add(name)
            elif name not in head and not any(name in scope for scope in scopes):
                line = text.count("\n", 0, token.start())
                around = text.splitlines()[max(0, line - 6) : line + 4]
                raise ScopeError(
                    f"{name} is not declared where it is read, in\n" + "\n".join(around)
                )


__all__ = ["ScopeError", "check_scopes"]
