"""Finds events: the differences between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nsqadmin.cluster.model import TAIL_PREFIX, Activity, Channel, Node, Paused, Snapshot, Topic

PAUSED_ITSELF: Final = "paused_itself"


def events_between(before: Snapshot, now: Snapshot, *, restarted: frozenset[str] = frozenset()) -> list[Activity]:
    """Return the events between two snapshots, all with the later one's time; none before the first snapshot."""
    if not before.index:
        return []
    events = [*_nodes(before, now, restarted), *_lookupds(before, now)]
    # Topics come and go with their node, also when we forget a silent one. That is one event, not thousands.
    if _known(before) == _known(now):
        events += _topics(before, now)
    return events


def _known(snapshot: Snapshot) -> set[tuple[str, bool]]:
    return {(node.address, node.is_reachable) for node in snapshot.nodes if node.is_known}


def _nodes(before: Snapshot, now: Snapshot, restarted: frozenset[str]) -> Iterator[Activity]:
    at = now.taken_at
    known = {node.address: node for node in before.nodes}
    for node in now.nodes:
        old = known.get(node.address)
        if old is None:
            yield Activity(at=at, what="node_appeared", text=f"nsqd {node.address} has appeared", nodes=(node.address,))
        elif old.is_reachable and not node.is_reachable:
            # Everyone can read this, and the error may name any topic; the node's page shows it.
            text = f"nsqd {node.address} no longer answers"
            yield Activity(at=at, what="node_down", text=text, nodes=(node.address,))
        elif node.is_reachable and not old.is_reachable:
            yield Activity(at=at, what="node_up", text=f"nsqd {node.address} answers again", nodes=(node.address,))
        if node.successor and (old is None or not old.successor):
            yield _taken_over(node, node.successor, at)
        if node.address in restarted:
            text = f"nsqd {node.address} has been restarted"
            yield Activity(at=at, what="nsqd_restarted", text=text, nodes=(node.address,))
    for address in known.keys() - {node.address for node in now.nodes}:
        successor = _successor(known[address], now)
        if successor and not known[address].successor:
            yield _taken_over(known[address], successor, at)
        yield Activity(at=at, what="node_gone", text=f"nsqd {address} has disappeared", nodes=(address,))


def _taken_over(node: Node, successor: str, at: float) -> Activity:
    name = node.remote.name if node.remote is not None else ""
    text = f"nsqd {successor} has taken over {name} from {node.address}"
    return Activity(at=at, what="taken_over", text=text, nodes=(successor, node.address))


def _successor(node: Node, now: Snapshot) -> str:
    """Return the node that took over the copy of a lost one, or ""."""
    copy = node.remote
    if copy is None:
        return ""
    others = (it for it in now.nodes if it.is_reachable and it.remote is not None and it.remote.is_owned)
    return next((it.address for it in others if it.remote is not None and it.remote.key == copy.key), "")


def _lookupds(before: Snapshot, now: Snapshot) -> Iterator[Activity]:
    known = {lookupd.address: lookupd for lookupd in before.lookupds}
    for lookupd in now.lookupds:
        old = known.get(lookupd.address)
        if old is None or old.is_reachable == lookupd.is_reachable:
            continue
        word, text = ("lookupd_up", "answers again") if lookupd.is_reachable else ("lookupd_down", "no longer answers")
        yield Activity(
            at=now.taken_at, what=word, text=f"nsqlookupd {lookupd.address} {text}", nodes=(lookupd.address,)
        )


def _topics(before: Snapshot, now: Snapshot) -> Iterator[Activity]:
    at = now.taken_at
    known = {topic.name: topic for topic in before.topics if not topic.is_inactive}
    there = {topic.name: topic for topic in now.topics if not topic.is_inactive}
    for name, topic in there.items():
        old = known.get(name)
        if old is None:
            yield Activity(at=at, what="topic_appeared", text=f"topic {name} has appeared", topic=name)
        elif old is not topic:
            yield from _channels(old, topic, at)
    for name in known.keys() - there.keys():
        yield Activity(at=at, what="topic_vanished", text=f"topic {name} has disappeared", topic=name)


def _channels(before: Topic, now: Topic, at: float) -> Iterator[Activity]:
    if before.paused is not now.paused:
        yield _paused(at, f"topic {now.name}", before, now, topic=now.name)
    known = {channel.name: channel for channel in before.channels}
    for channel in now.channels:
        if channel.name.startswith(TAIL_PREFIX):
            continue
        old = known.get(channel.name)
        what = f"channel {now.name}/{channel.name}"
        if old is None:
            yield Activity(
                at=at, what="channel_appeared", text=f"{what} has appeared", topic=now.name, channel=channel.name
            )
        else:
            yield from _channel(old, channel, at, what)
    for name in known.keys() - {channel.name for channel in now.channels}:
        if not name.startswith(TAIL_PREFIX):
            text = f"channel {now.name}/{name} has disappeared"
            yield Activity(at=at, what="channel_vanished", text=text, topic=now.name, channel=name)


def _channel(before: Channel, now: Channel, at: float, what: str) -> Iterator[Activity]:
    stopped = _stopped_itself(now) - _stopped_itself(before)
    if stopped:
        text = f"{what} has paused itself on {', '.join(sorted(stopped))}: {now.paused_why}"
        yield Activity(at=at, what=PAUSED_ITSELF, text=text, topic=now.topic, channel=now.name)
    elif before.paused is not now.paused:
        yield _paused(at, what, before, now, topic=now.topic, channel=now.name)
    if before.client_count and not now.client_count:
        text = f"the last consumer of {what} has left"
        yield Activity(at=at, what="consumers_gone", text=text, topic=now.topic, channel=now.name)
    elif now.client_count and not before.client_count:
        text = f"a consumer of {what} has connected"
        yield Activity(at=at, what="consumers_back", text=text, topic=now.topic, channel=now.name)


def _stopped_itself(channel: Channel) -> set[str]:
    return {row.node for row in channel.nodes if row.paused and row.paused_why}


def _paused(
    at: float, what: str, before: Topic | Channel, now: Topic | Channel, *, topic: str, channel: str = ""
) -> Activity:
    on = f"on {sum(row.paused for row in now.nodes)} of {len(now.nodes)} nodes"
    word, text = {
        Paused.YES: ("paused", "is paused"),
        Paused.PARTLY: ("paused", f"is paused {on}"),
        Paused.NO: ("unpaused", "is no longer paused"),
    }[now.paused]
    if before.paused is Paused.YES and now.paused is Paused.PARTLY:
        word, text = "unpaused", f"is now paused only {on}"
    return Activity(at=at, what=word, text=f"{what} {text}", topic=topic, channel=channel)
