"""Reading a backlog in blocks: how much at a time, and what is found again without reading."""

from __future__ import annotations

from collections.abc import Sequence

from nsqd.log.reading.cold import LARGE_READ_SIZE, READ_SIZE, ColdBlock, ColdBlocks, Start, read_block
from nsqd.log.record import encode
from tests.nsqd.log.batches import bodies_of, make_batch


class Backlog:
    """A segment of records with these bodies, each of which is one record, and how much of it was read each time."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        records = [b"".join(encode(make_batch(sequence, [body]))) for sequence, body in enumerate(bodies)]
        self._data = b"".join(records)
        self.blocks = ColdBlocks()
        self.asked: list[int] = []
        self._next = Start(0, 0)

    def read_on(self) -> ColdBlock:
        """Read the next block, as a reader does that goes on where the last one has ended."""
        sequence = self._next.sequence
        size = self.blocks.next_read_size(sequence)
        block = read_block(self._read, 0, self._next, len(self._data), sequence, size)
        self.blocks.add(block)
        self._next = Start(block.end, block.end_offset)
        return block

    def _read(self, offset: int, size: int) -> bytes:
        self.asked.append(size)
        return self._data[offset : offset + size]


def test_a_reader_of_large_records_reads_more_of_them_at_a_time() -> None:
    backlog = Backlog([bytes([number]) * 50_000 for number in range(14)])
    blocks = [backlog.read_on(), backlog.read_on()]
    assert backlog.asked == [READ_SIZE, LARGE_READ_SIZE]
    assert [(block.first, block.end) for block in blocks] == [(0, 2), (2, 12)]
    assert [bodies_of(blocks[1].batch_at(sequence)) for sequence in (2, 11)] == [[b"\2" * 50_000], [b"\x0b" * 50_000]]


def test_a_reader_of_small_records_does_not() -> None:
    """Decoding thousands of records at once would hold up everybody else."""
    backlog = Backlog([b"x" * 1000] * 300)
    backlog.read_on()
    backlog.read_on()
    assert backlog.asked == [READ_SIZE, READ_SIZE]


def test_a_reader_that_starts_elsewhere_does_not() -> None:
    backlog = Backlog([b"x" * 50_000] * 5)
    backlog.read_on()
    assert backlog.blocks.next_read_size(3) == READ_SIZE
    assert backlog.blocks.next_read_size(2) == LARGE_READ_SIZE


def test_what_was_read_is_found_again_and_nothing_else() -> None:
    backlog = Backlog([b"x" * 50_000] * 6)
    first = backlog.read_on()
    second = backlog.read_on()
    find = backlog.blocks.find
    assert [find(sequence) for sequence in (0, 1, 2, 5)] == [first, first, second, second]
    assert find(6) is None
    assert find(0) is first
