"""The directory: which nsqd has which topic and channel, which ones are alive, and which ones a tombstone hides.

    Registry ──► Topic ──► Channel              by name; a topic or channel stays after its last producer has left
        ├──────► Peer ──► topics and channels   so removing a peer costs as much as it had, not as the directory has
        └──────► MissingNodes                   nodes that were registered and no longer are

The registry has no clock. `advance(now=...)` sets the time and expires what is due; everything else answers as of the
last `advance`. All peers share one inactivity timeout and all tombstones one lifetime, so a queue ordered by time is
enough for each.

Every topic has an *index*, which changes whenever the topic's producers in `/lookup` change; then `on_change` is called
with the topic's name. All topics take their indexes from one counter, so no index is used twice, not even if a topic is
deleted and created again. A missing topic has the index `no_index`. The counter starts at the clock, so indexes of two
runs differ too. `nodes_index` is the same for nodes: it changes when one comes, goes, falls silent, is heard from
again, or changes its state or reachability, and then `on_nodes_change` is called.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from nsqcommon.wire.names import is_ephemeral
from nsqlookupd.missing import Missing, MissingNodes, is_at

if TYPE_CHECKING:
    from nsqcommon.wire.lookup import NodeIdentity

_SORTED_AT_ONCE: Final = 2000  # names; sorting them takes less than a millisecond
_CLEARED_AT_ONCE: Final = 100  # registrations; clearing them takes a fraction of a millisecond
_MOST_TOPICS: Final = 2000  # of a missing node with more topics we don't remember their names
NEVER: Final = 0  # the `tombstoned_at` of a producer without a tombstone


class Registration(NamedTuple):
    """One row of the directory in the words of the log: `client`, `topic` or `channel`, then the names."""

    category: str
    key: str = ""
    subkey: str = ""


T = TypeVar("T")

CLIENT: Final = Registration("client")


class Peer:
    """One connection after IDENTIFY: an nsqd."""

    __slots__ = (
        "channels",
        "has_left",
        "id",
        "identity",
        "is_active",
        "is_leaving",
        "is_retired",
        "last_seen",
        "last_update",
        "lookup_entry",
        "node_entry",
        "state",
        "topics",
        "unreachable",
    )

    def __init__(self, id: str, identity: NodeIdentity, *, now: float, timestamp: int) -> None:
        self.id = id
        self.identity = identity
        self.last_seen = now
        self.last_update = timestamp
        self.is_active = True
        self.is_leaving = False  # it has announced that it is draining or has drained
        self.is_retired = False  # it has announced that it won't come back
        self.state = ""  # one of nsqcommon.wire.lookup.STATES; empty: it accepts messages
        self.unreachable = ""  # why its address can't be reached; empty: reachable or unknown
        self.has_left = False  # disconnected; topics and channels may still have it until `clear_some` gets to them
        self.topics: set[Topic] = set()
        self.channels: set[Channel] = set()
        # Rendered by `nsqlookupd.answers`: this peer's part of /lookup until its state changes, and of /nodes until its
        # state or topics change.
        self.lookup_entry = b""
        self.node_entry = b""

    @property
    def order(self) -> tuple[str, int, str]:
        """The sort key for peers in answers."""
        return self.identity.broadcast_address, self.identity.tcp_port, self.id

    def node(self) -> PeerEntry:
        """Return the peer's entry in `/nodes`."""
        topics = sorted(self.topics, key=_name)
        return PeerEntry(self, tuple(topic.name for topic in topics), tuple(topic.is_hidden(self) for topic in topics))

    def topics_in_order(self) -> Iterator[Topic | None]:
        """Yield the peer's topics, sorted by name. See `in_order` for the Nones."""
        return in_order(list(self.topics), key=_name)

    def as_missing(self) -> Missing:
        """Return the directory's memory of the peer after it has left.

        Topics where a tombstone hides the peer are left out, because an operator expects it not to come back there.
        """
        names: tuple[str, ...] | None = None
        if len(self.topics) <= _MOST_TOPICS:
            names = tuple(sorted(topic.name for topic in self.topics if not topic.is_hidden(self)))
        return Missing(self.identity, names, self.last_update, self.is_leaving, self.is_retired)


