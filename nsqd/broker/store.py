"""The storage interface of the broker, declared where it is used.

`nsqd.log` implements it with files, `tests/support` in memory. Nothing here waits: `append` fills a buffer, a read from
memory succeeds or returns None, and a task elsewhere moves bytes between buffers and files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from nsqcommon.prometheus import Histogram  # noqa: TC001  # mypyc looks up the types of fields

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch, Receipt
    from nsqd.broker.change import Change

Entry = tuple[object, ...]  # of the journal: any word with its arguments
KeyedPublish = tuple[bytes, int, int, int]  # key, first sequence and number of its messages, publish time
Names = Callable[[], Iterable[Mapping[str, object]]]  # returns all topics' and channels' names, in parts


class NotSynced(Exception):
    """A sync has failed. The text is the operating system's error."""


class BatchSource(Protocol):
    """Where a channel reads its messages: the topic's log, or an ephemeral channel's own batches."""

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch with this sequence, or None if it isn't in memory.

        After it has returned None, the log reads the batch from disk, and then `Broker.loaded` is called. The sequence
        must be in [first, tail).
        """

    def next_readable(self, sequence: int) -> int:
        """Return `sequence`, or the next readable one if it is damaged or before `first`."""

    def end_of_refused(self, sequence: int) -> int:
        """Return where to continue if reads of this sequence keep failing, otherwise the sequence itself.

        Call this after `batch_at` has returned None. The messages that you skip this way still exist, so retry them
        later.
        """


class TopicLog(BatchSource, Protocol):
    """One topic's messages, addressed by sequence number."""

    @property
    def first(self) -> int:
        """The oldest sequence that can still be read."""

    @property
    def tail(self) -> int:
        """The sequence of the next message to be published."""

    @property
    def cached_from(self) -> int:
        """All messages in [cached_from, tail) are in memory; earlier ones are only on disk."""

    def next_kept(self, sequence: int) -> int:
        """Return `sequence`, or the next one that still exists: also before `first`, in compacted files."""

    def take_keys(self) -> tuple[Iterable[tuple[bytes, int]], Iterable[KeyedPublish]]:
        """Return the log's keys with their publish times, oldest first, and the keys that were forgotten since.

        Only the first call returns any. The log doesn't keep these lists, because a million keys take 130 MB.
        """

    def deferred_keys(self, wanted: Sequence[int]) -> Iterable[KeyedPublish]:
        """Return the keys of the deferred publishes that contain any of these messages, given in ascending order.

        Use this only at startup, because it blocks on the disk.
        """

    @property
    def keys_from(self) -> int:
        """All remembered keys are at or after this sequence. Negative (~sequence) if there is no key yet."""

    def has_room(self, count: int, size: int) -> bool:
        """Return whether `count` messages with `size` bytes in total fit. Only a log in memory can run out of room."""

    def refusal(self) -> str | None:
        """Return the error with which `append` would fail now, or None if it would accept the batch.

        Call this only in a turn with publishes to the topic: an error holds until they are written.
        """

    def refusal_now(self) -> str | None:
        """Return the same, but without consequences for the rest of the turn."""

    def answer_repeat(self, earlier: Receipt) -> Receipt:
        """Return the receipt for a repeat of an earlier publish, whose own receipt is `earlier`.

        An OK for the repeat says as much as one for a new publish. For example, if the topic's --ack was `written` and is
        `remote` now, the repeat waits until the copy has the message.
        """

    def bytes_from(self, sequence: int) -> int:
        """Estimate the bytes from this message to the tail."""

    def file_of(self, sequence: int) -> int:
        """Return the first sequence of the file with this message."""

    def waits_for_removal(self, passed: int) -> bool:
        """Return whether publishes must wait for the removal of old files. If so, start the removal.

        They wait while there is more than one file's worth of unneeded bytes before `passed`, and some of that is about
        to be removed.
        """

    @property
    def synced(self) -> int:
        """All messages before this sequence are synced, so a power cut doesn't lose them."""

    @property
    def waits_for_copy(self) -> bool:
        """Whether publishers get their OK when the copy of --remote has the message."""

    def append(self, batch: Batch, receipt: Receipt) -> None:
        """Add the batch to the write buffer. Its base_sequence must be the tail.

        The receipt is settled as --ack demands, or with an error. A failed write removes the batch and moves the tail
        back. After a failed sync the batch stays, because it may have been delivered already.
        """

    def release(self, sequence: int, passed: int | None = None) -> None:
        """Allow the removal of messages before `sequence`, unless retention keeps them. No channel needs them.

        `passed` is the slowest channel's cursor; `sequence` <= `passed`. Between the two, only single messages are still
        needed, because they wait or are in flight. For example, if all cursors are at 900 and only message 17 is in
        flight, call this with 17 and 900. Both numbers may go down when a channel moves back; then call this
        immediately, before a segment is removed that is needed again.
        """

    def older_than(self, timestamp: int) -> int:
        """Return a sequence before which all messages were published before `timestamp` (nanoseconds).

        This is cheap but rough: the result may be much lower than the exact sequence.
        """

    def outdated(self) -> int:
        """Return the sequence before which the topic's own retention drops messages, even if no channel got them."""


