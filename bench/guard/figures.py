"""The stored figures of `python -m bench guard`, and the judgement of counts by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from bench.report import replace_file
from bench.work import Failed

Counts = Mapping[str, float]  # load: instructions for each message

ONE_CHANGE: Final = 0.01  # a change may cost this much more than the last stored figure
IN_ALL: Final = 0.03  # all changes together may cost this much more than the base


@dataclass(frozen=True, slots=True)
class Figure:
    """The stored instructions for each message of one load."""

    base: float  # moved only when a person decides so
    last: float  # moved by each change that is worth it


Figures = Mapping[str, Figure]  # load: figure


class Verdict(Enum):
    AS_BEFORE = auto()
    BETTER = auto()
    WORSE = auto()


@dataclass(frozen=True, slots=True)
class Judgement:
    load: str
    figure: Figure
    count: float

    @property
    def of_base(self) -> float:
        return self.count / self.figure.base - 1

    @property
    def of_last(self) -> float:
        return self.count / self.figure.last - 1

    @property
    def verdict(self) -> Verdict:
        if self.of_last > ONE_CHANGE or self.of_base > IN_ALL:
            return Verdict.WORSE
        return Verdict.BETTER if self.of_last < -ONE_CHANGE else Verdict.AS_BEFORE

    @property
    def finding(self) -> str:
        """Return a line about a count that is worse or better; empty if it is as before."""
        if self.of_last > ONE_CHANGE:
            return f"{self.load} costs {self.of_last:.1%} more than last: at most {ONE_CHANGE:.0%} in one change"
        if self.of_base > IN_ALL:
            return f"{self.load} costs {self.of_base:.1%} more than its base: at most {IN_ALL:.0%} in all"
        if self.verdict is Verdict.BETTER:
            return f"{self.load} costs {-self.of_last:.1%} less than last: store it with --store, so that it stays so"
        return ""


def judge(figures: Figures, counts: Counts) -> list[Judgement]:
    """Judge each load by its figure. Raises Failed if the figures are of other loads: then nothing would guard them."""
    if figures.keys() != counts.keys():
        raise Failed(f"the figures are of {', '.join(figures)}, and the loads {', '.join(counts)}: run it with --store")
    return [Judgement(load, figures[load], counted) for load, counted in counts.items()]


def load_figures(path: Path) -> dict[str, Figures]:
    """Return the stored figures by their key."""
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {key: {load: Figure(**figure) for load, figure in figures.items()} for key, figures in stored.items()}


def store(path: Path, key: str, counts: Counts, *, moves_base: bool) -> None:
    """Make the counts the last figures of this key. They become the base as well if there is none, or `moves_base`."""
    stored = load_figures(path)
    before = {} if moves_base else stored.get(key, {})
    rounded = {load: round(counted, 1) for load, counted in counts.items()}
    stored[key] = {
        load: Figure(base=before[load].base if load in before else counted, last=counted)
        for load, counted in rounded.items()
    }
    content = {key: {load: asdict(figure) for load, figure in stored[key].items()} for key in sorted(stored)}
    replace_file(path, json.dumps(content, indent=2) + "\n")
