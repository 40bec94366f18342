"""The write buffer of a log: encoded batches that aren't in a file yet. It stands alone because it needs no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqd.log.record import encode, size_of

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt


class WriteBuffer:
    """The batches that wait for the next write, and the receipts of publishers that wait for them.

    The buffer changes only its own lists. When a batch is written or rolled back, the log itself updates its tail and
    its cache, and answers the publishers.

    With --ack=memory, a batch is acknowledged when it's appended, so it has no receipt here. But while the log is
    failing, new batches keep their receipts until the buffer is written. So batches without a receipt always come
    first. For example, with batches [a, b, c] and receipts [r], a and b are acknowledged and r is the receipt of c.
    """

    def __init__(self) -> None:
        self.buffers: list[bytes] = []  # two for each batch, as `encode` returns them
        self.size = 0  # bytes in `buffers`
        self.batches: list[Batch] = []
        self.receipts: list[Receipt] = []

    def add(self, batch: Batch) -> None:
        """Encode the batch and append it."""
        record = encode(batch)
        self.buffers += record
        self.size += len(record[0]) + len(record[1])
        self.batches.append(batch)

    def fitting(self, room: int, *, takes_any: bool) -> tuple[int, int]:
        """Return how many of the first batches fit into `room` bytes, and their size.

        `takes_any` is for an empty segment: at least one batch fits, even if it alone exceeds the limit of a segment.
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
        """Remove the first `count` batches, `size` bytes in all, and return them with their receipts."""
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
        """Drop the batches that aren't acknowledged yet, and return their receipts."""
        receipts, self.receipts = self.receipts, []
        if receipts:
            kept = len(self.batches) - len(receipts)
            del self.batches[kept:]
            del self.buffers[2 * kept :]
            self.size = sum(map(len, self.buffers))
        return receipts
