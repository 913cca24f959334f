"""The README's program runs."""

import re
from pathlib import Path

import pytest


def test_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    assert "def run_demo(x):" in capsys.readouterr().out
