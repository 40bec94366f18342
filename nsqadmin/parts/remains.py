"""A node's remaining messages: which a drain would deliver, and which would stay behind. A core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from nsqcommon.wire.names import is_ephemeral

if TYPE_CHECKING:
    from nsqadmin.cluster.model import Node, Snapshot


class Fate(StrEnum):
    """What a drain does to the messages of one channel, the worst first."""

    LOST = "lost"  # only in memory, and no consumer gets them
    HANGS = "hangs"  # for consumers that finish nothing at present
    STAYS = "stays"  # on disk, as no consumer takes them
    DELIVERED = "delivered"
    DEFERRED = "deferred"  # all of them: they stay on disk as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """The messages of one channel on the node; without a channel, those waiting in the topic for its first one."""

    topic: str
    channel: str = ""
    waiting: int  # in the queue or in flight
    deferred: int = 0
    consumers: int = 0
    paused: bool = False
    is_idle: bool = False  # its consumers finish nothing at present

    @property
    def total(self) -> int:
        return self.waiting + self.deferred

    @property
    def is_lost(self) -> bool:
        """True if these messages are only in memory."""
        return is_ephemeral(self.topic) or is_ephemeral(self.channel)

    @property
    def why_it_stays(self) -> str:
        """Why no drain delivers the waiting messages; empty if one does."""
        if not self.channel:
            return "no channel"
        if not self.consumers:
            return "no consumer"
        return "paused" if self.paused else ""

    @property
    def hangs(self) -> bool:
        """True if messages wait for consumers that finish nothing at present, so a drain may never end."""
        return self.is_idle and bool(self.to_deliver)

    @property
    def fate(self) -> Fate:
        if self.is_lost and self.total > self.to_deliver:
            return Fate.LOST
        if self.why_it_stays and self.waiting:
            return Fate.STAYS
        if self.hangs:
            return Fate.HANGS
        return Fate.DELIVERED if self.waiting else Fate.DEFERRED

    @property
    def to_deliver(self) -> int:
        return 0 if self.why_it_stays else self.waiting


@dataclass(frozen=True, slots=True)
class FateGroup:
    """The channels whose messages have the same fate."""

    fate: Fate
    rows: tuple[Remainder, ...]

    @property
    def total(self) -> int:
        return sum(row.total for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    node: Node
    rows: tuple[Remainder, ...]  # those with messages whose topic the viewer may see, largest first
    to_deliver: int  # messages that connected consumers still get
    hanging: int  # the part of them whose consumers finish nothing at present
    staying: int  # messages on its disk that no consumer gets now: without a consumer, paused or deferred
    staying_in: int  # number of their channels and topics
    lost: int  # messages that no consumer gets now and that are only in memory
    consumers: int
    publishers: tuple[str, ...]

    @property
    def groups(self) -> tuple[FateGroup, ...]:
        """Return the rows by fate, the worst first."""
        every = (FateGroup(fate, tuple(row for row in self.rows if row.fate is fate)) for fate in Fate)
        return tuple(group for group in every if group.rows)

    @property
    def is_safe(self) -> bool:
        """True if you can stop the node: it accepts nothing, and its consumers have everything."""
        return self.node.is_reachable and self.node.draining and not self.to_deliver


def remains_on(snapshot: Snapshot, node: Node, sees: Callable[[str], bool]) -> Remains:
    """Return the node's remaining messages. Sums are for the whole node; topics hidden from the viewer aren't named."""
    every = [
        Remainder(topic=topic.name, waiting=row.depth)
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
    stays = [row for row in left if row.total - row.to_deliver and not row.is_lost]
    return Remains(
        node=node,
        rows=tuple(sorted((row for row in left if sees(row.topic)), key=lambda row: -row.total)),
        to_deliver=sum(row.to_deliver for row in left),
        hanging=sum(row.to_deliver for row in left if row.hangs),
        staying=sum(row.total - row.to_deliver for row in stays),
        staying_in=len(stays),
        lost=sum(row.total - row.to_deliver for row in left if row.is_lost),
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
