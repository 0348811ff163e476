"""Fenced blocks of pages: which are run, and what their comments say that they print."""

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(
    r"(?:^ *<!-- excerpt: (?P<reason>.*?)-->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    reason: str
    """Why it is not run; empty if it is."""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        code = re.sub(rf"^{indent}", "", match["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("code")) + 1
        found.append(Block(match["language"], code, line, (match["reason"] or "").strip()))
    return found


def runs(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    return [
        block
        for block in blocks_of(page)
        if not block.reason
        and (block.language == "python" or (block.language == "sh" and "lsmstate " in block.code))
    ]


def said(code: str) -> list[str]:
    """What the comments behind and beneath the calls of ``print`` say that they print."""
    behind, alone = {}, {}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            column = token.start[1]
            comments = behind if token.line[:column].strip() else alone
            comments[token.start[0]] = token.string.removeprefix("# ")
    found = []
    for line in sorted(print_ends(code)):
        if line in behind:
            found.append(behind[line])
        while (line := line + 1) in alone:
            found.append(alone[line])
    return found


def print_ends(code: str) -> set[int]:
    """The last line of each call of ``print``."""
    return {
        node.end_lineno or 0
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    }
