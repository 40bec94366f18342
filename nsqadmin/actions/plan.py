"""Actions on the cluster: the requests that an action makes to each node, and its consequences.

    action ──► plan(snapshot, action)          its consequences, for the user to confirm
           └─► execution.execute(action)  ──►  Receipt, one step for each node

This module sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote_plus

from nsqadmin.access import Right
from nsqadmin.cluster.model import Channel, Node, Severity, Snapshot, Topic
from nsqcommon.wire.names import is_ephemeral, is_valid_name

MOST_WITHOUT_TYPING: Final = 1000  # messages; to lose more, the user has to type the name


class Kind(StrEnum):
    """The kinds of actions, named as in NSQ's notifications."""

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
    """The action that a user asks for."""

    kind: Kind
    topic: str
    channel: str = ""
    nodes: tuple[str, ...] = ()  # the nsqds to act on, empty for all; for a creation, the nsqds to create it on now
    place: str = ""  # where to move a channel
    reader: str = ""  # the name of the reader to forget
    into: str = ""  # where the reader puts the messages

    @property
    def name(self) -> str:
        """The topic or channel to act on."""
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    @property
    def right(self) -> Right:
        return Right.ADMIN if self.kind in _FOR_ADMINS else Right.OPERATE


# Actions that lose messages or deliver them again.
_FOR_ADMINS: Final = frozenset(
    (
        Kind.DELETE_TOPIC,
        Kind.DELETE_CHANNEL,
        Kind.EMPTY_TOPIC,
        Kind.EMPTY_CHANNEL,
        Kind.REMOVE_FROM_NODE,
        Kind.SEEK_CHANNEL,
    )
)
# Actions that nodes with history can undo.
UNDOABLE: Final = frozenset((Kind.EMPTY_CHANNEL, Kind.SEEK_CHANNEL, Kind.DELETE_CHANNEL))
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
_MANY: Final = 3  # nodes, which a title only counts
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


def can_be_undone(action: Action) -> bool:
    """Return True if nodes with history can undo the action."""
    return action.kind in UNDOABLE and not is_ephemeral(action.topic) and not is_ephemeral(action.channel)


class BadAction(ValueError):
    """The action makes no sense; the message is for the user."""


def checked(action: Action) -> Action:
    """Return the action itself. Raise BadAction if it makes no sense."""
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


# Requests


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
    """Return the requests to nsqlookupds, in order: each step goes to every nsqlookupd before the next step begins."""
    if action.kind not in _THROUGH_LOOKUPD:
        return ()
    addresses = tuple(lookupds)
    targets = [f"{_PATHS[action.kind]}?{_query(action)}"]
    if action.kind is Kind.REMOVE_FROM_NODE:
        targets = [f"/topic/tombstone?topic={_escaped(action.topic)}&node={_escaped(action.nodes[0])}"]
    elif action.kind is Kind.CREATE_CHANNEL:
        targets.insert(0, f"/topic/create?topic={_escaped(action.topic)}")
    return tuple(Call(address=address, is_lookupd=True, target=target) for target in targets for address in addresses)


def node_calls(action: Action, nodes: Iterable[str]) -> tuple[Call, ...]:
    return tuple(Call(address=address, is_lookupd=False, target=node_target(action)) for address in nodes)


def node_target(action: Action) -> str:
    return f"{_PATHS[action.kind]}?{_query(action)}"


