"""What a data path says of buried messages, also while its nsqd runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nsqd.broker.buried import BuriedMessage
from nsqd.broker.journal_replay import replay
from nsqd.broker.store import Entry
from nsqd.log.files import Files
from nsqd.log.journal import format as journal_format
from nsqd.log.journal.own_changes import split_changes
from nsqd.log.journal.recovery import journal_numbers, journal_path


def buried_on_disk(data_path: Path, topic: str, channel: str = "c") -> list[BuriedMessage]:
    """Return what lies buried in the channel, in the order of the sequences."""
    state = replay(split_changes(_changes(data_path)).changes).get(topic)
    known = state.channels.get(channel) if state is not None else None
    return list(known.buried.from_place(0)) if known is not None else []


def _changes(data_path: Path) -> Iterator[Entry]:
    for number in journal_numbers(Files(), data_path):
        data, position = journal_path(data_path, number).read_bytes(), 0
        while (frame := journal_format.decode(data, position)) is not None:
            yield from frame.changes
            position = frame.end
