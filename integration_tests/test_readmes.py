"""Each Python block of the READMEs runs, alone, as a reader would paste it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]


def python_blocks(readme: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)


def test_each_readme_has_lines_that_run() -> None:
    assert len(READMES) == 7
    for readme in READMES:
        assert python_blocks(readme), f"{readme.relative_to(ROOT)} has no python block"


@pytest.mark.parametrize("readme", READMES, ids=lambda readme: readme.parent.name)
def test_what_a_readme_names_exists(readme: Path) -> None:
    """Relative links, and in backquotes the paths of this repository and files of the package."""
    text = readme.read_text()
    links = [t for t in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in t]
    paths = re.findall(r"`((?:packages|src|integration_tests)/[^`\s*]+)`", text)
    for target in links:
        assert (readme.parent / target).exists(), f"{readme.relative_to(ROOT)}: {target}"
    for target in paths:
        assert (ROOT / target).exists(), f"{readme.relative_to(ROOT)}: {target}"
    for target in re.findall(r"`([\w/]+\.(?:py|h|c|cpp))`", text):
        assert any(readme.parent.rglob(target)), f"{readme.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize(
    ("readme", "index"),
    [(r, i) for r in READMES for i in range(len(python_blocks(r)))],
    ids=lambda value: value.parent.name if isinstance(value, Path) else str(value),
)
def test_block_runs(readme: Path, index: int, tmp_path: Path) -> None:
    # A file, not a string: what is compiled wants its source for error messages.
    script = tmp_path / "block.py"
    script.write_text(python_blocks(readme)[index])
    runpy.run_path(str(script), run_name="__main__")


def test_continuous_integration_runs_the_test_command() -> None:
    """The command that a reader is told, word for word: another one may pass where it fails."""
    commands = re.search(
        r"## Two commands.*?```\n(.*?)```", ROOT.joinpath("README.md").read_text(), re.S
    )
    assert commands
    test_command = commands[1].splitlines()[1].partition("#")[0].strip()
    assert test_command == "uv run pytest"
    assert test_command in ROOT.joinpath(".ci/run").read_text().splitlines()
