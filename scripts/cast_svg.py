"""An asciicast as an animated SVG, which plays in an `<img>`: styles only, no scripts.

What a terminal has shown stays where it is, as on paper: a text appears at its time, until all begins again. Without
animations, and for readers who want less motion, the picture shows the end. So the recording may not move what is on
the screen, nor write over it; one that does is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final
from xml.sax.saxutils import escape

COLUMN: Final = 8.4  # pixels
LINE: Final = 20
MARGIN: Final = 16
SLOT: Final = 0.1  # seconds; what comes within one appears together, which keeps the file small
REST: Final = 5.0  # seconds for which the end is shown

_PIECE: Final = re.compile(r"\x1b\[([\d;]*)m|(\r)|(\n)|([^\x00-\x1f\x7f]+)")
_WORDS: Final = re.compile(r"\S+(?: \S+)*")  # SVG makes one space of many
_COLOURS: Final = {31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan", 90: "grey"}
_RESET: Final = 0

_STYLE: Final = """\
.paper { fill: #0d1117; stroke: #3d444d }
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #f0f6fc }
.red { fill: #ff7b72 } .green { fill: #7ee787 } .yellow { fill: #e3b341 } .blue { fill: #79c0ff }
.magenta { fill: #d2a8ff } .cyan { fill: #76e3ea } .grey { fill: #9198a1 }
@media (prefers-reduced-motion: reduce) { g { animation: none !important } }"""


class Unclear(Exception):
    """A recording that cannot be drawn; the text says why."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One character on the screen, which is there from some slot on."""

    text: str
    colour: str
    slot: int


@dataclass(slots=True)
class Screen:
    """What a terminal has shown, by line and column."""

    columns: int
    lines: list[dict[int, Cell]] = field(default_factory=lambda: [{}])
    _column: int = 0
    _colour: str = ""

    def write(self, text: str, slot: int) -> None:
        end = 0
        for found in _PIECE.finditer(text):
            if found.start() != end:
                break
            end = found.end()
            self._take(found, slot)
        if end != len(text):
            raise Unclear(f"no text, line end or colour: {text[end : end + 12]!r}")

    def _take(self, found: re.Match[str], slot: int) -> None:
        codes, returned, ended, words = found.groups()
        if codes is not None:
            self._set_colour(codes)
        elif returned:
            self._column = 0
        elif ended:
            self.lines.append({})
        else:
            for character in words:
                self._put(Cell(character, self._colour, slot))

    def _set_colour(self, codes: str) -> None:
        for code in (int(it or _RESET) for it in codes.split(";")):
            if code not in _COLOURS and code != _RESET:
                raise Unclear(f"a colour that is not in the table: {code}")
            self._colour = _COLOURS.get(code, "")

    def _put(self, cell: Cell) -> None:
        if self._column >= self.columns:
            raise Unclear(f"a line is longer than {self.columns} columns")
        if self._column in self.lines[-1]:
            raise Unclear(f"line {len(self.lines)} is written over, at column {self._column}")
        self.lines[-1][self._column] = cell
        self._column += 1


def svg_of(cast: str, title: str) -> str:
    """Return the drawing of an asciicast, version 2."""
    header, *events = (json.loads(line) for line in cast.splitlines())
    screen, seconds = Screen(header["width"]), 0.0
    for seconds, text in _timed(events, header["idle_time_limit"]):
        screen.write(text, round(seconds / SLOT))
    return "\n".join(_svg(screen, title, seconds + REST)) + "\n"


def _timed(events: list[list[object]], longest_pause: float) -> Iterator[tuple[float, str]]:
    """Yield what was shown, at its time without the pauses in which nothing happened."""
    before = shown_at = 0.0
    for at, kind, text in events:
        assert isinstance(at, int | float)
        if kind == "o":
            shown_at += min(at - before, longest_pause)
            before = at
            yield shown_at, str(text)


def _svg(screen: Screen, title: str, seconds: float) -> Iterator[str]:
    width = round(screen.columns * COLUMN) + 2 * MARGIN
    height = len(screen.lines) * LINE + 2 * MARGIN
    texts = _texts(screen)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f"<style>\n{_STYLE}\ng {{ animation: {seconds:.1f}s steps(1) infinite }}"
    for slot in texts:
        yield f"@keyframes t{slot}{{0%{{opacity:0}}{100 * slot * SLOT / seconds:.2f}%{{opacity:1}}}}"
    yield "</style>"
    yield f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>'
    for slot, lines in texts.items():
        yield f'<g style="animation-name:t{slot}">{"".join(lines)}</g>'
    yield "</svg>"


def _texts(screen: Screen) -> Mapping[int, list[str]]:
    """Return the elements of each slot, in the order in which they appear."""
    texts: dict[int, list[str]] = {}
    for number, line in enumerate(screen.lines):
        for (slot, colour), cells in groupby(line.items(), lambda it: (it[1].slot, it[1].colour)):
            texts.setdefault(slot, []).extend(_drawn(number, colour, dict(cells)))
    return dict(sorted(texts.items()))


def _drawn(line: int, colour: str, cells: Mapping[int, Cell]) -> Iterator[str]:
    first = next(iter(cells))
    kind = f' class="{colour}"' if colour else ""
    for found in _WORDS.finditer("".join(it.text for it in cells.values())):
        x, y = MARGIN + (first + found.start()) * COLUMN, MARGIN + line * LINE + 15
        # The length, because every reader has another font.
        length = len(found[0]) * COLUMN
        yield f'<text{kind} x="{x:.1f}" y="{y}" textLength="{length:.1f}">{escape(found[0])}</text>'
