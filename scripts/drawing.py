"""Drawings of the documents, made from text: boxes on a grid, and straight arrows between them.

    title: What the drawing shows, for those who cannot see it
    grid: 30 18                                        columns and rows
    box NAME 0 4 7 5: Title / a line / another line     column and row of its left upper corner, then its size
    frame NAME 10 4 10 10: Title                        a box that has other boxes in it
    store NAME 11 5 8 4: Title / a line                 a box for what is on disk
    arrow NAME > OTHER at 5: label                      from an edge of one to the facing edge of the other

An arrow between boxes that stand side by side is horizontal, and `at` is its row; otherwise it is vertical, and `at` is
its column. Lines that begin with # are comments. The same text makes the same bytes: `scripts/make-drawings`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from scripts import cast_svg

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "docs" / "pictures"
DRAWINGS: Final = ("architecture",)
RECORDINGS: Final = {
    "quick-start": "A terminal: two orders are published and answered with OK, the broker is killed with kill -9 and "
    "started again, and both orders are consumed."
}

CELL: Final = 32  # pixels
MARGIN: Final = 16
LINE: Final = 18  # pixels from one line of text to the next
# Pixels, on average, of the widest usual sans-serif, which is DejaVu's, at 13 px.
LETTER: Final = 7.5
BOLD_LETTER: Final = 8.6
KINDS: Final = ("box", "frame", "store")

_GRID: Final = re.compile(r"grid: (\d+) (\d+)")
_BOX: Final = re.compile(rf"({'|'.join(KINDS)}) (\w+) (\d+) (\d+) (\d+) (\d+): (.+)")
_ARROW: Final = re.compile(r"arrow (\w+) > (\w+) at (\d+(?:\.5)?): (.+)")

_STYLE: Final = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #57606a; text-anchor: middle }
.title { font-weight: 600; fill: #1f2328 }
.paper { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #8c959f }
.frame { fill: none; stroke: #0969da; stroke-dasharray: 6 4 }
.store { fill: #ddf4ff; stroke: #0969da }
.arrow { stroke: #57606a; stroke-width: 1.5; fill: none; marker-end: url(#head) }
.head { fill: #57606a }
.label { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
@media (prefers-color-scheme: dark) {
  text { fill: #9198a1 }
  .title { fill: #f0f6fc }
  .paper { fill: #0d1117 }
  .box { fill: #151b23; stroke: #656c76 }
  .frame { stroke: #4493f8 }
  .store { fill: #121d2f; stroke: #4493f8 }
  .arrow { stroke: #9198a1 }
  .head { fill: #9198a1 }
  .label { stroke: #0d1117 }
}"""


class Unclear(Exception):
    """A line of a drawing that cannot be drawn; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Box:
    kind: str
    name: str
    left: int
    top: int
    width: int
    height: int
    lines: tuple[str, ...]

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Arrow:
    start: tuple[float, float]
    end: tuple[float, float]
    label: str


@dataclass(slots=True)
class Drawing:
    title: str = ""
    columns: int = 0
    rows: int = 0
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)


# From the text


def drawing_of(text: str) -> Drawing:
    """Read a drawing. Raise Unclear for a line that says nothing, or something that cannot be drawn."""
    drawing = Drawing()
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                _read(line.strip(), drawing)
            except Unclear as error:
                raise Unclear(f"line {number}: {error}") from None
    return drawing


def _read(line: str, drawing: Drawing) -> None:
    if line.startswith("title: "):
        drawing.title = line.removeprefix("title: ")
    elif grid := _GRID.fullmatch(line):
        drawing.columns, drawing.rows = int(grid[1]), int(grid[2])
    elif said := _BOX.fullmatch(line):
        left, top, width, height = (int(it) for it in said.groups()[2:6])
        box = Box(said[1], said[2], left, top, width, height, tuple(said[7].split(" / ")))
        _check(box, drawing)
        drawing.boxes[box.name] = box
    elif said := _ARROW.fullmatch(line):
        drawing.arrows.append(_arrow(_box(said[1], drawing), _box(said[2], drawing), float(said[3]), said[4]))
    else:
        raise Unclear(f"expected title, grid, {', '.join(KINDS)} or arrow, got {line!r}")


def _box(name: str, drawing: Drawing) -> Box:
    if name not in drawing.boxes:
        raise Unclear(f"there is no box {name} above")
    return drawing.boxes[name]


def _check(box: Box, drawing: Drawing) -> None:
    if box.name in drawing.boxes:
        raise Unclear(f"there are two boxes {box.name}")
    if box.right > drawing.columns or box.bottom > drawing.rows:
        raise Unclear(f"{box.name} ends at {box.right} {box.bottom}, outside of the grid")
    for line, letter in zip(box.lines, (BOLD_LETTER, *(LETTER,) * len(box.lines)), strict=False):
        if len(line) * letter > box.width * CELL:
            raise Unclear(f"{line!r} is too long for {box.name}")
    if len(box.lines) * LINE > box.height * CELL:
        raise Unclear(f"{box.name} has too many lines")


def _arrow(source: Box, target: Box, at: float, label: str) -> Arrow:
    if _is_beside(source.top, source.bottom, target.top, target.bottom, at):
        near, far = _facing((source.left, source.right), (target.left, target.right))
        return Arrow((near, at), (far, at), label)
    if _is_beside(source.left, source.right, target.left, target.right, at):
        near, far = _facing((source.top, source.bottom), (target.top, target.bottom))
        return Arrow((at, near), (at, far), label)
    raise Unclear(f"{source.name} and {target.name} do not both reach {at:g}")


def _is_beside(first_start: int, first_end: int, second_start: int, second_end: int, at: float) -> bool:
    return max(first_start, second_start) <= at <= min(first_end, second_end)


def _facing(source: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Return where the gap between two stretches begins and ends, as seen from the source."""
    if source[1] <= target[0]:
        return source[1], target[0]
    if target[1] <= source[0]:
        return source[0], target[1]
    raise Unclear("there is no room between the boxes")