class RemoteState(StrEnum):
    """What a node is to its copy in an object store."""

    OWNER = "owner"
    DOWN = "down"  # the store doesn't answer
    FENCED = "fenced"  # another process owns the name now
    STANDBY = "standby"  # another process owns the name, and this one waits until it is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSnapshot:
    """The report on the copy of the data path in an object store."""

    state: RemoteState
    store: str  # its URL
    name: str  # of this node in it
    owner: str  # this process, for people
    pid: int
    boot: str
    run: str
    refusal: str  # why publishes that wait for the store are refused, or ""
    fault: str  # why the last request got no answer, or ""
    recorded: int  # changes of files
    confirmed: int
    behind_seconds: float  # how old the oldest change is that isn't confirmed
    behind_bytes: int
    silent_seconds: float  # since the store's last answer, if it was asked to store something and hasn't answered
    waiting_publishes: int
    requests: Mapping[tuple[str, str], int]  # by verb and outcome
    create_seconds: Histogram
    confirm_seconds: Histogram
    slots: int
    slot_bytes: int
    roots: int
    files: int  # of the data path, as the store has them
    rate: int  # --remote-rate, in bytes per second
    is_strict: bool  # --remote-strict
    decision: str  # what became of the data path at the start: continue or adopt
    fetched: int  # files at the start
    aside: str  # the folder with files that went aside at the start, or ""
    asides: tuple[str, ...]  # such folders that are still in the data path, also those of earlier starts


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbySnapshot:
    """The report of a process that waits until the owner of a node's name is gone."""

    store: str  # its URL
    name: str  # of the node in it
    waiting_seconds: float
    waits_for: str  # for people
    owner: str  # for people; "" until the chain was read
    owner_address: str  # of its HTTP, or "" if it has not said that
    answer: str  # what the owner has said last, or ""
    well_seconds_ago: float | None  # when it owned the name and reached the store; None: never since this start
    run: str  # where the chain ends, as it was read last
    slot: int
    still_seconds: float  # since when the chain ends there, as far as this process has looked


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSnapshot:
    """The store's report on the disk and the clock, besides its health."""

    reads_refused: int = 0
    waiting: Iterable[tuple[str, int]] = ()  # (topic, number of its reads that keep failing)
    clock_jump: float = 0.0  # seconds, found at the start
    remote: RemoteSnapshot | None = None  # None: the data path has no copy
    ack_of: Callable[[str], str] | None = None  # returns a topic's --ack; None: the data path has no copy


class Store(Protocol):
    """The topics' logs in a data path, and the journal of changes in topics and channels."""

    @property
    def health(self) -> str:
        """The state of the store: OK, or the fault."""

    def disk(self) -> DiskSnapshot: ...

    def create_log(self, topic: str) -> TopicLog: ...

    def drop_log(self, topic: str) -> None: ...

    def record(self, change: Change, *, urgent: bool) -> None:
        """Add a change to the journal.

        An urgent change is written in this turn, before we send anything that depends on it; any other within 100 ms.
        """

    def reserve_ids(self, until: int) -> None:
        """Make sure that after a crash no id below `until` is used again."""
