"""The `dovetail` command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from dovetail_prims.boundary_files import BoundaryFileError

from dovetail.options import MODES, unknown_name
from dovetail.show import BOUNDARIES, STAGES, load_function, read_inputs, show
from dovetail.stages import BOUNDARY_TYPES, continue_from, text_of


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dovetail", description="A compiler for PyTorch programs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    bench = commands.add_parser(
        "bench", help="eager, torch.compile and Dovetail side by side, in fresh processes"
    )
    bench.add_argument(
        "models", nargs="*", metavar="MODEL", help="named cases or module:function (default: bert)"
    )
    bench.add_argument("--model", action="append", default=[], help="one more MODEL")
    bench.add_argument("--list", action="store_true", help="print the named cases and stop")
    bench.add_argument("--train", action="store_true", help="training steps (default: see below)")
    bench.add_argument("--infer", action="store_true", help="inference; neither flag: both")
    bench.add_argument("--device", choices=("cpu", "cuda"), default=None)
    bench.add_argument("--mode", default=None, help=f"one of {', '.join(MODES)}")
    bench.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "autocast"),
        default="float32",
        help="the model's dtype; autocast: float32 weights under bfloat16 autocast",
    )
    bench.add_argument("--small", action="store_true", help="test-sized models")
    bench.add_argument("--rounds", type=int, default=2, help="processes per system")
    bench.add_argument("--seconds", type=float, default=1.5, help="steady state per process")
    bench.add_argument("--timeout", type=float, default=600.0, help="seconds per process")
    bench.add_argument("--systems", nargs="+", default=None, help="a choice of the systems")
    bench.add_argument("--json", metavar="FILE", default=None, help="write all figures")
    explain = commands.add_parser(
        "explain", help="what capture makes of a model: graphs, breaks, guards, replacement code"
    )
    explain.add_argument("model", metavar="MODEL", help="a named case or module:function")
    explain.add_argument("--train", action="store_true", help="in training mode, with gradients")
    explain.add_argument("--small", action="store_true", help="the test-sized model")
    shown = commands.add_parser("show", help="the text of each stage for one function")
    shown.add_argument("function", metavar="FILE.py:FUNCTION")
    shown.add_argument(
        "--inputs", default=None, help="its arguments, as Python (else the file's example_inputs)"
    )
    shown.add_argument("--train", action="store_true", help="with gradients and a backward")
    shown.add_argument("--stage", action="append", default=[], choices=tuple(STAGES))
    shown.add_argument("--save", metavar="DIR", help="write the boundary values there")
    shown.add_argument("--kernel", default=None, help="only the code of kernels with this in it")
    further = commands.add_parser(
        "continue", help="the stages after a boundary value that `show --save` wrote"
    )
    further.add_argument("file", metavar="FILE.boundary", help="(a pickle: one that you trust)")
    further.add_argument("--stage", default="plan", choices=tuple(BOUNDARY_TYPES), help="the last")
    return parser


def _continue(arguments: argparse.Namespace) -> int:
    try:
        for stage, value in continue_from(arguments.file, arguments.stage):
            print(f"==== {stage} ====\n{text_of(value).strip()}\n")
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    import torch

    from dovetail.bench.models import resolve
    from dovetail.explanation import explain

    try:
        builder = resolve(arguments.model)
    except (ValueError, ImportError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 2
    case = builder(arguments.small)
    case.model.train(arguments.train)
    with torch.set_grad_enabled(arguments.train):
        print(explain(case.model)(**case.inputs).as_text(verbose=True))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    try:
        function, module = load_function(arguments.function)
        inputs = read_inputs(arguments.inputs, module)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    stages = ["code"] if arguments.kernel else arguments.stage or BOUNDARIES
    folder = None if arguments.save is None else Path(arguments.save)
    try:
        shown = show(function, inputs, stages=stages, train=arguments.train, folder=folder)
    except BoundaryFileError as error:
        print(error, file=sys.stderr)
        return 2
    for each in shown:
        if arguments.kernel is None or arguments.kernel in each.text.text:
            print(each.as_text())
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    import torch

    from dovetail.bench.driver import ALL_SYSTEMS, SYSTEMS, Failure, measure_case
    from dovetail.bench.models import cases, resolve
    from dovetail.bench.table import machine, ratios, render
    from dovetail.bench.worker import Spec

    if arguments.list:
        print("\n".join(cases()))
        return 0
    if arguments.mode is not None and arguments.mode not in MODES:
        print(unknown_name("mode", arguments.mode, MODES), file=sys.stderr)
        return 2
    systems = arguments.systems or list(SYSTEMS)
    for system in systems:
        if system not in ALL_SYSTEMS:
            print(unknown_name("system", system, ALL_SYSTEMS), file=sys.stderr)
            return 2
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    names = [*arguments.models, *arguments.model] or ["bert"]
    try:
        for name in names:
            resolve(name)
    except (ValueError, ImportError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 2
    both = not (arguments.train or arguments.infer)
    phases = [train for train in (False, True) if both or (train and arguments.train)
              or (not train and arguments.infer)]  # fmt: skip
    print(f"{machine(device)}; mode {arguments.mode or 'default'}, {arguments.dtype}", flush=True)
    results = []
    for name in names:
        for train in phases:
            spec = Spec(
                system="eager",
                model=name,
                train=train,
                device=device,
                mode=arguments.mode,
                dtype=arguments.dtype,
                small=arguments.small,
                steady_s=arguments.seconds,
                overhead=not train,
            )
            results += measure_case(
                spec,
                systems,
                arguments.rounds,
                arguments.timeout,
                lambda line: print(line, file=sys.stderr, flush=True),
            )
    print(render(results))
    print(ratios(results))
    if arguments.json:
        with open(arguments.json, "w") as out:
            command = "dovetail bench " + " ".join(sys.argv[2:])
            rows = [asdict(r) for r in results]
            json.dump({"machine": machine(device), "command": command, "rows": rows}, out, indent=1)
    return 1 if any(isinstance(r, Failure) for r in results) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    commands = {"bench": _bench, "explain": _explain, "show": _show, "continue": _continue}
    return commands[arguments.command](arguments)


if __name__ == "__main__":
    sys.exit(main())
