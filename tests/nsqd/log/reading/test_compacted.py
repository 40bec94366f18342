"""Which messages compacted files have."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

from nsqd.log.reading.compacted import Compacted, CompactedFile


def file_with(number: int, *records: tuple[int, int]) -> CompactedFile:
    """Return a compacted file with these records, each given as its first sequence and its number of messages."""
    file = CompactedFile(Path(), number)
    for place, (first, count) in enumerate(records):
        file.add(first, count, 100 * place, 100)
    return file


def test_the_next_message_that_is_here_may_be_in_any_file() -> None:
    compacted = Compacted("t", Mock(), [file_with(1, (2, 2), (20, 1)), file_with(2, (8, 3))])
    found = [compacted.next_held(sequence) for sequence in (0, 2, 3, 4, 10, 11, 20, 21)]
    assert found == [2, 2, 3, 8, 10, 20, 20, None]


def test_lost_messages_are_passed() -> None:
    compacted = Compacted("t", Mock(), [file_with(1, (2, 4), (8, 2), (12, 1))])
    compacted._lost = [(0, 4), (8, 10), (12, 13)]
    assert [compacted.next_held(sequence) for sequence in (0, 3, 4, 6, 9)] == [4, 4, 4, None, None]
