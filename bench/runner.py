"""How sides are compared: they take turns, each run has a fresh broker, and a row has all runs of both.

A side is what is measured: ours, the yardstick, Go's nsqd, or ours with other flags. It is a function that takes the
number of the run and returns what it has measured, by the names of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import median
from typing import Final, TypeVar

from bench.report import Demand, Row
from bench.work import Failed, say

T = TypeVar("T")

RATE: Final = "msg/s"


@dataclass(frozen=True, slots=True)
class Measured:
    value: float  # messages a second, unless the row has another unit
    cost: float = nan  # processor time for one message, in microseconds


Side = Callable[[int], Mapping[str, Measured]]


def in_turns(sides: Sequence[T], runs: int) -> Iterator[tuple[int, T]]:
    """Yield each side once in each run, with the number of the run.

    Each run begins with another side, so that a machine that slows down or speeds up favours none of them.
    """
    for number in range(runs):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            yield number, side


class Compared:
    """The figures of all runs of some sides. `whose` names the process whose time the costs are."""

    def __init__(self, sides: Mapping[str, Side], runs: int, *, whose: str = "") -> None:
        self._found: dict[tuple[str, str], list[Measured]] = {}
        self._whose = whose
        for number, side in in_turns([*sides], runs):
            for name, measured in sides[side](number).items():
                self._found.setdefault((side, name), []).append(measured)
                cost = "" if isnan(measured.cost) else f"  {measured.cost:6.2f} µs each"
                say(f"{side:>14} {name:12} {measured.value:14,.1f}{cost}")

    def values(self, side: str, name: str) -> tuple[float, ...]:
        return tuple(it.value for it in self._found[side, name])

    def cost(self, side: str, name: str) -> float:
        return median(it.cost for it in self._found[side, name])

    def row(
        self,
        name: str,
        text: str,
        mine: str,
        other: str = "",
        *,
        unit: str = RATE,
        demand: Demand | None = None,
        note: str | None = None,
    ) -> Row:
        """Return the row of one side, perhaps beside another. Without a note of its own it notes the processor time."""
        theirs = self.values(other, name) if other else ()
        if note is None:
            note = self._note(name, [side for side in (mine, other) if side])
        return Row(text, unit, self.values(mine, name), demand, other, theirs, note)

    def _note(self, name: str, sides: Sequence[str]) -> str:
        costs = [self.cost(side, name) for side in sides]
        if any(map(isnan, costs)):
            return ""
        return f"{self._whose}processor {', '.join(f'{it:.2f} µs' for it in costs)} a message"


def chosen(only: str, known: Sequence[str], what: str = "rows") -> list[str]:
    """Return the names that `--only` has, in the order of the known ones; all of them if it has none."""
    if unknown := set(filter(None, only.split(","))) - set(known):
        raise Failed(f"unknown {what}: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return [name for name in known if not only or name in only.split(",")]
