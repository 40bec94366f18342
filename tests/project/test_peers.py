"""The figures of other brokers in the documents are those of the result file, and say who is ahead."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.draw import PAGE, PICTURE, drawn
from bench.peers.loads import FIGURES
from bench.peers.result import Result
from bench.peers.tables import NOBODY, table
from bench.peers.variants import Promise

ROOT = Path(__file__).resolve().parents[2]
RESULT = Result.read(ROOT / "bench" / "results" / "0021-peers.json")
NEWER = {"batch10"}  # loads that came after the result
DRAWN = dict(drawn(RESULT, ROOT))


@pytest.mark.parametrize("path", DRAWN, ids=str)
def test_what_is_drawn_is_up_to_date(path: Path) -> None:
    command = "run python -m bench peers --draw bench/results/0021-peers.json"
    assert (ROOT / path).read_text(encoding="utf-8") == DRAWN[path], command


def test_the_page_and_the_chart_are_drawn() -> None:
    assert {PAGE, PICTURE} <= set(DRAWN)


@pytest.mark.parametrize("name", [Promise.WRITTEN, Promise.SYNCED, "backlog"])
def test_every_load_names_who_is_ahead(name: str) -> None:
    lines = table(RESULT, RESULT.group(name)).splitlines()[2:]
    assert lines
    for line in lines:
        last = line.split(" | ")[-1]
        assert "**" in last or NOBODY in last, line


def test_the_result_has_every_load() -> None:
    figures = [*RESULT.group(Promise.WRITTEN).figures, *RESULT.group("backlog").figures]
    assert {it.name for it in figures} == {it.name for it in FIGURES} - NEWER
