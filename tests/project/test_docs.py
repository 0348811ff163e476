"""The documents hold: their examples run and print what they say, their links lead somewhere.

- The Python blocks of a page run one after the other, in one namespace and one empty directory.
- A comment behind or directly beneath a ``print(...)`` is what the call prints.
- Lines of shell blocks that begin with ``lsmstate`` run, in the directory ``home`` of the page's
  examples or in its own. A target of ``make`` exists.
- A block that does not run has a line before it: ``<!-- excerpt: the reason -->``.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsmstate.cli.main import app
from support.page_blocks import FENCE, Block, blocks_of, runs, said
from support.paths import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Languages of blocks that hold no code to run.
DATA = {"text", "json", "sql", "toml", "ini", "properties", "diff", "c"}

LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages_that_run() -> Iterator[Any]:
    """Those with examples, marked where they need Spark."""
    for page in PAGES:
        blocks = runs(page)
        marks = [pytest.mark.spark] if any("pyspark" in block.code for block in blocks) else []
        if blocks:
            yield pytest.param(page, marks=marks, id=named(page))


@pytest.mark.parametrize("page", list(pages_that_run()))
def test_examples(page: Path, request: Any, tmp_path: Path, monkeypatch: Any) -> None:
    if request.node.get_closest_marker("spark"):
        spark = request.getfixturevalue("spark")
        request.getfixturevalue("few_partitions")
        request.addfinalizer(lambda: [query.stop() for query in spark.streams.active])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in runs(page):
        if block.language == "python":
            check_python(block, page, names)
        else:
            monkeypatch.chdir(names.get("home", tmp_path))
            check_shell(block, page)
            monkeypatch.chdir(tmp_path)


def check_python(block: Block, page: Path, names: dict[str, Any]) -> None:
    # As many lines before it as stand in the page: a traceback then names the page's line.
    code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    assert printed.getvalue().splitlines() == said(block.code), f"{named(page)}:{block.line}"


def check_shell(block: Block, page: Path) -> None:
    for command in block.code.replace("\\\n", " ").splitlines():
        if command.startswith("lsmstate "):
            done = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
            assert done.exit_code == 0, f"{named(page)}: {command}\n{done.output}{done.exception}"


@pytest.mark.stress
@pytest.mark.timeout(660)
def test_readme_runs_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own, with a session such as its reader has."""
    code = "\n".join(block.code for block in runs(README) if block.language == "python")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said(code)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_run_or_say_why_not(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks_of(page):
        where = f"{named(page)}:{block.line}"
        assert block.language in {"python", "sh", *DATA}, f"{where}: name the block's language"
        if block.language == "python" and not block.reason:
            assert "print(" not in block.code or said(block.code), f"{where}: what is printed?"
        for target in re.findall(r"^make ([a-z-]+)", block.code, re.MULTILINE):
            assert target in targets, f"{where}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    """Those in the text of a page; ``make docs`` checks those of the docstrings too."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)}: {path}"
        if anchor and target.suffix == ".md":
            assert anchor[1:] in anchors(target), f"{named(page)}: {path}{anchor}"
        if page.is_relative_to(ROOT / "docs"):
            assert target.is_relative_to(ROOT / "docs"), f"{named(page)}: {path} is on no web page"


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": ([a-z/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in PAGES[2:])


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and MkDocs make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"\s", "-", heading) for heading in plain}
