"""Draw a result into the documents: the chart, and the blocks between two comments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.peers import chart, tables
from bench.peers.result import Result
from bench.report import replace_file
from bench.work import Failed

BEGIN: Final = "<!-- peers: begin -->"
END: Final = "<!-- peers: end -->"
PICTURE: Final = Path("docs/pictures/peers.svg")
README: Final = Path("README.md")
PAGE: Final = Path("docs/explanation/beside-others.md")
_BLOCK: Final = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def draw(result: Result, root: Path) -> None:
    for path, text in [*drawn(result, root)]:  # all or none
        replace_file(root / path, text)
        print(f"written to {path}")


def drawn(result: Result, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file, by its path below the root, and what it should be."""
    yield PICTURE, chart.svg(result)
    for page, tables_of in ((README, tables.sentence), (PAGE, tables.document)):
        text = (root / page).read_text(encoding="utf-8")
        if BEGIN in text:
            yield page, filled(text, f"{_picture(page)}\n\n{tables_of(result)}\n\n{_source(result, root, page)}")


def filled(text: str, block: str) -> str:
    if len(_BLOCK.findall(text)) != 1:
        raise Failed(f"expected one block from {BEGIN} to {END}")
    return _BLOCK.sub(lambda _: f"{BEGIN}\n{block}\n{END}", text)


def _picture(page: Path) -> str:
    return f"![{chart.WORDS}]({_from(page, PICTURE)})"


def _source(result: Result, root: Path, page: Path) -> str:
    path = result.path.resolve()
    if not path.is_relative_to(root):
        raise Failed(f"{path} is not in the repository: documents could not link it")
    more = "" if page == PAGE else f", [all figures and what they compare]({_from(page, PAGE)})"
    return f"[Result file]({_from(page, path.relative_to(root))}){more}."


def _from(page: Path, target: Path) -> str:
    """Return the link to a file of the repository from a page of it."""
    return os.path.relpath(target, page.parent)
