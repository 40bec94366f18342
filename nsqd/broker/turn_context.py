"""The context of a turn for topics and channels: its time, the journal, and lists of work for the end of the turn.

Topics and channels have no reference to the broker. They share its only `TurnContext` and add themselves to its lists,
and the broker goes through these at the end of the turn (turn.py has the order):

    a channel     to_deliver, overflowing, alarms; its ledger is on `journal.unsaved`
    a topic       unsealed, deferring, postponed, dropping, to_release, reshaped

For example, a FIN puts its channel on `to_deliver`, because the consumer has room now, and its ledger on
`journal.unsaved`, because it must be in the journal within 100 ms. The lists are dictionaries without values, so that
each entry is there only once.

The types of the listed objects are parameters, because their modules import this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nsqd.broker.journal import BrokerJournal
from nsqd.broker.keys import KeyMemory
from nsqd.broker.reclaimer import Reclaimer

if TYPE_CHECKING:
    from nsqd.broker.batch import Batch
    from nsqd.broker.ledger import Ledger
    from nsqd.broker.message_id import IdSource
    from nsqd.broker.rules import RuleSource
    from nsqd.broker.settings import BrokerSettings
    from nsqd.broker.store import Store

_BETWEEN_CLOCKS: Final = 1000  # microseconds

C = TypeVar("C")  # Channel
T = TypeVar("T")  # Topic


class Alarms(Generic[C]):
    """A heap of times, each with the channel whose `expire` should be called then.

    If a channel's alarm moves, its old entry stays. But a channel never has two entries for the same time, even
    if, for example, every `expire` during a slow job sets the alarm for the job's next step again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, C]] = []
        self._known: set[tuple[float, C]] = set()
        self._serial = 0
        self.next = inf  # the earliest time

    def add(self, when: float, channel: C) -> None:
        if (when, channel) in self._known:
            return
        self._known.add((when, channel))
        self._serial += 1
        heappush(self._heap, (when, self._serial, channel))
        self.next = self._heap[0][0]

    def pop_due(self, now: float) -> Iterator[tuple[float, C]]:
        """Remove and yield the entries that are due, as (time, channel)."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, channel = heappop(heap)
            self._known.discard((when, channel))
            self.next = heap[0][0] if heap else inf
            yield when, channel


class Spent:
    """What a turn has done that would take too long if each channel did as much as it could."""

    __slots__ = ("cold_reads", "ranges_dropped", "sorted")

    def __init__(self) -> None:
        self.ranges_dropped = 0  # by limits
        self.sorted = 0  # messages that went into the queues of their groups, or whose groups were learned
        self.cold_reads = 0  # batches that groups had to read from files


class TurnContext(Generic[C, T]):
    """The broker as topics and channels see it.

    It has at most 29 attributes: with more, CPython reads each of them more slowly, which costs 1 % of a FIN.
    """

    def __init__(
        self,
        store: Store,
        settings: BrokerSettings,
        *,
        ids: IdSource,
        now: float,
        timestamp: int,
        random_percent: Callable[[], int],
        rules: RuleSource,
        note: Callable[[str], None],
        delete_topic: Callable[[str], bool],
    ) -> None:
        self.now = now  # monotonic seconds, the same during the whole turn
        self.timestamp = timestamp  # wall clock, nanoseconds; also the same during the turn
        self.random_percent = random_percent  # 0..99
        self.rules = rules
        self.note = note  # takes a line for nsqd's log, because only a shell may write it
        self.delete_topic = delete_topic  # called by an ephemeral topic when its last channel is deleted
        self.ids = ids
        self.reclaimer = Reclaimer()
        self.keys = KeyMemory(settings.idempotence_window, settings.idempotence_keys, self.reclaimer)
        self.journal: BrokerJournal[Ledger] = BrokerJournal(store)
        # Copied, because each delivery and TOUCH reads some of them, and another attribute lookup costs time.
        self.mem_queue_size = settings.mem_queue_size
        self.mem_queue_bytes = settings.mem_queue_bytes
        self.max_msg_timeout = settings.max_msg_timeout
        self.latency = settings.latency
        self.prefers_near_consumers = settings.prefers_near_consumers
        # Channels
        self.to_deliver: dict[C, None] = {}  # channels that may have something to deliver
        self.offered: list[tuple[Ledger, Batch]] = []  # released in this turn, and not seen by deliveries yet
        self.overflowing: dict[C, int] = {}  # ephemeral channels, with the first sequence that they got in this turn
        self.alarms: Alarms[C] = Alarms()
        self.spent: Spent | None = None  # None: nothing yet in this turn; see `spending`
        self.unpacked = 0  # messages of deferred batches that got their entries since the last `Broker.expire`
        # Topics
        self.unsealed: dict[T, None] = {}  # topics with publishes in this turn
        self.deferring: dict[T, None] = {}  # topics with deferred publishes that aren't in the journal yet
        self.postponed: dict[T, None] = {}  # topics whose publishes wait for the removal of files, or for the copy
        self.dropping: dict[T, None] = {}  # topics on disk with a limit that drops the oldest messages
        self.to_release: dict[T, None] = {}  # topics that need less of their log; see `Broker.record_progress`
        self.shape_unsaved = False  # whether topology.json is outdated; see `shape_changed`
        self.reshaped: dict[str, None] = {}  # topics to announce to nsqlookupd; see `shape_changed`
        self.lost: dict[str, int] = {}  # by topic: waiting messages that were missing at the start of nsqd

    @property
    def spending(self) -> Spent:
        """How much of what a turn may do has been done in this turn, by all channels together."""
        if self.spent is None:
            self.spent = Spent()
        return self.spent

    def forget(self, channel: C) -> None:
        """Remove a deleted channel from the lists."""
        self.to_deliver.pop(channel, None)
        self.overflowing.pop(channel, None)

    def shape_changed(self, topic_name: str) -> None:
        """Note that a topic was created, deleted, paused or unpaused, or that it got or lost a channel."""
        self.shape_unsaved = True
        self.reshaped[topic_name] = None

    # Two clocks

    def wall_milliseconds(self, due: int) -> int:
        """Convert a due time from monotonic microseconds to wall-clock milliseconds."""
        return (self.timestamp // 1000 + due - int(self.now * 1_000_000)) // 1000 + 1

    def due_ms(self, batch: Batch) -> int | None:
        """Return when a deferred batch is due (wall clock, milliseconds), or None if it's due already."""
        due_ms = batch.timestamp // 1_000_000 + batch.delay_ms + 1
        return due_ms if due_ms * 1_000_000 > self.timestamp else None

    def due_from_wall(self, wall_ms: int) -> int:
        """Convert a due time from wall-clock milliseconds to monotonic microseconds.

        We read one clock after the other, so we add a millisecond, because no message may be early.
        """
        return int(self.now * 1_000_000) + max(0, wall_ms * 1000 - self.timestamp // 1000 + _BETWEEN_CLOCKS)
