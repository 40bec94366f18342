"""What people can do to the cluster: what an action asks of which node, and what it would lead to. Nothing is asked here.

action ──► plan(snapshot, action)          what it would do, for the one who is to confirm it
       └─► execution.execute(action)  ──►  Receipt, one step for each node
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote_plus

from common.wire.names import is_ephemeral, is_valid_name
from nsqadmin.access.policy import Right
from nsqadmin.cluster.model import Channel, Node, Severity, Snapshot, Topic

MOST_WITHOUT_TYPING: Final = 1000  # messages that may go without the name having been typed


class Kind(StrEnum):
    """Each kind's word is the one of NSQ's notifications."""

    CREATE_TOPIC = "create_topic"
    CREATE_CHANNEL = "create_channel"
    DELETE_TOPIC = "delete_topic"
    DELETE_CHANNEL = "delete_channel"
    EMPTY_TOPIC = "empty_topic"
    EMPTY_CHANNEL = "empty_channel"
    PAUSE_TOPIC = "pause_topic"
    PAUSE_CHANNEL = "pause_channel"
    UNPAUSE_TOPIC = "unpause_topic"
    UNPAUSE_CHANNEL = "unpause_channel"
    REMOVE_FROM_NODE = "tombstone_topic_producer"
    SEEK_CHANNEL = "seek_channel"  # ours
    FORGET_READER = "forget_reader"  # ours


class Danger(StrEnum):
    NONE = "neutral"
    LOSES_MESSAGES = "warning"
    DESTROYS = "danger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """`nodes` restricts it to some nsqd (empty: all that have the topic); for a creation they are where it is made
    besides in the directory. `place` is where a channel is moved to; `reader` and `into` name a reader to be forgotten."""

    kind: Kind
    topic: str
    channel: str = ""
    nodes: tuple[str, ...] = ()
    place: str = ""
    reader: str = ""
    into: str = ""

    @property
    def name(self) -> str:
        """What it is done to."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    @property
    def right(self) -> Right:
        return Right.ADMIN if self.kind in _FOR_ADMINS else Right.OPERATE


_FOR_ADMINS: Final = frozenset((Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL, Kind.REMOVE_FROM_NODE, Kind.SEEK_CHANNEL))
_OF_CHANNELS: Final = frozenset(
    (
        Kind.CREATE_CHANNEL,
        Kind.DELETE_CHANNEL,
        Kind.EMPTY_CHANNEL,
        Kind.PAUSE_CHANNEL,
        Kind.UNPAUSE_CHANNEL,
        Kind.SEEK_CHANNEL,
    )
)
_CREATIONS: Final = frozenset((Kind.CREATE_TOPIC, Kind.CREATE_CHANNEL))
_THROUGH_LOOKUPD: Final = frozenset(
    (Kind.CREATE_TOPIC, Kind.CREATE_CHANNEL, Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL, Kind.REMOVE_FROM_NODE)
)
_DANGER: Final = {
    Kind.EMPTY_TOPIC: Danger.LOSES_MESSAGES,
    Kind.EMPTY_CHANNEL: Danger.LOSES_MESSAGES,
    Kind.SEEK_CHANNEL: Danger.LOSES_MESSAGES,
    Kind.DELETE_TOPIC: Danger.DESTROYS,
    Kind.DELETE_CHANNEL: Danger.DESTROYS,
    Kind.REMOVE_FROM_NODE: Danger.DESTROYS,
}
_PATHS: Final = {
    Kind.CREATE_TOPIC: "/topic/create",
    Kind.CREATE_CHANNEL: "/channel/create",
    Kind.DELETE_TOPIC: "/topic/delete",
    Kind.DELETE_CHANNEL: "/channel/delete",
    Kind.EMPTY_TOPIC: "/topic/empty",
    Kind.EMPTY_CHANNEL: "/channel/empty",
    Kind.PAUSE_TOPIC: "/topic/pause",
    Kind.PAUSE_CHANNEL: "/channel/pause",
    Kind.UNPAUSE_TOPIC: "/topic/unpause",
    Kind.UNPAUSE_CHANNEL: "/channel/unpause",
    Kind.REMOVE_FROM_NODE: "/topic/delete",
    Kind.SEEK_CHANNEL: "/channel/seek",
    Kind.FORGET_READER: "/topic/reader/delete",
}
_VERBS: Final = {
    Kind.CREATE_TOPIC: "Create topic",
    Kind.CREATE_CHANNEL: "Create channel",
    Kind.DELETE_TOPIC: "Delete topic",
    Kind.DELETE_CHANNEL: "Delete channel",
    Kind.EMPTY_TOPIC: "Empty topic",
    Kind.EMPTY_CHANNEL: "Empty channel",
    Kind.PAUSE_TOPIC: "Pause topic",
    Kind.PAUSE_CHANNEL: "Pause channel",
    Kind.UNPAUSE_TOPIC: "Unpause topic",
    Kind.UNPAUSE_CHANNEL: "Unpause channel",
    Kind.REMOVE_FROM_NODE: "Remove topic from node",
    Kind.SEEK_CHANNEL: "Move channel",
    Kind.FORGET_READER: "Forget a reader of",
}


