"""Batches that were appended to a log and are not in its file yet: a list with rules of its own, which knows no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.record import encode, size_of

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt


class WriteBuffer:
    """Encoded batches that wait for the next write, and the receipts of the publishers that wait with them.

    May touch nothing but its own lists. When a batch is written or rolled back, the log itself updates its tail and its
    cache, and answers the publishers.

    With --ack=memory, a batch is acknowledged when it is appended and has no receipt here. A failing log stops doing
    so until everything in the buffer is written. So batches without a receipt always come first: of batches [a, b, c]
    and receipts [r], r is the receipt of c, and a and b have been acknowledged.
    """

    def __init__(self) -> None:
        self.buffers: list[bytes] = []  # two for each batch: its payload, and what stands before that
        self.size = 0  # bytes in `buffers`
        self.batches: list[Batch] = []
        self.receipts: list[Receipt] = []

    def add(self, batch: Batch) -> None:
        """Encode the batch and put it behind the others."""
        record = encode(batch)
        self.buffers += record
        self.size += len(record[0]) + len(record[1])
        self.batches.append(batch)

    def fitting(self, room: int, *, takes_any: bool) -> tuple[int, int]:
        """Return how many of the first batches fit into `room` bytes, and how many bytes they take.

        `takes_any`: the segment is empty, and takes at least one batch even if that exceeds the bound of a segment.
        """
        count = size = 0
        for batch in self.batches:
            record = size_of(batch)
            if size + record > room and (size or not takes_any):
                break
            size += record
            count += 1
        return count, size

    def take(self, count: int, size: int) -> tuple[list[Batch], list[Receipt]]:
        """Take out the first `count` batches, which are `size` bytes long, with the receipts of those that have one."""
        acknowledged = len(self.batches) - len(self.receipts)
        waiting = max(0, count - acknowledged)
        batches, self.batches = self.batches[:count], self.batches[count:]
        receipts, self.receipts = self.receipts[:waiting], self.receipts[waiting:]
        del self.buffers[: 2 * count]
        self.size -= size
        return batches, receipts

    def take_all(self) -> tuple[list[Batch], list[Receipt]]:
        batches, self.batches = self.batches, []
        receipts, self.receipts = self.receipts, []
        self.buffers = []
        self.size = 0
        return batches, receipts

    def roll_back(self) -> list[Receipt]:
        """Drop the batches that have not been acknowledged, and return their receipts."""
        receipts, self.receipts = self.receipts, []
        if receipts:
            kept = len(self.batches) - len(receipts)
            del self.batches[kept:]
            del self.buffers[2 * kept :]
            self.size = sum(map(len, self.buffers))
        return receipts
