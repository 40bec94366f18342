"""Draw a result into the documents: the chart, and the blocks between two comments."""

from __future__ import annotations

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
    for path, text in drawn(result, root):
        replace_file(root / path, text)
        print(f"written to {path}")


def drawn(result: Result, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file, by its path below the root, and what it should be."""
    yield PICTURE, chart.svg(result)
    for page, block in ((README, tables.summary(result)), (PAGE, tables.page(result))):
        text = (root / page).read_text(encoding="utf-8")
        if BEGIN in text:
            yield page, filled(text, block)


def filled(text: str, block: str) -> str:
    if len(_BLOCK.findall(text)) != 1:
        raise Failed(f"expected one block from {BEGIN} to {END}")
    return _BLOCK.sub(lambda _: f"{BEGIN}\n{block}\n{END}", text)
