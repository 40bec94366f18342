"""The readers of a topic's logs, as the topic's page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.cluster.readers import Outlook, ReaderDanger, is_silent, outlook, worst
from nsqadmin.parts.status import State

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Reader, ReaderNode, Topic, Untold


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """A reader on one node."""

    row: ReaderNode
    state: State
    is_silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLine:
    """A reader on all nodes."""

    reader: Reader
    state: State
    is_silent: bool  # no node has heard from it for a long time
    lines: tuple[NodeLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    lines: tuple[ReaderLine, ...] | None  # None: the nodes haven't answered yet
    untold: tuple[Untold, ...]  # nodes that don't report their readers


def landing(topic: Topic) -> Landing:
    has_channels = bool(topic.channels)
    lines = None if topic.readers is None else tuple(_line(reader, has_channels) for reader in topic.readers)
    return Landing(lines=lines, untold=topic.readers_untold)


def _line(reader: Reader, has_channels: bool) -> ReaderLine:
    outlooks = [outlook(row, has_channels=has_channels) for row in reader.nodes]
    lines = tuple(
        NodeLine(row=row, state=_state(on_node, [row]), is_silent=is_silent(row))
        for row, on_node in zip(reader.nodes, outlooks, strict=True)
    )
    return ReaderLine(
        reader=reader,
        state=_state(worst(outlooks), reader.nodes),
        is_silent=all(line.is_silent for line in lines),
        lines=lines,
    )


def _state(found: Outlook, rows: Sequence[ReaderNode]) -> State:
    match found.danger:
        case ReaderDanger.LOST:
            missed = numbers.several(sum(row.missed for row in rows), "message")
            return State(f"{missed} lost", "problem")
        case ReaderDanger.NEAR | ReaderDanger.AHEAD:
            when = f"in {numbers.duration(found.seconds)}" if found.seconds else "at any moment"
            return State(f"Overtakes it {when}", "warning" if found.danger is ReaderDanger.NEAR else "info")
        case ReaderDanger.UNKEPT:
            return State("Off: nothing is kept for it", "warning")
        case ReaderDanger.UNKNOWN:
            return State("Not known", "muted")
        case ReaderDanger.NONE:
            if any(row.reason for row in rows):
                return State("Not known now", "muted")
            return State("Keeps up" if any(row.behind for row in rows) else "Up to date", "ok")