def nodes_meant(action: Action, producers: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes to call. `producers` have the topic; a creation may name other nodes."""
    if action.kind is Kind.CREATE_TOPIC:
        return action.nodes
    if action.kind is Kind.CREATE_CHANNEL:
        return (*producers, *(address for address in action.nodes if address not in producers))
    if not action.nodes:
        return tuple(producers)
    return tuple(address for address in producers if address in action.nodes)


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


# Plans and receipts


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    text: str
    severity: Severity = Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The consequences of an action, for the user to confirm. However bad they are, the action may be executed."""

    action: Action
    title: str  # "Empty channel orders/fraud (65,190 messages on 2 nodes)"
    danger: Danger
    consequences: tuple[Consequence, ...]
    calls: tuple[Call, ...]
    unreachable: tuple[str, ...]  # nodes in `calls` that can't be reached now
    must_type: str = ""  # the name that the user has to type as a confirmation; empty: none

    @property
    def is_of_directory(self) -> bool:
        """True if this deletes a channel that only the directory knows. Such a channel has no page."""
        return self.action.kind is Kind.DELETE_CHANNEL and all(call.is_lookupd for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node's answer."""

    address: str
    is_lookupd: bool
    target: str
    error: str = ""  # the error in the node's words; empty on success
    why: str = ""  # the likely meaning of the error
    may_follow: bool = False  # the node got the request and hasn't confirmed it: it may have done it, or still do it

    @property
    def is_done(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The outcome of an action."""

    action: Action
    at: float
    took: float
    steps: tuple[Step, ...]
    failure: str = ""  # why the action didn't start or finish, for example if we couldn't look up the topic's nodes
    discovery_errors: tuple[str, ...] = ()  # of servers that didn't say where the topic is, while others did
    undo: str = ""  # id for undoing it; empty if that isn't possible
    no_undo: tuple[str, ...] = ()  # sentences: on which nodes it can't be undone, and why

    @property
    def result(self) -> str:
        """ok, partly, or failed."""
        done = [step.is_done for step in self.steps]
        if self.failure or (done and not any(done)):
            return "failed"
        return "ok" if all(done) else "partly"

    @property
    def may_follow(self) -> bool:
        """True if a node that hasn't answered may still do it."""
        return any(step.may_follow for step in self.steps)

    @property
    def retry(self) -> Action | None:
        """The same action for the nsqds where it failed; None if there are none."""
        failed = tuple(step.address for step in self.steps if step.error and not step.is_lookupd)
        return replace(self.action, nodes=failed) if failed else None


def plan(snapshot: Snapshot, action: Action) -> Plan:
    """Return the consequences of the action. Raise BadAction if it is impossible."""
    checked(action)
    topic = snapshot.topic(action.topic)
    if topic is None and action.kind not in _CREATIONS:
        raise BadAction("TOPIC_NOT_FOUND")
    channel = topic.channel(action.channel) if topic is not None and action.channel else None
    if channel is None and action.kind in _OF_CHANNELS - _CREATIONS and not _is_only_registered(topic, action):
        raise BadAction("CHANNEL_NOT_FOUND")
    meant = nodes_meant(action, _producers(topic, channel, action))
    calls = node_calls(action, meant)
    if snapshot.has_lookupds and not _is_partial_deletion(action):
        calls = (*lookupd_calls(action, (lookupd.address for lookupd in snapshot.lookupds)), *calls)
    lost = _messages_lost(action, topic, channel, meant)
    return Plan(
        action=action,
        title=_title(action, lost, len(meant)),
        danger=_DANGER.get(action.kind, Danger.NONE),
        consequences=tuple(_consequences(snapshot, action, topic, channel, meant, lost)),
        calls=calls,
        unreachable=tuple(
            address for address in dict.fromkeys(call.address for call in calls) if _is_unreachable(snapshot, address)
        ),
        must_type=action.channel or action.topic if lost > MOST_WITHOUT_TYPING else "",
    )


def _is_only_registered(topic: Topic | None, action: Action) -> bool:
    """Return True if this deletes a channel from the directory that no node has."""
    if topic is None or action.kind is not Kind.DELETE_CHANNEL or _is_partial_deletion(action):
        return False
    return action.channel in topic.registered_channels


def _is_partial_deletion(action: Action) -> bool:
    """Return True if this deletes on some nodes only. The directory then stays as it is."""
    return bool(action.nodes) and action.kind in (Kind.DELETE_TOPIC, Kind.DELETE_CHANNEL)


def holders(snapshot: Snapshot, action: Action) -> tuple[str, ...]:
    """Return the target nodes that have this topic or channel, or had it when they last answered."""
    topic = snapshot.topic(action.topic)
    channel = topic.channel(action.channel) if topic is not None and action.channel else None
    return nodes_meant(action, _producers(topic, channel, action))


def _producers(topic: Topic | None, channel: Channel | None, action: Action) -> tuple[str, ...]:
    if topic is None:
        return ()
    if channel is not None and action.kind is not Kind.CREATE_CHANNEL:
        return tuple(row.node for row in channel.nodes)
    return tuple(row.node for row in topic.nodes)


def messages_lost(snapshot: Snapshot, action: Action) -> int:
    """Return how many messages the action would lose on its nodes; 0 if the snapshot lacks the topic or channel."""
    topic = snapshot.topic(action.topic)
    channel = topic.channel(action.channel) if topic is not None and action.channel else None
    return _messages_lost(action, topic, channel, nodes_meant(action, _producers(topic, channel, action)))


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
                for each in topic.channels
                for row in each.nodes
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
        # The dialog lists every node below its title.
        title += f" on {', '.join(action.nodes) if len(action.nodes) < _MANY else _counted(len(action.nodes), 'node')}"
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
        yield from _what_can_be_undone(snapshot, action, topic, meant, lost)
    if action.kind in (Kind.DELETE_CHANNEL, Kind.DELETE_TOPIC, Kind.REMOVE_FROM_NODE):
        yield from _who_is_disconnected(action, topic, channel, meant)
    if action.kind in (Kind.DELETE_TOPIC, Kind.REMOVE_FROM_NODE):
        yield from _who_recreates_it(snapshot, action, topic, meant)
    if action.kind == Kind.EMPTY_TOPIC and topic is not None and topic.channels:
        yield Consequence(
            text="Its channels keep their messages: only messages that no channel has received yet are lost."
        )
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
    yield from _who_is_silent(snapshot, action, topic, channel, meant)


def _who_is_silent(
    snapshot: Snapshot, action: Action, topic: Topic | None, channel: Channel | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    """Warn about unreachable nodes: the targets, and nodes that already have the topic or channel to create."""
    having = () if topic is None else channel.silent if channel is not None else topic.silent
    for address in dict.fromkeys((*meant, *having)):
        if not _is_unreachable(snapshot, address) or (address not in meant and action.kind not in _CREATIONS):
            continue
        text = f"{address} does not answer. "
        if can_be_undone(action):
            text += "It is skipped, unless it reports the state that an undo needs."
        else:
            text += "It is asked anyway: if it only hangs, it may still do this later."
        if address in having:
            kind = Kind.DELETE_TOPIC if channel is None else Kind.DELETE_CHANNEL
            waiting = _messages_lost(replace(action, kind=kind), topic, channel, (address,))
            had = _counted(waiting, "message")
            text += f" It had {had} of this when it last answered; they reappear when it returns."
        yield Consequence(text=text, severity=Severity.WARNING)


def _what_is_lost(action: Action, topic: Topic | None, lost: int) -> Iterable[Consequence]:
    if not lost:
        yield Consequence(text="No message is waiting there now.")
    elif action.kind is Kind.SEEK_CHANNEL:
        yield Consequence(
            text=f"{_counted(lost, 'message')} waiting in the channel now will be skipped, unless the new place is before them.",
            severity=Severity.WARNING,
        )
    else:
        yield Consequence(text=f"{_counted(lost, 'message')} will be deleted.", severity=Severity.PROBLEM)
    if action.kind is Kind.DELETE_TOPIC and topic is not None and topic.channels:
        names = ", ".join(channel.name for channel in topic.channels)
        yield Consequence(text=f"Its channels are deleted with it: {names}.", severity=Severity.PROBLEM)


def _what_can_be_undone(
    snapshot: Snapshot, action: Action, topic: Topic | None, meant: Sequence[str], lost: int
) -> Iterable[Consequence]:
    """Say on which nodes an undo is possible. The nodes say for how long when the action runs."""
    having = {row.node for row in topic.nodes if row.has_log} if topic is not None else set()
    lasting = can_be_undone(action)
    keeping = [address for address in meant if lasting and address in having and _has_history(snapshot, address)]
    if keeping:
        yield Consequence(text="Can be undone for as long as the nodes keep the messages.")
    if not lost or action.kind is Kind.SEEK_CHANNEL:  # without history, a channel does not move
        return
    # On an unreachable node nothing changes, so there is nothing to undo.
    without = [address for address in meant if address not in keeping and not _is_unreachable(snapshot, address)]
    if not keeping:
        yield Consequence(text="This cannot be undone.", severity=Severity.PROBLEM)
    elif without:
        text = (
            f"It cannot be undone on {', '.join(without)}, which {'keeps' if len(without) == 1 else 'keep'} no history."
        )
        yield Consequence(text=text, severity=Severity.PROBLEM)


def _has_history(snapshot: Snapshot, address: str) -> bool:
    node = snapshot.node(address)
    return node is not None and node.has_history


def _who_is_disconnected(
    action: Action, topic: Topic | None, channel: Channel | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    channels = [channel] if channel is not None else list(topic.channels) if topic is not None else []
    count = sum(row.client_count for each in channels for row in each.nodes if row.node in meant)
    if not count:
        return
    what = "channel" if action.kind is Kind.DELETE_CHANNEL else "topic"
    yield Consequence(
        text=f"{_counted(count, 'consumer')} will be disconnected; when they reconnect, they create the {what} again. Stop them first, or pause it.",
        severity=Severity.WARNING,
    )


def _who_recreates_it(
    snapshot: Snapshot, action: Action, topic: Topic | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    publishing = [
        producer.hostname or producer.remote_address
        for producer in snapshot.producers or ()
        if producer.node in meant and any(name == action.topic for name, _, _ in producer.counts)
    ]
    if publishing:
        who = ", ".join(sorted(set(publishing))[:5])
        yield Consequence(
            text=f"Producers publish to it ({who}): the next message creates the topic again, without its channels.",
            severity=Severity.WARNING,
        )
    elif topic is not None and topic.rates.incoming:
        yield Consequence(
            text=f"{topic.rates.incoming:,.0f} messages a second are being published: the next one creates the topic again.",
            severity=Severity.WARNING,
        )


def _what_a_pause_does(action: Action, topic: Topic | None, channel: Channel | None) -> Iterable[Consequence]:
    if action.kind is Kind.PAUSE_TOPIC:
        yield Consequence(text="New messages wait in the topic until it is unpaused; its channels get nothing new.")
        return
    yield Consequence(text="Nothing is delivered from this channel until it is unpaused; messages wait in it.")
    if channel is not None and is_ephemeral(channel.name):
        yield Consequence(
            text="It is ephemeral: messages that do not fit into memory are dropped.", severity=Severity.WARNING
        )


def _what_a_creation_does(
    snapshot: Snapshot, action: Action, topic: Topic | None, meant: Sequence[str]
) -> Iterable[Consequence]:
    if topic is not None and (action.kind is Kind.CREATE_TOPIC or topic.channel(action.channel) is not None):
        yield Consequence(text="It exists already. Nodes that have it are not changed.")
    if not snapshot.has_lookupds and not meant:
        yield Consequence(
            text="There is no nsqlookupd: choose the nodes on which to create it.", severity=Severity.WARNING
        )
    elif not meant:
        yield Consequence(
            text="Only the name is registered: a node creates it when a client publishes or subscribes there. Choose nodes to create it now."
        )
    elif action.kind is Kind.CREATE_CHANNEL and topic is not None and topic.depth and not topic.channels:
        yield Consequence(text=f"It gets the {_counted(topic.depth, 'message')} waiting in the topic.")


def _what_a_move_does(snapshot: Snapshot, meant: Sequence[str]) -> Iterable[Consequence]:
    yield Consequence(text="Messages from that place on are delivered again: consumers must tolerate duplicates.")
    for address in meant:
        node = snapshot.node(address)
        if node is not None and not node.has_history:
            yield Consequence(
                text=f"{address} keeps no history (it is a Go nsqd, or does not answer): the channel does not move there.",
                severity=Severity.WARNING,
            )


def _what_forgetting_does(action: Action) -> Iterable[Consequence]:
    if action.into:
        yield Consequence(text=f"Messages that it has written to {action.into} stay, and it keeps its own place.")
    yield Consequence(text="Only nsqd's record of it is removed. If it still runs, its next report brings it back.")


def _is_unreachable(snapshot: Snapshot, address: str) -> bool:
    node: Node | None = snapshot.node(address)
    if node is not None:
        return not node.is_reachable
    return any(lookupd.address == address and not lookupd.is_reachable for lookupd in snapshot.lookupds)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
