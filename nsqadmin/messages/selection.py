"""A user's selection of messages, as a text for forms and requests: `12@n1:4151 30-40@n1:4151`.

A sequence only identifies a message together with its log: if you delete a topic and create it again, it starts at 0
again. So our pages add the log's id, `12@n1:4151@1f0c2d`, and a node refuses a selection of a log that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST: Final = 10_000  # messages
_IN_ONE_REQUEST: Final = 200  # single messages, so that the URL stays below 8 kB
_LONG: Final = 20  # messages; a longer range is requested as a range
_WORD: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?@([^\s@]{1,300})(?:@([A-Za-z0-9_.-]{1,64}))?").fullmatch


class BadSelection(ValueError):
    """The text names no messages, or too many; the message says why."""


class Source(NamedTuple):
    """The scope of sequences: a topic's log on a node."""

    node: str
    log: str = ""  # its id; empty: the node's present log

    def __str__(self) -> str:
        return f"{self.node}@{self.log}" if self.log else self.node


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages by source, as ranges [first, end) of sequences."""

    runs: Mapping[Source, tuple[tuple[int, int], ...]]

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.node for source in self.runs))

    @property
    def count(self) -> int:
        return sum(end - first for runs in self.runs.values() for first, end in runs)

    def __str__(self) -> str:
        return " ".join(
            f"{first}@{source}" if end == first + 1 else f"{first}-{end - 1}@{source}"
            for source, runs in self.runs.items()
            for first, end in runs
        )


def parse_selection(text: str) -> Selection:
    """Parse a selection. Raise BadSelection."""
    ranges: dict[Source, list[tuple[int, int]]] = {}
    for word in text.split():
        found = _WORD(word)
        if found is None:
            raise BadSelection(f"expected sequence@node or first-last@node, and perhaps @log, got {word[:40]!r}")
        first = int(found[1])
        ranges.setdefault(Source(found[3], found[4] or ""), []).append((first, int(found[2] or first) + 1))
    selection = Selection({source: tuple(_joined(ranges[source])) for source in sorted(ranges)})
    if not selection.count:
        raise BadSelection("no message is selected")
    if selection.count > MOST:
        raise BadSelection(f"{selection.count:,} messages are selected; at most {MOST:,} at once")
    return selection


def selected(messages: Iterable[tuple[Source, int]]) -> Selection:
    """Return the selection of these messages, each given by its source and sequence."""
    sequences: dict[Source, list[int]] = {}
    for source, sequence in messages:
        sequences.setdefault(source, []).append(sequence)
    return Selection({source: tuple(runs_of(sequences[source])) for source in sorted(sequences)})


def arguments_of(runs: Sequence[tuple[int, int]]) -> Iterator[list[tuple[str, int]]]:
    """Yield the arguments of each request to a node for ranges of sequences: a long range, or many single messages."""
    single: list[tuple[str, int]] = []
    for first, end in runs:
        if end - first > _LONG:
            yield [("from", first), ("to", end)]
            continue
        single += [("sequence", sequence) for sequence in range(first, end)]
        if len(single) > _IN_ONE_REQUEST - _LONG:
            yield single
            single = []
    if single:
        yield single


def runs_of(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Join consecutive sequences into ranges [first, end)."""
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
