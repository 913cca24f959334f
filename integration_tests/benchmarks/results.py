"""Write RESULTS.md from the JSON files of `dovetail bench --json` and `micro.py --json`.

python integration_tests/benchmarks/results.py TITLE=FILE.json ... > RESULTS.md
"""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

from dovetail.bench.driver import Failure, Row
from dovetail.bench.table import ratios, render
from dovetail.bench.worker import Figures

INTRO = """# Results

Each table comes from one run of the command above it; its systems ran in fresh processes, round
after round, with eager interleaved in every process. `vs eager` is the median of pairwise ratios
(above 1: faster than eager). Beside torch.compile, steady states are compared by that ratio on a
CPU, and by their times on a GPU, where eager's own time differs between processes. Errors are
relative to the largest value of each tensor (or to a thousandth of the largest of all, for
gradients that are zero but for rounding); `err f64` is against the same model in float64, and
`rms f64` the root mean square of all errors instead of the largest, relative to that of the values:
the largest of some million errors is as much chance as precision.
`first call` is cold, `tracing` (capture, joint tracing, decomposition) is part of it, `2nd process`
finds the first one's caches. `a layer`: generated kernels in one layer's forward.
"""


def row_of(data: dict[str, Any]) -> Row | Failure:
    """A row as `dovetail bench` wrote it."""
    if "reason" in data:
        return Failure(**data)
    return Row(**{**data, "figures": Figures(**data["figures"])})


def section(title: str, path: str) -> str:
    """One file's table."""
    with open(path) as source:
        data = json.load(source)
    if "lines" in data:
        table = "\n".join(data["lines"])
        return f"## {title}\n\n{data['machine']}; `{data['command']}`\n\n{table}\n"
    rows = [row_of(r) for r in data["rows"]]
    on_gpu = " CPU, " not in data["machine"]
    return (
        f"## {title}\n\n{data['machine']}; `{data['command']}`\n\n{render(rows)}\n\n"
        + "\n".join(f"- {line}" for line in ratios(rows, on_gpu).splitlines())
        + "\n"
    )


def main() -> None:
    """Print the page."""
    print(INTRO)
    print(f"Written {datetime.date.today().isoformat()}.\n")
    for argument in sys.argv[1:]:
        title, _, path = argument.partition("=")
        print(section(title, path))


if __name__ == "__main__":
    main()