class BadAction(ValueError):
    """It makes no sense as it was asked for; the message is for the one who asked."""


def checked(action: Action) -> Action:
    """The same action. Raises BadAction."""
    if action.kind in _CREATIONS and not is_valid_name(action.topic):
        raise BadAction("INVALID_TOPIC")
    if action.kind in _OF_CHANNELS:
        if not action.channel or (action.kind in _CREATIONS and not is_valid_name(action.channel)):
            raise BadAction("INVALID_CHANNEL")
    elif action.channel:
        raise BadAction("INVALID_CHANNEL")
    if not action.topic:
        raise BadAction("INVALID_TOPIC")
    if action.kind is Kind.REMOVE_FROM_NODE and len(action.nodes) != 1:
        raise BadAction("INVALID_NODE")
    if (action.kind is Kind.SEEK_CHANNEL) != bool(action.place):
        raise BadAction("INVALID_PLACE")
    if (action.kind is Kind.FORGET_READER) != bool(action.reader):
        raise BadAction("INVALID_READER")
    return action


# What is asked of whom


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One POST."""

    address: str
    is_lookupd: bool
    target: str

    @property
    def url(self) -> str:
        return f"http://{self.address}{self.target}"


def lookupd_calls(action: Action, lookupds: Iterable[str]) -> tuple[Call, ...]:
    """In the order in which they are made: each step at every nsqlookupd before the next one."""
    if action.kind not in _THROUGH_LOOKUPD:
        return ()
    addresses = tuple(lookupds)
    targets = [f"{_PATHS[action.kind]}?{_query(action)}"]
    if action.kind is Kind.REMOVE_FROM_NODE:
        targets = [f"/topic/tombstone?topic={_escaped(action.topic)}&node={_escaped(action.nodes[0])}"]
    elif action.kind is Kind.CREATE_CHANNEL:
        targets.insert(0, f"/topic/create?topic={_escaped(action.topic)}")
    return tuple(Call(address=it, is_lookupd=True, target=target) for target in targets for it in addresses)


def node_calls(action: Action, nodes: Iterable[str]) -> tuple[Call, ...]:
    return tuple(Call(address=it, is_lookupd=False, target=node_target(action)) for it in nodes)


def node_target(action: Action) -> str:
    return f"{_PATHS[action.kind]}?{_query(action)}"


def nodes_meant(action: Action, producers: Sequence[str]) -> tuple[str, ...]:
    """Of the nodes that have the topic those that the action is for. A creation may name others."""
    if action.kind is Kind.CREATE_TOPIC:
        return action.nodes
    if action.kind is Kind.CREATE_CHANNEL:
        return (*producers, *(it for it in action.nodes if it not in producers))
    if not action.nodes:
        return tuple(producers)
    return tuple(it for it in producers if it in action.nodes)


def _query(action: Action) -> str:
    query = f"topic={_escaped(action.topic)}"
    if action.channel:
        query += f"&channel={_escaped(action.channel)}"
    if action.place:
        query += f"&from={_escaped(action.place)}"
    if action.reader:
        query += f"&name={_escaped(action.reader)}&into={_escaped(action.into)}"
    return query


def _escaped(text: str) -> str:
    return quote_plus(text, errors="surrogateescape")


# What it would lead to


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    text: str
    severity: Severity = Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """For the one who is to confirm it. It may be executed also where it says nothing good."""

    action: Action
    title: str  # "Empty channel orders/fraud (65,190 messages on 2 nodes)"
    danger: Danger
    consequences: tuple[Consequence, ...]
    calls: tuple[Call, ...]
    unreachable: tuple[str, ...]  # nodes that would have to be asked, but cannot be reached now
    must_type: str = ""  # what has to be typed before it is done; empty: nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one node answered."""

    address: str
    is_lookupd: bool
    target: str
    error: str = ""  # as it came; empty: done

    @property
    def is_done(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    action: Action
    at: float
    took: float
    steps: tuple[Step, ...]
    failure: str = ""  # why nothing could be begun: nobody said where the topic is
    discovery_errors: tuple[str, ...] = ()  # of those who did not answer when others did

    @property
    def result(self) -> str:
        """ok, partly, or failed."""
        done = [step.is_done for step in self.steps]
        if self.failure or (done and not any(done)):
            return "failed"
        return "ok" if all(done) else "partly"

    @property
    def retry(self) -> Action | None:
        """The same for the nsqd where it failed."""
        failed = tuple(step.address for step in self.steps if step.error and not step.is_lookupd)
        return replace(self.action, nodes=failed) if failed else None


def plan(snapshot: Snapshot, action: Action) -> Plan:
    """Raises BadAction where it cannot be done at all."""
    checked(action)
    topic = snapshot.topic(action.topic)
    if topic is None and action.kind not in _CREATIONS:
        raise BadAction("TOPIC_NOT_FOUND")
    channel = topic.channel(action.channel) if topic is not None and action.channel else None
    if action.kind in _OF_CHANNELS and action.kind not in _CREATIONS and channel is None:
        raise BadAction("CHANNEL_NOT_FOUND")
    meant = nodes_meant(action, _producers(topic, channel, action))
    calls = node_calls(action, meant)
    if snapshot.has_lookupds and not _is_part_of(action):
        calls = (*lookupd_calls(action, (it.address for it in snapshot.lookupds)), *calls)
    lost = _messages_lost(action, topic, channel, meant)
    return Plan(
        action=action,
        title=_title(action, lost, len(meant)),
        danger=_DANGER.get(action.kind, Danger.NONE),
        consequences=tuple(_consequences(snapshot, action, topic, channel, meant, lost)),
        calls=calls,
        unreachable=tuple(it for it in dict.fromkeys(call.address for call in calls) if _is_unreachable(snapshot, it)),
        must_type=action.channel or action.topic if lost > MOST_WITHOUT_TYPING else "",
    )


def _is_part_of(action: Action) -> bool:
    """A deletion on some of the nodes leaves the directory alone."""
    return bool(action.nodes) and action.kind in (Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL)


def _producers(topic: Topic | None, channel: Channel | None, action: Action) -> tuple[str, ...]:
    if topic is None:
        return ()
    if channel is not None and action.kind is not Kind.CREATE_CHANNEL:
        return tuple(row.node for row in channel.nodes)
    return tuple(row.node for row in topic.nodes)


def _messages_lost(action: Action, topic: Topic | None, channel: Channel | None, meant: Sequence[str]) -> int:
    rows_of_topic = [row for row in topic.nodes if row.node in meant] if topic is not None else []
    rows_of_channel = [row for row in channel.nodes if row.node in meant] if channel is not None else []
    own = sum(row.depth for row in rows_of_topic)
    held = sum(row.depth + row.in_flight_count + row.deferred_count for row in rows_of_channel)
    match action.kind:
        case Kind.EMPTY_TOPIC:
            return own
        case Kind.EMPTY_CHANNEL | Kind.DELETE_CHANNEL | Kind.SEEK_CHANNEL:
            return held
        case Kind.DELETE_TOPIC | Kind.REMOVE_FROM_NODE if topic is not None:
            return own + sum(
                row.depth + row.in_flight_count + row.deferred_count
                for it in topic.channels
                for row in it.nodes
                if row.node in meant
            )
    return 0


def _title(action: Action, lost: int, nodes: int) -> str:
    title = f"{_VERBS[action.kind]} {action.name}"
    if action.kind is Kind.REMOVE_FROM_NODE:
        title = f"Remove topic {action.topic} from node {action.nodes[0]}"
    elif action.kind is Kind.SEEK_CHANNEL:
        title = f"Move channel {action.name} to {action.place}"
    elif action.kind is Kind.FORGET_READER:
        title = f"Forget that {action.reader} reads {action.topic}"
    if action.kind in _DANGER:
        title += f" ({_counted(lost, 'message')} on {_counted(nodes, 'node')})"
    elif action.nodes and action.kind not in _CREATIONS:
        title += f" on {', '.join(action.nodes)}"
    return title


def _consequences(
    snapshot: Snapshot,
    action: Action,
    topic: Topic | None,
    channel: Channel | None,
    meant: Sequence[str],
    lost: int,
) -> Iterable[Consequence]:
    if action.kind in _DANGER:
        yield from _what_is_lost(action, topic, lost)
    if action.kind in (Kind.DELETE_CHANNEL, Kind.DELETE_TOPIC, Kind.REMOVE_FROM_NODE):
        yield from _who_is_disconnected(action, topic, channel, meant)
    if action.kind in (Kind.DELETE_TOPIC, Kind.REMOVE_FROM_NODE):
        yield from _who_makes_it_again(snapshot, action, topic, meant)
    if action.kind == Kind.EMPTY_TOPIC and topic is not None and topic.channels:
        yield Consequence(text="Its channels keep what they have: only what no channel has got yet goes.")
    if action.kind in (Kind.PAUSE_TOPIC, Kind.PAUSE_CHANNEL):
        yield from _what_a_pause_does(action, topic, channel)
    if action.kind in _CREATIONS:
        yield from _what_a_creation_does(snapshot, action, topic, meant)
    if action.kind is Kind.SEEK_CHANNEL:
        yield from _what_a_move_does(snapshot, meant)
    if action.kind is Kind.FORGET_READER:
        yield from _what_forgetting_does(action)
    if action.kind not in _CREATIONS and not meant:
        yield Consequence(text="No node has it: only the directory changes.", severity=Severity.WARNING)
    for address in meant:
        if _is_unreachable(snapshot, address):
            yield Consequence(text=f"{address} cannot be reached: it stays as it is there.", severity=Severity.WARNING)


def _what_is_lost(action: Action, topic: Topic | None, lost: int) -> Iterable[Consequence]:
    if not lost:
        yield Consequence(text="No message is waiting there now.")
    elif action.kind is Kind.SEEK_CHANNEL:
        yield Consequence(
            text=f"{_counted(lost, 'message')} waiting in the channel now are forgotten, and come again only where the new place lies before them.",
            severity=Severity.WARNING,
        )
    else:
        text = f"{_counted(lost, 'message')} will be gone. This cannot be undone."
        yield Consequence(text=text, severity=Severity.PROBLEM)
    if action.kind is Kind.DELETE_TOPIC and topic is not None and topic.channels:
        names = ", ".join(channel.name for channel in topic.channels)
        yield Consequence(text=f"Its channels go with it: {names}.", severity=Severity.PROBLEM)


def _who_is_disconnected(
    action: Action, topic: Topic | None, channel: Channel | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    channels = [channel] if channel is not None else list(topic.channels) if topic is not None else []
    count = sum(row.client_count for it in channels for row in it.nodes if row.node in meant)
    if not count:
        return
    what = "channel" if action.kind is Kind.DELETE_CHANNEL else "topic"
    yield Consequence(
        text=f"{_counted(count, 'consumer')} will be disconnected; when they connect again, they make the {what} again. Stop them first, or pause.",
        severity=Severity.WARNING,
    )


def _who_makes_it_again(
    snapshot: Snapshot, action: Action, topic: Topic | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    publishing = [
        it.hostname or it.remote_address
        for it in snapshot.producers or ()
        if it.node in meant and any(name == action.topic for name, _, _ in it.counts)
    ]
    if publishing:
        who = ", ".join(sorted(set(publishing))[:5])
        yield Consequence(
            text=f"It is being published to ({who}): the next message makes the topic again, without its channels.",
            severity=Severity.WARNING,
        )
    elif topic is not None and topic.rates.incoming:
        yield Consequence(
            text=f"{topic.rates.incoming:,.0f} messages a second are being published: the next one makes the topic again.",
            severity=Severity.WARNING,
        )


def _what_a_pause_does(action: Action, topic: Topic | None, channel: Channel | None) -> Iterable[Consequence]:
    if action.kind is Kind.PAUSE_TOPIC:
        yield Consequence(text="New messages wait in the topic until it is unpaused; its channels get nothing new.")
        return
    yield Consequence(text="Nothing is delivered from this channel until it is unpaused; messages wait in it.")
    if channel is not None and is_ephemeral(channel.name):
        yield Consequence(text="It is ephemeral: what does not fit into memory is dropped.", severity=Severity.WARNING)


def _what_a_creation_does(
    snapshot: Snapshot, action: Action, topic: Topic | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    if topic is not None and (action.kind is Kind.CREATE_TOPIC or topic.channel(action.channel) is not None):
        yield Consequence(text="It exists already, and stays as it is where it is.")
    if not snapshot.has_lookupds and not meant:
        yield Consequence(
            text="There is no nsqlookupd: choose the nodes on which to make it.", severity=Severity.WARNING
        )
    elif not meant:
        yield Consequence(
            text="It is only entered in the directory: a node makes it when somebody publishes or subscribes there. Choose nodes to make it at once."
        )
    elif action.kind is Kind.CREATE_CHANNEL and topic is not None and topic.depth and not topic.channels:
        yield Consequence(text=f"It gets the {_counted(topic.depth, 'message')} that wait in the topic.")


def _what_a_move_does(snapshot: Snapshot, meant: Sequence[str]) -> Iterable[Consequence]:
    yield Consequence(text="Messages from that place on are delivered again; consumers must bear to see them twice.")
    for address in meant:
        node = snapshot.node(address)
        if node is not None and not node.has_history:
            yield Consequence(
                text=f"{address} keeps no history (it is a Go nsqd, or does not answer): the channel stays where it is there.",
                severity=Severity.WARNING,
            )


def _what_forgetting_does(action: Action) -> Iterable[Consequence]:
    if action.into:
        yield Consequence(text=f"What it has landed in {action.into} stays, and so does its own place.")
    yield Consequence(text="Only the note that it reads is removed. If it still runs, its next report brings it back.")


def _is_unreachable(snapshot: Snapshot, address: str) -> bool:
    node: Node | None = snapshot.node(address)
    if node is not None:
        return not node.is_reachable
    return any(it.address == address and not it.is_reachable for it in snapshot.lookupds)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