class Tombstone:
    """A mark that hides one producer of one topic from `/lookup`."""

    __slots__ = ("is_over", "since", "timestamp")

    def __init__(self, *, since: float, timestamp: int) -> None:
        self.since = since
        self.timestamp = timestamp
        self.is_over = False  # an expired tombstone is kept, because /debug shows it, as in NSQ


class Topic:
    __slots__ = ("answer", "channels", "index", "is_registered", "name", "producers", "tombstones")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_registered = False  # a channel may be registered although its topic is not
        self.index = 0
        self.producers: set[Peer] = set()
        self.channels: dict[str, Channel] = {}
        self.tombstones: dict[Peer, Tombstone] | None = None
        self.answer: LookupAnswer | None = None

    def is_hidden(self, peer: Peer) -> bool:
        """Return True if an unexpired tombstone hides this producer."""
        tombstone = self.tombstones.get(peer) if self.tombstones else None
        return tombstone is not None and not tombstone.is_over


class Channel:
    __slots__ = ("name", "peers", "topic")

    def __init__(self, name: str, topic: Topic) -> None:
        self.name = name
        self.topic = topic
        self.peers: set[Peer] = set()


class LookupAnswer:
    """The answer to `/lookup` for one topic, the same object until the answer changes. `channels` is unsorted."""

    __slots__ = ("channels", "index", "producers", "rendered")

    def __init__(self, *, channels: tuple[str, ...], producers: tuple[Peer, ...], index: int) -> None:
        self.channels = channels
        self.producers = producers
        self.index = index
        self.rendered: bytes | None = None  # the JSON, once `nsqlookupd.answers` has rendered it


class PeerEntry(NamedTuple):
    """A peer's entry in `/nodes`: its topics, and for each whether a tombstone hides the peer there."""

    peer: Peer
    topics: tuple[str, ...]
    tombstones: tuple[bool, ...]


class RegistryFigures(NamedTuple):
    """The figures for /metrics."""

    peers: int
    active_peers: int
    topics: int
    channels: int
    producers: int  # summed over all topics
    tombstones: int  # unexpired ones
    changes: int  # of the producers of any topic, since the start
    unreachable_peers: int


