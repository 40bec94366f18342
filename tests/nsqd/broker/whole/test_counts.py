"""Data that is kept for each count of messages is bounded: after weeks, every count has been seen."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from nsqcommon.wire.commands import MOST_FINISHES, CommandReader
from nsqcommon.wire.limits import SizeLimits
from nsqd.broker.batch import hex_ids

MOST_KEPT = 500_000  # bytes; one struct for each count would be 4 MB


def make_ids(count: int) -> None:
    ids = hex_ids(10**18, count)
    assert ids[-1] == b"%016x" % (10**18 + count - 1)
    assert len(ids) == count


def cut_finishes(count: int) -> None:
    reader = CommandReader(SizeLimits(max_message=1024, max_body=1024), lambda words: None)
    reader.receive(b"".join(b"FIN %016x\n" % number for number in range(count)))
    command = reader.next_command()
    assert command is not None
    assert reader.next_command() is None


@pytest.mark.parametrize("use", [make_ids, cut_finishes])
def test_every_count_of_messages_leaves_little(use: Callable[[int], None]) -> None:
    tracemalloc.start()
    try:
        use(1)
        before, _ = tracemalloc.get_traced_memory()
        for count in range(2, MOST_FINISHES + 1):
            use(count)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < MOST_KEPT
