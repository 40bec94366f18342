"""What one nsqlookupd has been told of this node, and what it still has to be told.

Not a queue of events: for each topic that may have changed, what was told is compared with what there is *now*. So a burst
of changes costs one look at each topic, nothing can overflow, and after a connection has broken the same comparison, with
nothing told, is the complete registration.

"What there is" are the broker's own objects and not their names: a topic that was deleted and made again in between is
another one, and the nsqlookupd, which may have been told to forget the name or to hide it, hears of both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from common.nsq_json import Fields, JsonError, read
from common.wire.lookup import decode_identify_reply
from common.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from common.wire.lookup import PeerAddress

Words = tuple[str, ...]  # a command: REGISTER or UNREGISTER, a topic, perhaps a channel


class Topic(Protocol):
    @property
    def channels(self) -> Mapping[str, object]: ...


class Refused(Exception):
    """The peer does not want us, or is no nsqlookupd."""


class Registration:
    """`topics` is the broker's mapping itself. Between connections, what `changed` says is of no interest."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._told: dict[str, tuple[Topic, dict[str, object]]] = {}
        self._in_doubt: OrderedDict[str, None] = OrderedDict()  # a dict's first key is slow to find after many pops
        self._commands: deque[Words] = deque()
        self._connected = False

    def connected(self) -> None:
        """The peer knows nothing yet."""
        self._connected = True
        self._in_doubt = OrderedDict.fromkeys(self._topics)

    def disconnected(self) -> None:
        """The peer forgets what it was told, as every nsqlookupd does when a connection ends."""
        self._connected = False
        self._told.clear()
        self._in_doubt.clear()
        self._commands.clear()

    def changed(self, topic_name: str) -> None:
        """This topic, or one of its channels, came or went."""
        if self._connected:
            self._in_doubt[topic_name] = None

    def next_commands(self, limit: int) -> list[Words]:
        """Up to `limit` commands that make the peer know more of what there is; they count as told. None left: empty."""
        commands = self._commands
        while len(commands) < limit and self._in_doubt:
            name, _ = self._in_doubt.popitem(last=False)
            commands += self._differences(name)
        return [commands.popleft() for _ in range(min(limit, len(commands)))]

    def _differences(self, name: str) -> Iterator[Words]:
        topic = self._topics.get(name)
        told = self._told.get(name)
        if told is not None and told[0] is not topic:
            # Channels first, as NSQ does: by UNREGISTER of the topic alone an nsqlookupd would not forget ephemeral ones.
            for channel in told[1]:
                yield "UNREGISTER", name, channel
            yield "UNREGISTER", name
            del self._told[name]
            told = None
        if topic is not None:
            if told is None:
                told = self._told[name] = (topic, {})
                if not topic.channels:
                    yield "REGISTER", name
            yield from _channel_differences(name, told[1], topic.channels)


def _channel_differences(topic_name: str, told: dict[str, object], channels: Mapping[str, object]) -> Iterator[Words]:
    for name in [name for name, channel in told.items() if channels.get(name) is not channel]:
        del told[name]
        yield "UNREGISTER", topic_name, name
    for name, channel in channels.items():
        if name not in told:
            told[name] = channel
            yield "REGISTER", topic_name, name  # which registers the topic, too


def identified(reply: bytes) -> PeerAddress:
    """How the peer that answered IDENTIFY can be reached. Refused when the answer is not what an nsqlookupd says."""
    address = decode_identify_reply(reply)
    if address is None:
        raise Refused(f"answered IDENTIFY with {reply[:100]!r}")
    return address


def channels_in(answer: bytes) -> set[str]:
    """What `/channels` says, without the names that a new topic must not get. Refused when it says something else."""
    try:
        names = Fields(read(answer)).items("channels")
    except JsonError as error:
        raise Refused(f"answered with {answer[:100]!r}") from error
    return {name for name in names if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)}
