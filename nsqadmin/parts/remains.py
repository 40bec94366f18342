"""A node's remaining messages: which a drain would deliver, and which would stay behind. A core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node, Snapshot


class Fate(StrEnum):
    """What a drain does to messages, the worst first."""

    LOST = "lost"  # only in memory, and no consumer gets them
    HANGS = "hangs"  # for consumers that finish nothing at present
    STAYS = "stays"  # waiting, and on disk, as no consumer takes them
    DELIVERED = "delivered"
    DEFERRED = "deferred"  # on disk: only those that become due before the node stops are delivered
    BURIED = "buried"  # on disk


class Why(StrEnum):
    """Why messages stay on the node's disk."""

    PAUSED = "paused"
    NO_CONSUMER = "no consumer"
    NO_CHANNEL = "no channel"
    TOPIC_PAUSED = "topic paused"
    DEFERRED = "deferred"
    BURIED = "buried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The messages of one channel on the node; without a channel, those waiting in the topic for its first one."""

    topic: str
    channel: str = ""
    waiting: int  # in the queue or in flight
    deferred: int = 0
    buried: int = 0
    consumers: int = 0
    paused: bool = False
    is_idle: bool = False  # its consumers finish nothing at present

    @property
    def total(self) -> int:
        return self.waiting + self.deferred + self.buried

    @property
    def is_lost(self) -> bool:
        """True if these messages are only in memory."""
        return is_ephemeral(self.topic) or is_ephemeral(self.channel)

    @property
    def why_it_stays(self) -> Why | None:
        """Why no drain delivers the waiting messages; None if one does."""
        if not self.channel:
            return Why.TOPIC_PAUSED if self.paused else Why.NO_CHANNEL
        if not self.consumers:
            return Why.NO_CONSUMER
        return Why.PAUSED if self.paused else None

    @property
    def to_deliver(self) -> int:
        return 0 if self.why_it_stays else self.waiting

    @property
    def staying(self) -> Mapping[Why, int]:
        """Messages that no consumer gets now, by the reason. They are lost with the node if they are only in memory."""
        waiting = {self.why_it_stays: self.waiting} if self.why_it_stays else {}
        every = {**waiting, Why.DEFERRED: self.deferred, Why.BURIED: self.buried}
        return {why: count for why, count in every.items() if count}

    @property
    def fates(self) -> Mapping[Fate, int]:
        """Messages by what a drain does to them: one channel may have several kinds."""
        lost = sum(self.staying.values()) if self.is_lost else 0
        every = {
            Fate.LOST: lost,
            Fate.HANGS if self.is_idle else Fate.DELIVERED: self.to_deliver,
            Fate.STAYS: self.waiting - self.to_deliver if not lost else 0,
            Fate.DEFERRED: self.deferred if not lost else 0,
            Fate.BURIED: self.buried if not lost else 0,
        }
        return {fate: count for fate, count in every.items() if count}


@dataclass(frozen=True, slots=True)
class FateGroup:
    """Messages with the same fate, and their channels."""

    fate: Fate
    rows: tuple[Remainder, ...]  # those with most of these messages first

    @property
    def total(self) -> int:
        return sum(row.fates[self.fate] for row in self.rows)


@dataclass(frozen=True, slots=True)
class Staying:
    """Messages that stay on the node's disk for one reason."""

    why: Why
    messages: int
    places: int  # their channels, or topics for NO_CHANNEL and TOPIC_PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    node: Node
    rows: tuple[Remainder, ...]  # those with messages whose topic the viewer may see, largest first
    hidden: int  # messages of topics that the viewer may not see: the sums have them, the rows don't
    to_deliver: int  # messages that connected consumers still get
    hanging: int  # the part of them whose consumers finish nothing at present
    stays: tuple[Staying, ...]  # messages on its disk that no consumer gets now
    lost: int  # messages that no consumer gets now and that are only in memory
    consumers: int
    publishers: tuple[str, ...]

    @property
    def staying(self) -> int:
        return sum(it.messages for it in self.stays)

    @property
    def groups(self) -> tuple[FateGroup, ...]:
        """Return the messages by fate, the worst first. Their totals, and `hidden`, add up to the sums here."""
        groups = []
        for fate in Fate:
            rows = [row for row in self.rows if fate in row.fates]
            if rows:
                groups.append(FateGroup(fate, tuple(sorted(rows, key=lambda row: -row.fates[fate]))))
        return tuple(groups)

    @property
    def is_safe(self) -> bool:
        """True if you can stop the node: it accepts nothing, and its consumers have everything."""
        return self.node.is_reachable and self.node.draining and not self.to_deliver


def remains_on(snapshot: Snapshot, node: Node, sees: Callable[[str], bool]) -> Remains:
    """Return the node's remaining messages. Sums are for the whole node; topics hidden from the viewer aren't named."""
    every = [
        Remainder(topic=topic.name, waiting=row.depth, paused=row.paused)
        for topic in snapshot.topics
        for row in topic.nodes
        if row.node == node.address
    ]
    every += [
        Remainder(
            topic=topic.name,
            channel=channel.name,
            waiting=row.depth + row.in_flight_count,
            deferred=row.deferred_count,
            buried=row.buried_count,
            consumers=row.client_count,
            paused=row.paused,
            is_idle=channel.rates.finished == 0,
        )
        for topic in snapshot.topics
        for channel in topic.channels
        for row in channel.nodes
        if row.node == node.address
    ]
    left = [row for row in every if row.total]
    return Remains(
        node=node,
        rows=tuple(sorted((row for row in left if sees(row.topic)), key=lambda row: -row.total)),
        hidden=sum(row.total for row in left if not sees(row.topic)),
        to_deliver=sum(row.to_deliver for row in left),
        hanging=sum(row.fates.get(Fate.HANGS, 0) for row in left),
        stays=_stays([row for row in left if not row.is_lost]),
        lost=sum(row.fates.get(Fate.LOST, 0) for row in left),
        consumers=sum(row.consumers for row in every),
        publishers=tuple(
            sorted(
                {
                    it.hostname or it.remote_address
                    for it in snapshot.producers or ()
                    if it.node == node.address and any(sees(topic) for topic, _, _ in it.counts)
                }
            )
        ),
    )


def _stays(rows: Sequence[Remainder]) -> tuple[Staying, ...]:
    counts = {why: [row.staying[why] for row in rows if why in row.staying] for why in Why}
    return tuple(Staying(why, sum(found), len(found)) for why, found in counts.items() if found)
