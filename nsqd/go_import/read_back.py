"""Reads an import back from the logs and the journal. It stands alone because the check must not trust the writer.

So instead of log_writer.py, it uses the functions with which the broker will read these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsqd.broker.journal_replay import TopicState, replay
from nsqd.go_import.records import Digest
from nsqd.log.journal import format as journal_format
from nsqd.log.record import HEADER_SIZE, Header
from nsqd.log.segment import SegmentWalk, base_of_name, segment_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsqd.broker.store import Entry
    from nsqd.go_import.layout import LogLayout
    from nsqd.log.files import Files

_SIZE: Final = 4  # the length of the body, in front of it


class ImportMismatch(Exception):
    """The import differs from Go's files."""


def read_journal(files: Files, path: Path) -> dict[str, TopicState]:
    data = files.read(path)
    return replay(_changes_in(data))


def _changes_in(data: bytes) -> Iterator[Entry]:
    position = 0
    while position < len(data):
        frame = journal_format.decode(data, position)
        if frame is None:
            raise ImportMismatch(f"the journal is damaged at {position}")
        yield from frame.changes
        position = frame.end


def digests_of(
    files: Files, folder: Path, layout: LogLayout, state: TopicState
) -> Iterator[tuple[str | None, tuple[int, str]]]:
    """Yield (channel, (message count, hash)) for each channel's backlog, and last for the topic's own queue, as None.

    Raises ImportMismatch if a message is missing or damaged.
    """
    messages = _messages_in(files, folder)
    for channel in (*layout.topic.channels, None):
        start, end = layout.own if channel is None else layout.backlog(channel)
        attempts = _attempts_in(state, channel)
        digest = Digest()
        for sequence in range(start, end):
            header, body = next(messages, (None, b""))
            if header is None or header.base_sequence != sequence:
                raise ImportMismatch(f"message {sequence} is missing")
            digest.add(header.base_id, header.timestamp, attempts.get(sequence, (0, 0))[0], body)
        yield channel, digest.result()
    if next(messages, None) is not None:
        raise ImportMismatch(f"there are more than {layout.tail} messages")


def _attempts_in(state: TopicState, channel: str | None) -> Mapping[int, tuple[int, int]]:
    found = state.channels.get(channel) if channel is not None else None
    return found.waiting if found is not None else {}


def _messages_in(files: Files, folder: Path) -> Iterator[tuple[Header, bytes]]:
    for base in [base for name in files.names_in(folder) if (base := base_of_name(name)) is not None]:
        path = folder / segment_name(base)
        descriptor = files.open_to_read(path)
        try:
            size = files.size(descriptor)
            read = partial(_read, files, descriptor)
            walk = SegmentWalk(read, offset=0, sequence=base, end=size, verify=True)
            for block in walk.blocks():
                for position, header in block.headers:
                    start = position + HEADER_SIZE
                    yield header, block.data[start + header.key_length + _SIZE : start + header.payload_length]
        finally:
            files.close(descriptor)
        if walk.holes or walk.offset != size:
            raise ImportMismatch(f"{path} is damaged")


def _read(files: Files, descriptor: int, offset: int, size: int) -> bytes:
    return files.read_fully(descriptor, size, offset)
