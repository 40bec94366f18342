"""The commands of the palette: which objects each acts on, who may use it, and the page that asks for confirmation.

A command never acts. It leads to the page with the consequences that the buttons of other pages lead to, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.actions.plan import Kind as ActionKind
from nsqadmin.cluster.model import Channel, Node, Paused, Topic
from nsqadmin.diagnosis.incident import Open
from nsqadmin.palette.index import SEVERITIES, Place
from nsqadmin.palette.query import SYNONYMS, Kind, Verb
from nsqadmin.parts.rights import right_of, why_not_marked
from nsqcommon.wire.names import is_valid_name

if TYPE_CHECKING:
    from nsqadmin.access import Identity
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.palette.query import Query
    from nsqadmin.parts.links import Links

_TOPICS_AND_CHANNELS: Final = frozenset((Kind.TOPIC, Kind.CHANNEL))
INVALID_NAME: Final = (
    "“{}” is not a valid name: use at most 64 letters, digits and . _ - and, if you like, #ephemeral at the end."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskQueue:
    """A task in one queue."""

    name: str
    topic: str
    channel: str
    failed: int | None = None  # buried jobs; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything that the palette may show to one user."""

    snapshot: Snapshot
    identity: Identity
    links: Links
    incidents: tuple[Open, ...] = ()
    tasks: tuple[TaskQueue, ...] = ()
    can_change: bool = True  # False: this is a snapshot file
    has_jobs: bool = False
    topic: str = ""  # of the page on which the palette was opened
    channel: str = ""
    places: tuple[Place, ...] = ()  # those that aren't in the index
    rights: dict[tuple[Right, str], bool] = field(default_factory=dict)  # for topics, as far as they were looked up

    def may(self, right: Right, topic: str) -> bool:
        """Return whether the user has the right to a topic. A cache, because a command may look at all topics."""
        known = self.rights.get((right, topic))
        if known is None:
            known = self.rights[right, topic] = self.identity.may(right, topic)
        return known

    def sees(self, topic: str) -> bool:
        return self.may(Right.VIEW, topic)

    def tasks_of(self, place: Place) -> list[TaskQueue]:
        return [it for it in self.tasks if it.name == place.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A command for one object."""

    name: str
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A verb, and what it means for each object."""

    label: str
    kinds: frozenset[Kind]
    right: Right  # at least, so that we needn't look at any object for users without it
    why_not: Callable[[Context, Place], str]  # why it makes no sense for the object now, to follow its name
    may: Callable[[Context, Place], bool]
    href: Callable[[Context, Place], str]
    everywhere: bool = False  # it needs the right to all topics

    def refusal(self, identity: Identity) -> str:
        """Return why the user can't use it on any object, or ""."""
        return identity.why_not_everywhere(self.right) if self.everywhere else identity.why_not(self.right)

    def offer(self, context: Context, place: Place) -> Offer:
        kind = f"{place.kind.value} " if place.kind in _TOPICS_AND_CHANNELS else ""
        return Offer(name=f"{self.label} {kind}{place.name}", href=self.href(context, place))


# Topics and channels


def _queue_command(
    label: str,
    topics: ActionKind | None,
    channels: ActionKind | None,
    why_not: Callable[[Topic | Channel], str] = lambda _: "",
) -> Command:
    kinds = {Kind.TOPIC: topics, Kind.CHANNEL: channels}
    action_of = {kind: action for kind, action in kinds.items() if action is not None}

    def why(context: Context, place: Place) -> str:
        return why_not(place.of) if isinstance(place.of, Topic | Channel) else "is gone"

    return Command(
        label=label,
        kinds=frozenset(action_of),
        right=min((right_of(it) for it in action_of.values()), key=tuple(Right).index),
        why_not=why,
        may=lambda context, place: context.may(right_of(action_of[place.kind]), place.topic),
        href=lambda context, place: context.links.action(
            action_of[place.kind], topic=place.topic, channel=place.channel
        ),
    )


def _paused_already(found: Topic | Channel) -> str:
    return "is paused already" if found.paused is Paused.YES else "is on no node" if not found.nodes else ""


def _not_paused(found: Topic | Channel) -> str:
    return "is not paused" if found.paused is Paused.NO else ""


def _buried_command(label: str, action: str) -> Command:
    def why_not(context: Context, place: Place) -> str:
        return "" if isinstance(place.of, Channel) and place.of.buried_count else "has no buried messages"

    return Command(
        label=label,
        kinds=frozenset((Kind.CHANNEL,)),
        right=right_of(action),
        why_not=why_not,
        may=lambda context, place: context.may(right_of(action), place.topic),
        href=lambda context, place: context.links.action(action, topic=place.topic, channel=place.channel),
    )


# Nodes


def _why_not_drained(context: Context, place: Place) -> str:
    node = place.of
    if not isinstance(node, Node) or not node.is_reachable:
        return "does not answer"
    if not node.has_history:
        return "is no Python nsqd, so it cannot be drained"
    return "is draining already" if node.draining else ""


def _why_not_forgotten(context: Context, place: Place) -> str:
    is_silent = isinstance(place.of, Node) and not place.of.is_reachable
    return "" if is_silent else "answers, so there is nothing to forget"


def _node_command(
    label: str, action: str, path: str, why_not: Callable[[Context, Place], str], *, all: bool
) -> Command:
    return Command(
        label=label,
        kinds=frozenset((Kind.NODE,)),
        right=right_of(action),
        why_not=why_not,
        may=lambda *_: True,  # it concerns no topic, so `refusal` says everything
        href=lambda context, place: context.links.to(path, node=place.target),
        everywhere=all,
    )


# Tasks and incidents


def _why_not_retried(context: Context, place: Place) -> str:
    return "" if _retried(context, place) is not None else "has no failed jobs"


def _retried(context: Context, place: Place) -> TaskQueue | None:
    """Return the queue with the most failed jobs of this task that the user may retry."""
    may = context.may
    failing = [
        it
        for it in context.tasks_of(place)
        if it.failed != 0
        and may(right_of("kick_buried"), it.topic)
        and may(Right.PAYLOAD, it.topic)
        and (channel := context.snapshot.channel(it.topic, it.channel)) is not None
        and channel.buried_count
    ]
    return max(failing, key=lambda it: it.failed or 0, default=None)


def _retry(context: Context, place: Place) -> str:
    queue = _retried(context, place)
    if queue is None:
        return context.links.to("/jobs/task", name=place.name)
    return context.links.action("retry_task", topic=queue.topic, channel=queue.channel, task=queue.name)


def _mark_command(label: str, mark: str, why_not: Callable[[Open], str]) -> Command:
    def why(context: Context, place: Place) -> str:
        return why_not(place.of) if isinstance(place.of, Open) else "is over"

    def may(context: Context, place: Place) -> bool:
        return isinstance(place.of, Open) and not why_not_marked(context.identity, place.of)

    return Command(
        label=label,
        kinds=frozenset((Kind.INCIDENT,)),
        right=Right.OPERATE,
        why_not=why,
        may=may,
        href=lambda context, place: f"{context.links.incident(place.target)}/mark?do={mark}",
    )


COMMANDS: Final[Mapping[Verb, Command]] = {
    Verb.PAUSE: _queue_command("Pause", ActionKind.PAUSE_TOPIC, ActionKind.PAUSE_CHANNEL, _paused_already),
    Verb.UNPAUSE: _queue_command("Unpause", ActionKind.UNPAUSE_TOPIC, ActionKind.UNPAUSE_CHANNEL, _not_paused),
    Verb.EMPTY: _queue_command("Empty", ActionKind.EMPTY_TOPIC, ActionKind.EMPTY_CHANNEL),
    Verb.DELETE: _queue_command("Delete", ActionKind.DELETE_TOPIC, ActionKind.DELETE_CHANNEL),
    Verb.MOVE: _queue_command("Move", None, ActionKind.SEEK_CHANNEL),
    Verb.PUBLISH: Command(
        label="Publish to",
        kinds=frozenset((Kind.TOPIC,)),
        right=right_of("publish"),
        why_not=lambda *_: "",
        may=lambda context, place: context.may(Right.PUBLISH, place.topic),
        href=lambda context, place: context.links.action("publish", topic=place.topic),
    ),
    Verb.KICK: _buried_command("Kick buried messages of", "kick_buried"),
    Verb.DISCARD: _buried_command("Discard buried messages of", "discard_buried"),
    Verb.RETRY: Command(
        label="Retry failed jobs of",
        kinds=frozenset((Kind.TASK,)),
        right=right_of("kick_buried"),
        why_not=_why_not_retried,
        may=lambda *_: True,  # only tasks that the user may retry have failed jobs here
        href=_retry,
    ),
    Verb.DRAIN: _node_command("Drain", "drain_node", "/nodes/drain", _why_not_drained, all=True),
    Verb.FORGET: _node_command("Forget", "forget_node", "/nodes/forget", _why_not_forgotten, all=False),
    Verb.ACKNOWLEDGE: _mark_command(
        "Acknowledge", "acknowledge", lambda it: "is acknowledged already" if it.acknowledged else ""
    ),
    Verb.UNACKNOWLEDGE: _mark_command(
        "Unacknowledge", "unacknowledge", lambda it: "" if it.acknowledged else "is not acknowledged"
    ),
    Verb.MUTE: _mark_command("Mute", "mute", lambda it: "is muted already" if it.muted else ""),
    Verb.UNMUTE: _mark_command("Unmute", "unmute", lambda it: "" if it.muted else "is not muted"),
}


def incident_places(incidents: Iterable[Open]) -> Iterator[Place]:
    for it in incidents:
        incident = it.incident
        yield Place(
            Kind.INCIDENT,
            incident.title,
            target=it.key,
            ill=(SEVERITIES.get(incident.severity, len(SEVERITIES)), -incident.weight),
            of=it,
        )


# Creations, whose object doesn't exist yet


def creations(context: Context, query: Query) -> tuple[list[Offer], str]:
    """Return the offers to create the topic or channel that a query names, and why there are none."""
    if reason := context.identity.why_not(right_of("create_topic")):
        return [], reason
    if not query.names:
        return [Offer(name="Create a topic or channel", href=context.links.action("create"))], ""
    name = query.names[0]
    topic, separator, channel = name.partition("/")
    if len(query.names) == 2:
        topic, channel = query.names
    elif query.kind is Kind.CHANNEL and not separator:
        topic, channel = context.topic, name
    if (query.kind is Kind.CHANNEL or separator) and not (topic and channel):
        return [], "Name the topic, too: create channel topic/channel"
    for part in filter(None, (topic, channel)):
        if not is_valid_name(part):
            return [], INVALID_NAME.format(part[:80])
    if reason := context.identity.why_not(right_of("create_topic"), topic):
        return [], reason
    found = context.snapshot.topic(topic)
    if channel:
        if found is not None and found.channel(channel) is not None:
            return [], f"{topic}/{channel} exists already"
        href = context.links.action("create_channel", topic=topic, channel=channel)
        return [Offer(name=f"Create channel {topic}/{channel}", href=href)], ""
    if found is not None and found.nodes:
        return [], f"{topic} exists already"
    return [Offer(name=f"Create topic {topic}", href=context.links.action("create_topic", topic=topic))], ""


# For the page of help

_HELP: Final = (
    (Verb.PAUSE, "billing", "a channel or topic"),
    (Verb.UNPAUSE, "billing", "a paused channel or topic"),
    (Verb.EMPTY, "billing", "a channel or topic: its messages are lost"),
    (Verb.DELETE, "billing", "a channel or topic"),
    (Verb.MOVE, "billing", "a channel to another place in the history"),
    (Verb.PUBLISH, "orders", "a message to a topic"),
    (Verb.CREATE, "topic orders", "a topic, or with topic/channel a channel"),
    (Verb.KICK, "billing", "requeues buried messages of a channel"),
    (Verb.DISCARD, "billing", "finishes buried messages of a channel"),
    (Verb.RETRY, "shop.charge", "failed jobs of a task"),
    (Verb.DRAIN, "n1", "a node, before you stop it"),
    (Verb.FORGET, "n1", "a silent node"),
    (Verb.ACKNOWLEDGE, "billing", "an incident"),
    (Verb.UNACKNOWLEDGE, "billing", "undoes that"),
    (Verb.MUTE, "billing", "an incident, for a while"),
    (Verb.UNMUTE, "billing", "undoes that"),
    (Verb.GO, "to orders", "leaves commands out; a kind, such as channel orders, leaves other kinds out"),
)


def help_lines() -> list[tuple[str, str]]:
    """Return an example of each command, and what it is for."""
    return [
        (f"{verb.value} {example}", text + (f" (also {', '.join(SYNONYMS[verb])})" if verb in SYNONYMS else ""))
        for verb, example, text in _HELP
    ]