class Registry:
    def __init__(
        self,
        *,
        inactive_timeout: float,
        tombstone_lifetime: float,
        missing_lifetime: float = 0,
        first_index: int = 0,
        on_change: Callable[[str], None] = lambda topic: None,
        on_nodes_change: Callable[[], None] = lambda: None,
        on_come: Callable[[Peer], None] = lambda peer: None,
    ) -> None:
        self.now = 0.0
        self.timestamp = 0
        self.no_index: Final = first_index
        self.index = first_index
        self.nodes_index = first_index
        self.on_change = on_change
        self.on_nodes_change = on_nodes_change
        self.on_come = on_come
        self._inactive_timeout = inactive_timeout
        self._tombstone_lifetime = tombstone_lifetime
        self._topics: dict[str, Topic] = {}
        self._peers: set[Peer] = set()
        # Each of these queues has its oldest entry first.
        self._active: OrderedDict[Peer, None] = OrderedDict()
        self._tombstones: OrderedDict[tuple[Topic, Peer], Tombstone] = OrderedDict()
        self._missing = MissingNodes(missing_lifetime)
        self._names: tuple[str, ...] | None = None
        self._departed: OrderedDict[Peer, None] = OrderedDict()  # have left, but topics or channels still have them
        # Counts for `snapshot`.
        self._registered = 0  # topics
        self._channels = 0
        self._producers = 0  # summed over all topics, without departed peers

    # Time

    def advance(self, *, now: float, timestamp: int) -> None:
        """Set the time and expire entries. `now` is monotonic, in seconds; `timestamp` is Unix time in ns."""
        self.now = now
        self.timestamp = timestamp
        if now >= self.next_deadline:
            self._expire()

    @property
    def next_deadline(self) -> float:
        """When the next entry expires, if nothing else happens before."""
        deadline = inf
        if self._active:
            deadline = next(iter(self._active)).last_seen + self._inactive_timeout
        if self._tombstones:
            deadline = min(deadline, next(iter(self._tombstones.values())).since + self._tombstone_lifetime)
        return min(deadline, self._missing.next_deadline)

    def _expire(self) -> None:
        while self._active and self.now >= (peer := next(iter(self._active))).last_seen + self._inactive_timeout:
            del self._active[peer]
            self._set_active(peer, is_active=False)
        self._missing.expire(self.now)
        while self._tombstones:
            (topic, peer), tombstone = next(iter(self._tombstones.items()))
            if self.now < tombstone.since + self._tombstone_lifetime:
                return
            tombstone.is_over = True
            del self._tombstones[topic, peer]
            peer.node_entry = b""
            self._changed(topic)

    # Peers

    def connect(self, id: str, identity: NodeIdentity) -> Peer:
        """Add a peer. A missing node that has come back, perhaps at another address, is no longer missing."""
        peer = Peer(id, identity, now=self.now, timestamp=self.timestamp)
        self._peers.add(peer)
        self._active[peer] = None
        self._missing.come(identity)
        self._nodes_changed()
        self.on_come(peer)
        return peer

    def ping(self, peer: Peer) -> float:
        """Record that the peer is alive. Return how many seconds it had been silent."""
        silence = self.now - peer.last_seen
        peer.last_seen = self.now
        peer.last_update = self.timestamp
        self._active[peer] = None
        self._active.move_to_end(peer)
        if not peer.is_active:
            self._set_active(peer, is_active=True)
        return silence

    def disconnect(self, peer: Peer) -> int:
        """Remove the peer from every answer at once. Return how many registrations it had.

        A peer may be in very many topics and channels, so clearing these is spread over several turns: a few are
        cleared here, the others by `clear_some`. A topic that is read or changed in between is cleared first (`_find`),
        so callers can't tell the difference.
        """
        if self._missing.leave(peer.identity):
            self._missing.add(peer.as_missing(), self.now)
        peer.has_left = True
        self._producers -= len(peer.topics)
        self._peers.discard(peer)
        self._active.pop(peer, None)
        self._departed[peer] = None
        self._nodes_changed()
        count = 1 + len(peer.topics) + len(peer.channels)
        self._clear(peer)
        return count

    @property
    def has_departed(self) -> bool:
        """True if `clear_some` has something left to clear."""
        return bool(self._departed)

    def clear_some(self) -> None:
        """Clear some of the registrations of departed peers."""
        if self._departed:
            self._clear(next(iter(self._departed)))

    def _clear(self, peer: Peer) -> None:
        for _ in range(_CLEARED_AT_ONCE):
            if peer.channels:
                self._leave_channel(peer, peer.channels.pop())
            elif peer.topics:
                self._leave_topic(peer, peer.topics.pop())
            else:
                del self._departed[peer]
                return

    def _find(self, name: str) -> Topic | None:
        """Clear departed peers from the topic of this name, and return it."""
        topic = self._topics.get(name)
        # Looking at the topic's producers is enough: every peer of a channel is a producer of its topic.
        if topic is None or topic.producers.isdisjoint(self._departed):
            return topic
        for channel in tuple(topic.channels.values()):
            for peer in [it for it in channel.peers if it.has_left]:
                self._leave_channel(peer, channel)
        for peer in [it for it in topic.producers if it.has_left]:
            self._leave_topic(peer, topic)
        return self._topics.get(name)

    def _set_active(self, peer: Peer, *, is_active: bool) -> None:
        peer.is_active = is_active
        self._peer_changed(peer)

    def set_state(self, peer: Peer, state: str) -> bool:
        """Record the peer's reported state. Return True if it has changed."""
        if state == peer.state:
            return False
        peer.state = state
        self._peer_changed(peer)
        return True

    def set_reachable(self, peer: Peer, problem: str) -> bool:
        """Record why the peer can't be reached; empty if it can. Return True if its reachability has changed."""
        has_changed = bool(problem) != bool(peer.unreachable)
        if problem != peer.unreachable:
            peer.unreachable = problem
            peer.node_entry = b""
        if has_changed:
            self._nodes_changed()
        return has_changed

    def _peer_changed(self, peer: Peer) -> None:
        """Drop the cached answers about the peer, and wake long polls for its topics and for the nodes."""
        peer.lookup_entry = peer.node_entry = b""
        for topic in peer.topics:
            self._changed(topic)
        self._nodes_changed()

    # Registrations by peers

    def register(self, peer: Peer, topic_name: str, channel_name: str = "") -> list[Registration]:
        """Register, and return the added rows. A producer that is already registered keeps its tombstone."""
        added: list[Registration] = []
        topic = self._find(topic_name) or self._new_topic(topic_name)
        if channel_name:
            channel = topic.channels.get(channel_name) or self._new_channel(topic, channel_name)
            if peer not in channel.peers:
                channel.peers.add(peer)
                peer.channels.add(channel)
                added.append(Registration("channel", topic_name, channel_name))
        if peer not in topic.producers:
            topic.producers.add(peer)
            self._producers += 1
            peer.topics.add(topic)
            peer.node_entry = b""
            self._set_registered(topic)
            self._changed(topic)
            added.append(Registration("topic", topic_name))
        return added

    def unregister_channel(self, peer: Peer, topic_name: str, name: str) -> list[Registration]:
        """Unregister, and return the removed rows: the channel's, or none."""
        topic = self._find(topic_name)
        channel = topic.channels.get(name) if topic is not None else None
        if channel is None or peer not in channel.peers:
            return []
        self._leave_channel(peer, channel)
        return [Registration("channel", topic_name, name)]

    def unregister_topic(self, peer: Peer, topic_name: str) -> Iterator[Registration | None]:
        """Remove the peer from the topic's channels, which may be very many, and then from the topic, one per step.

        Yield the removed row of each step, or None. The topic may change between two steps.
        """
        topic = self._find(topic_name)
        if topic is None:
            return
        for channel in in_order(list(topic.channels.values()), key=_name):
            if channel is None or peer not in channel.peers:
                yield None
            else:
                self._leave_channel(peer, channel)
                yield Registration("channel", topic_name, channel.name)
        if peer in topic.producers:
            self._leave_topic(peer, topic)
            yield Registration("topic", topic_name)

    def _leave_channel(self, peer: Peer, channel: Channel) -> None:
        channel.peers.discard(peer)
        peer.channels.discard(channel)
        # NSQ keeps ephemeral names forever if a connection just ends (nsqio/nsq #1101).
        if not channel.peers and is_ephemeral(channel.name):
            self._remove_channel(channel)
            self._forget_if_empty(channel.topic)

    def _leave_topic(self, peer: Peer, topic: Topic) -> None:
        topic.producers.discard(peer)
        self._producers -= not peer.has_left
        peer.topics.discard(topic)
        peer.node_entry = b""
        self._lift_tombstone(topic, peer)
        if not topic.producers and is_ephemeral(topic.name):
            self._set_unregistered(topic)
        self._changed(topic)
        self._forget_if_empty(topic)

    # Actions of operators

    def create_topic(self, name: str) -> None:
        topic = self._find(name) or self._new_topic(name)
        if self._set_registered(topic):
            self._changed(topic)

    def delete_topic(self, name: str) -> None:
        """Delete the topic with its channels and registrations. nsqd isn't informed. An unknown topic is no error."""
        topic = self._find(name)
        if topic is None:
            return
        for channel in tuple(topic.channels.values()):
            self._remove_channel(channel)
        self._set_unregistered(topic)
        self._changed(topic)
        self._forget_if_empty(topic)

    def create_channel(self, topic_name: str, name: str) -> None:
        self.create_topic(topic_name)
        topic = self._topics[topic_name]
        if name not in topic.channels:
            self._new_channel(topic, name)

    def delete_channel(self, topic_name: str, name: str) -> bool:
        """Delete the channel. Return True if it existed."""
        topic = self._find(topic_name)
        channel = topic.channels.get(name) if topic is not None else None
        if topic is None or channel is None:
            return False
        self._remove_channel(channel)
        self._forget_if_empty(topic)
        return True

    def tombstone(self, topic_name: str, node: str) -> None:
        """Hide the producers at `node` from `/lookup` of this topic for the lifetime of a tombstone.

        `node` is `host:port` of their HTTP listener. A missing node at that address loses this topic, so that clients
        don't expect it to come back with the topic.
        """
        self._missing.forget(topic_name, node)
        topic = self._find(topic_name)
        if topic is None:
            return
        hidden = [peer for peer in topic.producers if is_at(peer.identity, node)]
        for peer in hidden:
            self._lift_tombstone(topic, peer)  # remove an earlier one, so that the new one is last in the queue
            tombstone = Tombstone(since=self.now, timestamp=self.timestamp)
            if topic.tombstones is None:
                topic.tombstones = {}
            topic.tombstones[peer] = tombstone
            self._tombstones[topic, peer] = tombstone
            peer.node_entry = b""
        if hidden:
            self._changed(topic)
            if self._tombstone_lifetime <= 0:
                self._expire()

    def _lift_tombstone(self, topic: Topic, peer: Peer) -> None:
        """Remove the tombstone of this producer, if it has one."""
        if topic.tombstones and topic.tombstones.pop(peer, None) is not None:
            self._tombstones.pop((topic, peer), None)

    # Queries

    def lookup(self, name: str) -> LookupAnswer | None:
        """Return the answer to `/lookup`, or None if the topic isn't registered."""
        topic = self._find(name)
        if topic is None or not topic.is_registered:
            return None
        if topic.answer is None:
            alive = (peer for peer in topic.producers if peer.is_active and not topic.is_hidden(peer))
            topic.answer = LookupAnswer(
                channels=tuple(topic.channels),
                producers=tuple(sorted(alive, key=_order)),
                index=topic.index,
            )
        return topic.answer

    def index_of(self, name: str) -> int:
        """Return the current index of the topic's producers; `no_index` if the topic isn't registered."""
        topic = self._find(name)
        return topic.index if topic is not None and topic.is_registered else self.no_index

    def topics(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(sorted(topic.name for topic in self._topics.values() if topic.is_registered))
        return self._names

    def names_in_order(self) -> Iterator[str | None]:
        """Yield the names of `topics`, sorting in steps when there are very many. See `in_order` for the Nones."""
        if self._names is None and self._registered > _SORTED_AT_ONCE:
            return in_order([topic.name for topic in self._topics.values() if topic.is_registered], key=str)
        return iter(self.topics())

    def channels(self, name: str) -> list[str]:
        """Return the names of the topic's channels, unsorted; an unknown topic has none."""
        topic = self._find(name)
        return list(topic.channels) if topic is not None else []

    def active_peers(self) -> list[Peer]:
        return sorted(self._active, key=_order)

    def missing(self) -> list[Missing]:
        """Return the missing nodes: first the disconnected ones, then the connected but inactive ones."""
        if not self._missing.remembers:
            return []
        silent = [peer.as_missing() for peer in sorted(self._peers - self._active.keys(), key=_order)]
        return self._missing.nodes() + silent

    def registrations(self) -> Iterator[tuple[Registration, list[tuple[Peer, Tombstone | None]]] | None]:
        """Yield every row that has producers, sorted, with each producer's tombstone, expired or not.

        Yield None in between, so that the caller can serve others. A row is current when it is yielded.
        """
        topics: list[Topic] = []
        for topic in in_order(list(self._topics.values()), key=_place_in_debug):
            if topic is None:
                yield None
                continue
            topics.append(topic)
            yield None  # most topics have no channel rows
            for channel in in_order(list(topic.channels.values()), key=_name):
                if channel is None:
                    yield None
                elif peers := _in_place(channel.peers):
                    yield Registration("channel", topic.name, channel.name), [(peer, None) for peer in peers]
        if self._peers:
            yield CLIENT, [(peer, None) for peer in sorted(self._peers, key=_order)]
        for topic in topics:
            if peers := _in_place(topic.producers):
                tombstones = topic.tombstones or {}
                yield Registration("topic", topic.name), [(peer, tombstones.get(peer)) for peer in peers]
            else:
                yield None

    def snapshot(self) -> RegistryFigures:
        return RegistryFigures(
            peers=len(self._peers),
            active_peers=len(self._active),
            topics=self._registered,
            channels=self._channels,
            producers=self._producers,
            tombstones=len(self._tombstones),
            changes=self.index - self.no_index,
            unreachable_peers=sum(bool(peer.unreachable) for peer in self._peers),
        )

    # Topics and channels

    def _new_topic(self, name: str) -> Topic:
        topic = self._topics[name] = Topic(name)
        return topic

    def _set_registered(self, topic: Topic) -> bool:
        """Register the topic. Return True if it wasn't registered before."""
        if topic.is_registered:
            return False
        topic.is_registered = True
        self._registered += 1
        self._names = None
        return True

    def _set_unregistered(self, topic: Topic) -> None:
        """Remove the topic's registration and with it its producers. Its channels stay."""
        for peer in tuple(topic.producers):
            self._producers -= not peer.has_left
            peer.topics.discard(topic)
            peer.node_entry = b""
            self._lift_tombstone(topic, peer)
        topic.producers.clear()
        self._registered -= topic.is_registered
        topic.is_registered = False
        self._names = None

    def _new_channel(self, topic: Topic, name: str) -> Channel:
        channel = topic.channels[name] = Channel(name, topic)
        self._channels += 1
        topic.answer = None
        return channel

    def _remove_channel(self, channel: Channel) -> None:
        for peer in channel.peers:
            peer.channels.discard(channel)
        channel.peers.clear()
        del channel.topic.channels[channel.name]
        self._channels -= 1
        channel.topic.answer = None

    def _forget_if_empty(self, topic: Topic) -> None:
        if not topic.is_registered and not topic.channels:
            self._topics.pop(topic.name, None)

    def _changed(self, topic: Topic) -> None:
        self.index += 1
        topic.index = self.index
        topic.answer = None
        self.on_change(topic.name)

    def _nodes_changed(self) -> None:
        self.nodes_index += 1
        self.on_nodes_change()


def in_order(items: Sequence[T], *, key: Callable[[T], Any]) -> Iterator[T | None]:
    """Yield the items, sorted by `key`.

    Sorting very many takes long, so it is done in steps: it yields a None after each, so that the caller can serve
    others. The items follow after the last step.
    """
    runs: list[list[T]] = []
    for start in range(0, len(items), _SORTED_AT_ONCE):
        if runs:
            yield None
        runs.append(sorted(items[start : start + _SORTED_AT_ONCE], key=key))
    yield from merge(*runs, key=key)


def _in_place(peers: Iterable[Peer]) -> list[Peer]:
    """Return the peers that haven't left, in the order of answers."""
    return sorted((peer for peer in peers if not peer.has_left), key=_order)


def _order(peer: Peer) -> tuple[str, int, str]:
    return peer.order


def _name(it: Topic | Channel) -> str:
    return it.name


def _place_in_debug(topic: Topic) -> str:
    # /debug sorts whole rows, where a colon follows the name, and some characters of names sort before a colon.
    return f"{topic.name}:"
