"""Drawings made from text, and pictures of recorded terminals."""

from __future__ import annotations

import json
import re
import socket

import pytest

from scripts import cast_svg, drawing, recording
from scripts.drawing import drawing_of

GRID = "grid: 20 10\n"
TWO = GRID + "box a 0 0 5 2: A\nbox b 10 0 5 2: B\n"


def paths(text: str) -> list[str]:
    return re.findall(r'class="arrow" d="(.*?)"', drawing.svg_of(drawing_of(text)))


@pytest.mark.parametrize(
    ("arrow", "drawn"), [("a > b at 1", "M176 48 336 48"), ("b > a at 0.5", "M336 32 176 32")], ids=["right", "left"]
)
def test_an_arrow_goes_from_an_edge_to_the_facing_one(arrow: str, drawn: str) -> None:
    assert paths(f"{TWO}arrow {arrow}: to") == [drawn]


def test_an_arrow_between_boxes_that_stand_on_each_other_is_vertical() -> None:
    assert paths(f"{TWO}box c 0 5 5 2: C\narrow c > a at 2: up") == ["M80 176 80 80"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{TWO}circle c", "line 4: expected title, grid"),
        (f"{TWO}box a 0 5 5 2: A", "two boxes a"),
        (f"{TWO}box c 16 5 5 2: C", "outside of the grid"),
        (f"{TWO}box c 0 5 5 2: C / what does not fit into its box", "too long for c"),
        (f"{TWO}box c 0 5 5 1: C / one / two", "too many lines"),
        (f"{TWO}arrow a > d at 1: to", "no box d"),
        (f"{TWO}arrow a > b at 5: to", "do not both reach 5"),
        (f"{TWO}frame c 0 0 9 9: C\narrow a > c at 1: to", "no room between"),
    ],
)
def test_what_cannot_be_drawn_is_reported_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(drawing.Unclear, match=complaint):
        drawing_of(text)


def cast(*events: tuple[float, str]) -> str:
    header = {"version": 2, "width": 20, "height": 5, "idle_time_limit": 1.0}
    return "\n".join(json.dumps(it) for it in (header, *([at, "o", text] for at, text in events)))


def begins(svg: str) -> dict[str, float]:
    """Return at which part of the time, in per cent, each text appears."""
    times = {slot: float(part) for slot, part in re.findall(r"@keyframes (t\d+)\{0%\{opacity:0\}([\d.]+)%", svg)}
    groups = re.findall(r'<g style="animation-name:(t\d+)">(.*?)</g>', svg)
    return {text: times[slot] for slot, inside in groups for text in re.findall(r">([^<]+)</text>", inside)}


def test_a_text_appears_at_its_time_and_stays() -> None:
    svg = cast_svg.svg_of(cast((0.0, "$ "), (0.5, "ls\r\n"), (1.0, "data\r\n")), "A terminal")
    assert "animation: 6.0s" in svg  # the last text at 1 s, and then 5 s of rest
    assert begins(svg) == {"$": 0.0, "ls": 8.33, "data": 16.67}


def test_pauses_are_shortened() -> None:
    svg = cast_svg.svg_of(cast((0.0, "$ "), (60.0, "ls")), "A terminal")
    assert "animation: 6.0s" in svg


def test_colours_and_columns_are_kept() -> None:
    svg = cast_svg.svg_of(cast((0.0, "\x1b[32mok\x1b[0m  <2>\r\n")), "A terminal")
    assert '<text class="green" x="16.0" y="31" textLength="16.8">ok</text>' in svg
    assert '<text x="49.6" y="31" textLength="25.2">&lt;2&gt;</text>' in svg


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("12\r3", "written over"),
        ("\x1b[2J", "no text, line end or colour"),
        ("\x1b[48m", "not in the table: 48"),
        ("x" * 21, "longer than 20 columns"),
    ],
)
def test_what_paper_cannot_show_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(cast_svg.Unclear, match=complaint):
        cast_svg.svg_of(cast((0.0, text)), "A terminal")


def test_readers_who_want_less_motion_see_the_end() -> None:
    svg = cast_svg.svg_of(cast((0.0, "$ ")), "A terminal")
    assert "@media (prefers-reduced-motion: reduce) { g { animation: none !important } }" in svg
    assert "opacity:0}" not in re.sub(r"@keyframes.*", "", svg), "without animations nothing is hidden"


def test_the_recording_tells_the_story_and_nothing_of_the_machine_that_made_it() -> None:
    shown = recording.shown_by(recording.CAST.read_text(encoding="utf-8"))
    commands = [line.partition("$ ")[2] for line in shown.split("\r\n") if line.startswith(recording.PROMPT)]
    assert commands == [*(it.command for it in recording.STORY), ""]
    assert not re.search(rf"/tmp|/home|/root|\[1\] \d|{re.escape(socket.gethostname())}|\d{{4}}[-/]\d\d[-/]", shown)
