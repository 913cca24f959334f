"""The page `docs/coming-from-torch-compile.md`: what stands here for each of torch.compile's names.

    python integration_tests/coming_from_torch_compile.py --write

makes it anew from what the code says; a test holds the page to it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import dovetail
from dovetail.install.torch_names import LATE
from dovetail.settings.table import TABLE
from dovetail.settings.torch_settings import (
    ChangesNothing,
    Meaning,
    SetsArgument,
    SetsOption,
    SetsSwitch,
)

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-torch-compile.md"

_HEAD = """# Coming from torch.compile

Made by `python integration_tests/coming_from_torch_compile.py --write`; a test compares.

Two ways: change the names (`torch.compile` to `dovetail.compile`, `torch.compiler` to
`dovetail.compiler`), or change nothing and call `dovetail.install()` first (or run
`python -m dovetail SCRIPT`). `integration_tests/compile_features.py` runs 143 features both ways.
"""

_WITHIN = """
## Compiled functions within compiled functions

| the outer one | the inner one | |
| --- | --- | --- |
| `dovetail.compile` | `dovetail.compile` or `torch.compile` | is a part of the outer one |
| `torch.compile` | `dovetail.compile` | breaks the outer graph; runs as Dovetail compiled it |

A part obeys the outer call alone, as within torch.compile: the inner one's
`backend`, `mode`, `options` and `dynamic` say nothing there. Its `fullgraph=True` is kept: a break
inside of it is an error. The outer `fullgraph=True` of a torch.compile around Dovetail's raises.
"""

# Names that are there and refuse, with what to use instead.
_REFUSED = {
    "load_compiled_function": "`load_cache_artifacts`",
    "precompile": "`save_cache_artifacts`",
    "set_enable_guard_collectives": "refused if enabled: mark the sizes that differ",
}

# What libraries use of torch._dynamo and torch._inductor besides settings.
_UNDERSTOOD = {
    "torch._dynamo.OptimizedModule": "`isinstance` is true of compiled modules",
    "torch._dynamo.allow_in_graph": "honoured",
    "torch._dynamo.assume_constant_result": "honoured",
    "torch._dynamo.disable": "honoured, with `recursive=False`, too",
    "torch._dynamo.error_on_graph_break": "honoured",
    "torch._dynamo.graph_break": "honoured",
    "torch._dynamo.is_compiling": "honoured",
    "torch._dynamo.mark_dynamic": "honoured",
    "torch._dynamo.mark_static": "honoured",
    "torch._dynamo.mark_static_address": "honoured",
    "torch._dynamo.mark_unbacked": "honoured",
    "torch._dynamo.maybe_mark_dynamic": "honoured",
    "torch._dynamo.reset": "honoured",
    "torch._dynamo.set_stance": "honoured",
    "torch._dynamo.utils.counters": "not filled: `dovetail.report` tells",
}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _names() -> Iterator[tuple[str, str]]:
    for name in dovetail.compiler.__all__:
        yield f"`torch.compiler.{name}`", _REFUSED.get(name, f"`dovetail.compiler.{name}`")


def _arguments() -> Iterator[tuple[str, str]]:
    refused = {"dynamic_shapes": "refused: `dovetail.mark_dynamic` marks tensors"}
    for name in inspect.signature(dovetail.compile).parameters:
        yield f"`{name}`", refused.get(name, "the same")


def _front_end() -> Iterator[tuple[str, str]]:
    known = dict(_UNDERSTOOD)
    for module, names in LATE.items():
        for name in names:
            known.setdefault(f"{module}.{name}", "Dovetail's under `install()`")
    for name, what in sorted(known.items()):
        yield f"`{name}`", what


def _said(meaning: Meaning) -> str:
    match meaning:
        case SetsOption(field):
            return f"the option `{field}`"
        case SetsSwitch(switch):
            return f"honoured for the whole process (`{switch}`)"
        case SetsArgument(argument):
            return f"the argument `{argument}` where a call gives none"
        case ChangesNothing(reason):
            return f"changes nothing: {reason}"
    return f"refused: {meaning.reason}"


def _settings() -> Iterator[tuple[str, str, str]]:
    for name, setting in sorted(TABLE.items()):
        yield f"`{name}`", f"torch's {setting.module}", _said(setting.meaning).replace("|", "\\|")


def page() -> str:
    """The text of the page."""
    parts = [
        _HEAD,
        "## torch.compiler\n",
        _table(("torch", "here"), _names()),
        "\n## Arguments of torch.compile\n",
        _table(("argument", "here"), _arguments()),
        _WITHIN.rstrip(),
        "\n## What libraries use of torch's front end\n",
        _table(("torch", "here"), _front_end()),
        "\n## Settings: `dovetail.config.X`, `compile(options={X: ...})`\n",
        _table(("setting", "of", "here"), _settings()),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page())