# To SVG


def svg_of(drawing: Drawing) -> str:
    width, height = (n * CELL + 2 * MARGIN for n in (drawing.columns, drawing.rows))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img">',
            f"<title>{escape(drawing.title)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
            'markerUnits="userSpaceOnUse"><path class="head" d="M0 0 8 4 0 8z"/></marker>',
            f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
            *(line for box in drawing.boxes.values() for line in _drawn_box(box)),
            *(line for arrow in drawing.arrows for line in _drawn_arrow(arrow)),
            "</svg>\n",
        ]
    )


def _drawn_box(box: Box) -> Iterator[str]:
    x, y = _pixels(box.left), _pixels(box.top)
    size = f'width="{box.width * CELL}" height="{box.height * CELL}"'
    yield f'<rect class="{box.kind}" x="{x:g}" y="{y:g}" {size} rx="6"/>'
    middle = x + box.width * CELL / 2
    # A frame's title stands at its top, as others have their place in it; all else is in the middle.
    first = y + 21 if box.kind == "frame" else y + (box.height * CELL - (len(box.lines) - 1) * LINE) / 2 + 4.5
    for number, line in enumerate(box.lines):
        kind = "" if number else ' class="title"'
        yield f'<text{kind} x="{middle:g}" y="{first + number * LINE:g}">{escape(line)}</text>'


def _drawn_arrow(arrow: Arrow) -> Iterator[str]:
    (x1, y1), (x2, y2) = ((_pixels(x), _pixels(y)) for x, y in (arrow.start, arrow.end))
    yield f'<path class="arrow" d="M{x1:g} {y1:g} {x2:g} {y2:g}"/>'
    # Above a horizontal line; on a vertical one, which shows through around it.
    y = y1 - 8 if y1 == y2 else (y1 + y2) / 2 + 4.5
    yield f'<text class="label" x="{(x1 + x2) / 2:g}" y="{y:g}">{escape(arrow.label)}</text>'


def _pixels(cells: float) -> float:
    return MARGIN + cells * CELL


# The files


def files() -> Iterator[tuple[str, str]]:
    """Yield the name of each file that is made from another one, and its contents."""
    for name in DRAWINGS:
        yield f"{name}.svg", svg_of(drawing_of((FOLDER / f"{name}.txt").read_text(encoding="utf-8")))
    for name, title in RECORDINGS.items():
        yield f"{name}.svg", cast_svg.svg_of((FOLDER / f"{name}.cast").read_text(encoding="utf-8"), title)


def main() -> int:
    try:
        for name, contents in files():
            (FOLDER / name).write_text(contents, encoding="utf-8")
    except (Unclear, cast_svg.Unclear) as error:
        print(f"make-drawings: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
