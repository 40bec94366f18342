"""What the broker asks of the disk, declared where it is used.

`nsqd.log` implements this on files, `tests/support` in memory. Nothing here waits: appending fills a
buffer, a read answers from memory or says "not now", and a shell moves bytes between buffers and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.change import Change

Entry = tuple[object, ...]  # of the journal, which keeps whatever it is told: a word, then its arguments
Names = Callable[[], Iterable[Mapping[str, object]]]  # of all topics and their channels, in parts


class NotSynced(Exception):
    """Something could not be made durable; the text is the operating system's."""


class BatchSource(Protocol):
    """What a channel reads its messages from: the topic's log, or what the channel has kept."""

    def batch_at(self, sequence: int) -> Batch | None:
        """The batch that holds this sequence, or None: not in memory now.

        After None the log fetches it, and whoever runs the store has the broker's `loaded` called. Only
        sequences in [first, tail) may be asked for.
        """

    def next_readable(self, sequence: int) -> int:
        """`sequence` itself, or where reading goes on when it lies in damage or before `first`."""

    def end_of_refused(self, sequence: int) -> int:
        """Return where reading can go on if the disk has refused for long to read this sequence, else the sequence itself.

        Ask this when `batch_at` has returned None. The messages before that place still exist: ask for them again later.
        """


class TopicLog(BatchSource, Protocol):
    """One topic's messages, addressed by sequence number."""

    @property
    def first(self) -> int:
        """The oldest sequence that can still be read."""

    @property
    def tail(self) -> int:
        """The sequence that the next message gets."""

    @property
    def cached_from(self) -> int:
        """Every sequence in [cached_from, tail) is in memory; what lies before is only on disk."""

    @property
    def keys(self) -> Iterable[tuple[bytes, int]]:
        """Keys of batches that lie in it, and when they were published; the oldest first. Asked for once, at the start."""

    def has_room(self, count: int, size: int) -> bool:
        """Whether so many messages of so many bytes should be appended. Only logs that live in memory ever say no."""

    def refusal(self) -> str | None:
        """The error with which `append` would settle a receipt now; None: it would take the batch."""

    def append(self, batch: Batch, receipt: Receipt) -> None:
        """Takes the batch into the buffer that the next write empties. Its base_sequence is the tail.

        The receipt is settled when the ack policy is met, or with an error. After a failed write the batch is gone and
        the tail is again what it was; after a failed sync it stays, because it may have been delivered already.
        """

    def release(self, sequence: int, passed: int | None = None) -> None:
        """No channel needs anything before `sequence`, and what retention does not want may go.

        `passed`, which is not before it, is where the last cursor stands: between the two only single messages are
        needed, that wait or are in flight. Both may be lower than last time: a channel has gone back. That is to be told
        at once.
        """

    def outdated(self) -> int:
        """Up to here a retention that was set for this very topic lets go also of what no channel ever got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSnapshot:
    """What the store tells about the disk and the clock, besides its health."""

    reads_refused: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)  # by topic: what the disk refuses to read
    clock_jump: float = 0.0  # seconds, as found at the start


class Store(Protocol):
    """All topic logs of a data path, and the journal of what changed in topics and channels."""

    @property
    def health(self) -> str:
        """Return OK, or what is wrong."""

    def disk(self) -> DiskSnapshot:
        """The figures of the disk."""

    def create_log(self, topic: str) -> TopicLog: ...

    def drop_log(self, topic: str) -> None: ...

    def record(self, change: Change, *, urgent: bool) -> None:
        """Adds a change to the journal. Urgent ones are written in this turn, before anything that
        results from them is sent; others within 100 ms."""

    def reserve_ids(self, until: int) -> None:
        """Makes durable that ids below `until` may have been given out."""
