"""Pages for developers are short, open with a picture or a table, and name files that are there."""

import re
from pathlib import Path

import pytest

from support.paths import ROOT

DESIGN = ROOT / "docs" / "design"
PAGES = [*sorted(DESIGN.rglob("*.md")), ROOT / "docs" / "glossary.md", ROOT / "CONTRIBUTING.md"]
MOST_LINES = 200
LAYERS = ("cython_ext", "lsmstate", "joins", "spark_integration")
#: Names of sources and of folders of a layer, in backquotes.
NAMED = re.compile(r"`((?:[\w*-]+/)*[\w*-]+\.(?:py|pyx|pxd|pyi)|(?:[\w-]+/){2,})`")
#: What a page tells its reader to add.
PLACEHOLDERS = {"new_kind"}


def tree() -> set[str]:
    """Every file and every folder, as the folders above it may be left out: ``lsm/store.py``."""
    found: set[str] = set()
    for top in (*LAYERS, "tests", "bench", "docs"):
        for path in (ROOT / top).rglob("*"):
            if path.is_symlink() or "__pycache__" in path.parts:
                continue
            parts = path.relative_to(ROOT).parts
            end = "/" if path.is_dir() else ""
            found |= {"/".join(parts[start:]) + end for start in range(len(parts))}
    return found | {path.name for path in ROOT.glob("*.py")}


TREE = tree()


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_source_files_that_are_named_exist(page: Path) -> None:
    missing = [
        name
        for name in NAMED.findall(page.read_text(encoding="utf-8"))
        if name not in TREE
        and not name.startswith("build/")
        and Path(name).stem not in PLACEHOLDERS
    ]
    assert not missing, f"{named(page)} names what is not in the tree"


@pytest.mark.parametrize("page", sorted(DESIGN.rglob("*.md")), ids=named)
def test_pages_are_short_and_open_with_a_picture(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MOST_LINES, f"{named(page)}: split it by subject"
    assert lines[0].startswith("# ")
    opening = next(line for line in lines[1:] if line)
    assert opening.startswith(("```text", "|", "- ")), f"{named(page)}: {opening}"
