"""Messages that a user has selected, as a text for forms and requests: `12@n1:4151 30-40@n1:4151`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MOST: Final = 10_000  # messages
_WORD: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?@([^\s@]{1,300})").fullmatch


class BadSelection(ValueError):
    """The text names no messages, or too many; the message says why."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages by node, as ranges [first, end) of sequences."""

    runs: Mapping[str, tuple[tuple[int, int], ...]]

    @property
    def count(self) -> int:
        return sum(end - first for runs in self.runs.values() for first, end in runs)

    def __str__(self) -> str:
        return " ".join(
            f"{first}@{node}" if end == first + 1 else f"{first}-{end - 1}@{node}"
            for node, runs in self.runs.items()
            for first, end in runs
        )


def parse_selection(text: str) -> Selection:
    """Read a selection. Raise BadSelection."""
    ranges: dict[str, list[tuple[int, int]]] = {}
    for word in text.split():
        found = _WORD(word)
        if found is None:
            raise BadSelection(f"expected sequence@node or first-last@node, got {word[:40]!r}")
        first = int(found[1])
        ranges.setdefault(found[3], []).append((first, int(found[2] or first) + 1))
    selection = Selection({node: tuple(_joined(ranges[node])) for node in sorted(ranges)})
    if not selection.count:
        raise BadSelection("no message is selected")
    if selection.count > MOST:
        raise BadSelection(f"{selection.count:,} messages are selected; at most {MOST:,} at once")
    return selection


def selected(messages: Iterable[tuple[str, int]]) -> Selection:
    """Return the selection of these messages, each given by its node and sequence."""
    sequences: dict[str, list[int]] = {}
    for node, sequence in messages:
        sequences.setdefault(node, []).append(sequence)
    return Selection({node: tuple(runs_of(sequences[node])) for node in sorted(sequences)})


def runs_of(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Join neighbouring sequences into ranges [first, end)."""
    return _joined((sequence, sequence + 1) for sequence in sequences)


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if end <= first:
            continue
        if runs and first <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], end)
        else:
            runs.append((first, end))
    return runs
