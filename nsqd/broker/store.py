"""What the broker asks of the disk, declared where it is used.

`nsqd.log` implements this on files, and `tests/support` in memory. Nothing here waits: appending fills a buffer, a read
answers from memory or says "not now", and a shell moves bytes between buffers and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.change import Change

Entry = tuple[object, ...]  # of the journal, which keeps any word with its arguments
KeyedPublish = tuple[bytes, int, int, int]  # key, start and count of the messages, time of publication
Names = Callable[[], Iterable[Mapping[str, object]]]  # returns the names of all topics and channels, in parts


class NotSynced(Exception):
    """Something could not be made durable; the text is the operating system's."""


class BatchSource(Protocol):
    """Where a channel reads its messages: the topic's log, or the batches that the channel keeps itself."""

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch that holds this sequence; None: it is not in memory now.

        After None the log fetches the batch, and the store's owner then has the broker's `loaded` called. Only
        sequences in [first, tail) may be asked for.
        """

    def next_readable(self, sequence: int) -> int:
        """Return `sequence` itself, or where reading goes on if it is damaged or lies before `first`."""

    def end_of_refused(self, sequence: int) -> int:
        """Return where reading can go on if the disk has refused this sequence for long, else the sequence itself.

        Ask this when `batch_at` has returned None. The messages before that place still exist, so ask for them again
        later.
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

    def take_keys(self) -> tuple[Iterable[tuple[bytes, int]], Iterable[KeyedPublish]]:
        """Return the keys in the log with their times of publication, the oldest first, and the forgotten ones.

        The journal says which are forgotten. Only the first call returns any: the log keeps neither list, because a
        million keys take 130 MB.
        """

    def deferred_keys(self, wanted: Sequence[int]) -> Iterable[KeyedPublish]:
        """Return the keys of the publishes with a delay that have one of these messages, which ascend.

        Only a start asks for this, because it blocks on the disk.
        """

    @property
    def keys_from(self) -> int:
        """The sequence before which no remembered key lies; ~sequence: there was none up to it."""

    def has_room(self, count: int, size: int) -> bool:
        """Return whether `count` messages of `size` bytes have room. Only logs in memory ever return False."""

    def refusal(self) -> str | None:
        """Return the error with which `append` would settle a receipt now; None: it would take the batch."""

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes lie from this message to the tail."""

    def file_of(self, sequence: int) -> int:
        """Return the first sequence of the file that holds this one."""

    def waits_for_removal(self, passed: int) -> bool:
        """Return whether publishes have to wait until files are removed. If so, the removal is begun at once.

        They wait while the files have more than a whole file's worth of bytes before `passed`, where nobody needs them any
        more, and a part of that is about to be removed.
        """

    def append(self, batch: Batch, receipt: Receipt) -> None:
        """Put the batch into the buffer that the next write empties. Its base_sequence must be the tail.

        The receipt is settled when the ack policy is met, or with an error. After a failed write the batch is gone and
        the tail is again what it was. After a failed sync the batch stays, because it may have been delivered already.
        """

    def release(self, sequence: int, passed: int | None = None) -> None:
        """Note that no channel needs anything before `sequence`, so what retention does not want may be removed.

        The hindmost cursor stands at `passed`, which is never before `sequence`. Between the two, only single messages
        are needed: those that wait or are in flight. Say all cursors are at 900 and only 17 is still in flight: then
        this is called with 17 and 900. Both numbers may be lower than last time, because a channel has gone back; then
        this must be called at once, before a segment is removed that is needed again.
        """

    def older_than(self, timestamp: int) -> int:
        """Return a sequence before which everything was published earlier than this, in nanoseconds.

        It costs next to nothing, and may be much lower than it has to be.
        """

    def outdated(self) -> int:
        """Return the sequence before which a retention set for this very topic drops even what no channel ever got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSnapshot:
    """What the store reports about the disk and the clock, besides its health."""

    reads_refused: int = 0
    waiting: Iterable[tuple[str, int]] = ()  # topics, with the number of reads that the disk refuses
    clock_jump: float = 0.0  # seconds, as found at the start


class Store(Protocol):
    """All topic logs of a data path, and the journal of what changed in topics and channels."""

    @property
    def health(self) -> str:
        """OK, or what is wrong."""

    def disk(self) -> DiskSnapshot:
        """Return the figures of the disk."""

    def create_log(self, topic: str) -> TopicLog: ...

    def drop_log(self, topic: str) -> None: ...

    def record(self, change: Change, *, urgent: bool) -> None:
        """Add a change to the journal.

        Urgent changes are written in this turn, before anything that results from them is sent; others within 100 ms.
        """

    def reserve_ids(self, until: int) -> None:
        """Make it durable that ids below `until` may have been given out."""
