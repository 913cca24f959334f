"""The texts of each stage in `ARCHITECTURE.md`.

    python integration_tests/architecture_texts.py --write

puts in what `dovetail show` prints now, behind each `<!-- show: STAGE ARTIFACT -->`; a test holds
the page to it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import torch

from dovetail.show import STAGES, show

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
_PLACE = re.compile(
    r"^<!-- show: (?P<stage>\w+) (?P<artifact>\w+) -->\n(?:\n```text\n.*?\n```\n)?", re.M | re.S
)


def f(x: Any, y: Any) -> Any:
    scores = torch.softmax(x @ y, dim=-1)
    return (scores * x.sin()).sum(0)


def page() -> str:
    """The page with the texts of now."""
    inputs = (torch.ones(64, 64, requires_grad=True), torch.ones(64, 64))
    text = PAGE.read_text()
    stages = [stage for stage in STAGES if f"show: {stage} " in text]
    texts: dict[tuple[str, str], str] = {}
    for shown in show(f, inputs, stages=stages, train=True):  # (the forward's come first)
        texts.setdefault((shown.stage, shown.text.artifact), shown.text.text)

    def block(match: re.Match[str]) -> str:
        told = _excerpt(match["artifact"], texts[match["stage"], match["artifact"]])
        return f"<!-- show: {match['stage']} {match['artifact']} -->\n\n```text\n{told}\n```\n"

    return _PLACE.sub(block, text)


def _excerpt(artifact: str, text: str) -> str:
    """What is the same on each machine; of a plan, what it runs, without the kernels' sources."""
    if artifact == "output_code":
        text = text[text.index("def run_graph(") : text.index("\n\nif __name__")]
        text = re.sub(r"_[0-9a-f]{16}'", "_...'", text)
    text = re.sub(r"from '[^'\n]*'?\S*", "...", text)
    text = re.sub(r"0x[0-9a-f]+", "0x...", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines() if line.strip())


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page())
    else:
        print(page())
