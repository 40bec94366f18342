"""The turn that topics and channels work in: its time, the journal, and the lists of what is to be done when it ends.

Topics and channels do not know the broker. They all hold its one `TurnContext` and add themselves to the lists there,
and the broker goes through the lists when the turn ends (`turn.py` has the order):

    a channel     to_deliver, overflowing, alarms; its ledger is on `journal.unsaved`
    a topic       unsealed, deferring, postponed, dropping, to_release, reshaped

For example, a FIN puts its channel on `to_deliver`, because the consumer has room now, and its ledger on
`journal.unsaved`, because the journal has to hear of it within 100 ms. A dictionary without values is a list that has each entry once.

The types of the listed objects are parameters, because their modules import this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from nsqd.broker.journal import Journal
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
    """A heap of times and of the channels whose `expire` is to be called then.

    A channel whose alarm has moved is in the heap several times, but once for each time: beside traffic, a slow job asks
    for its next step's time again and again.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, C]] = []
        self._known: set[tuple[float, C]] = set()
        self._serial = 0
        self.next = inf  # the first of these times

    def add(self, when: float, channel: C) -> None:
        if (when, channel) in self._known:
            return
        self._known.add((when, channel))
        self._serial += 1
        heappush(self._heap, (when, self._serial, channel))
        self.next = self._heap[0][0]

    def pop_due(self, now: float) -> Iterator[tuple[float, C]]:
        """Yield each time that has come, and the channel that wanted to be called then."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            when, _, channel = heappop(heap)
            self._known.discard((when, channel))
            self.next = heap[0][0] if heap else inf
            yield when, channel


class TurnContext(Generic[C, T]):
    """What topics and channels see of the broker."""

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
        self.now = now  # monotonic seconds, as of this turn
        self.timestamp = timestamp  # wall clock nanoseconds, as of this turn
        self.random_percent = random_percent  # 0..99
        self.rules = rules
        self.note = note  # takes a line for the log, which only a shell can write
        self.delete_topic = delete_topic  # an ephemeral topic asks for it when its last channel goes
        self.ids = ids
        self.reclaimer = Reclaimer()
        self.keys = KeyMemory(settings.idempotence_window, settings.idempotence_keys, self.reclaimer)
        self.journal: Journal[Ledger] = Journal(store)
        # Copied, because deliveries and TOUCH read them: a hop through the settings would cost each of them a load.
        self.mem_queue_size = settings.mem_queue_size
        self.mem_queue_bytes = settings.mem_queue_bytes
        self.max_msg_timeout = settings.max_msg_timeout
        self.latency = settings.latency
        self.prefers_near_consumers = settings.prefers_near_consumers
        # Channels
        self.to_deliver: dict[C, None] = {}  # that may have something to deliver
        self.overflowing: dict[C, int] = {}  # ephemeral ones that got messages in this turn, from this sequence on
        self.alarms: Alarms[C] = Alarms()
        self.ranges_dropped = 0  # by bounds, in this turn
        self.unpacked = 0  # messages deferred together that got their entries since `expire` was last asked
        # Topics
        self.unsealed: dict[T, None] = {}  # with something published in this turn
        self.deferring: dict[T, None] = {}  # with deferred publishes that the journal has not been told
        self.postponed: dict[T, None] = {}  # whose publishes wait until files of the log are removed
        self.dropping: dict[T, None] = {}  # on disk, with a bound that drops the oldest messages
        self.to_release: dict[T, None] = {}  # that need less of their log, once the journal has written why
        self.shape_unsaved = False  # topics, channels or pauses have changed
        self.reshaped: dict[str, None] = {}  # topics that came, went or have other channels since the last announcement
        self.lost: dict[str, int] = {}  # by topic: waiting messages that the start found nowhere

    def forget(self, channel: C) -> None:
        """Remove a deleted channel from all lists of work."""
        self.to_deliver.pop(channel, None)
        self.overflowing.pop(channel, None)

    def shape_changed(self, topic_name: str) -> None:
        """Note that this topic, one of its channels or a pause came or went."""
        self.shape_unsaved = True
        self.reshaped[topic_name] = None

    # Two clocks

    def wall_milliseconds(self, due: int) -> int:
        """Return the wall time of a due time in monotonic microseconds."""
        return (self.timestamp // 1000 + due - int(self.now * 1_000_000)) // 1000 + 1

    def due_ms(self, batch: Batch) -> int | None:
        """Return the wall time of a deferred batch, counted from its publication; None: it is due already."""
        due_ms = batch.timestamp // 1_000_000 + batch.delay_ms + 1
        return due_ms if due_ms * 1_000_000 > self.timestamp else None

    def due_from_wall(self, wall_ms: int) -> int:
        """Return the due time in monotonic microseconds for one in wall-clock milliseconds.

        The two clocks are read one after the other, so a millisecond is added: nothing is ever early.
        """
        return int(self.now * 1_000_000) + max(0, wall_ms * 1000 - self.timestamp // 1000 + _BETWEEN_CLOCKS)
