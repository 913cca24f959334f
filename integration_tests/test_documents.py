"""What the pages at the root say is true: their paths exist, their texts are those of now."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import architecture_texts
import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/glossary.md")
READMES = (
    "README.md",
    *sorted(f"packages/{p.name}/README.md" for p in (ROOT / "packages").iterdir()),
)
_ROW = re.compile(r"^\| (?P<what>.*?) \| *(?P<package>\w*) *\| (?P<files>.*) \|$", re.M)


def test_the_texts_of_the_stages_are_those_of_now() -> None:
    assert architecture_texts.page() == (ROOT / "ARCHITECTURE.md").read_text(), (
        "run: python integration_tests/architecture_texts.py --write"
    )


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [t for t in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in t]
    paths = re.findall(r"`((?:packages|src|integration_tests|docs|\.ci)/[^`\s*]+)`", text)
    missing = [link for link in links if not ((ROOT / page).parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_where_things_are() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [*_ROW.finditer(text[text.index("## Where things are") :])][2:]
    assert len(rows) > 30
    for row in rows:
        below = ROOT / f"packages/{row['package']}/src/dovetail_{row['package']}"
        for name in re.findall(r"`([\w./]+/|[\w./]+\.(?:py|h|c|cpp))`", row["files"]):
            folder = ROOT if name.startswith(("packages/", "src/")) else below
            assert (folder / name).exists(), (row["what"], name)


@pytest.mark.parametrize("page", [*PAGES, *READMES])
def test_paragraphs_and_lines_are_short(page: str) -> None:
    """At most six lines a paragraph or item, and 100 letters a line (tables aside)."""
    prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    for paragraph in (p for p in paragraphs if not p.lstrip().startswith(("|", "#", "<!--"))):
        lines = paragraph.strip().splitlines()
        assert len(lines) <= 6, paragraph
        assert not [line for line in lines if len(line) > 100]


@pytest.mark.parametrize(
    "project", [ROOT, *sorted((ROOT / "packages").iterdir())], ids=lambda path: path.name
)
def test_each_package_tells_its_version(project: Path) -> None:
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    (module,) = (project / "src").glob("*/__init__.py")
    assert f'\n__version__ = "{version}"\n' in module.read_text()
