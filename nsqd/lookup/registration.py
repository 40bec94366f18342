"""What one nsqlookupd has been told of this node, and what it still has to be told.

This is not a queue of events. For each topic that may have changed, what was told is compared with what exists *now*.
So a burst of changes costs one comparison per topic, and nothing can overflow. After a reconnect, the same comparison
against "nothing told yet" gives the complete registration.

The comparison is by the broker's objects, not by their names. A topic that was deleted and created again in between is
a different object, and the nsqlookupd, which may have been told to forget the name or to hide it, hears of both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from nsqcommon.nsq_json import Fields, JsonError, read
from nsqcommon.wire.lookup import decode_identify_reply
from nsqcommon.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from nsqcommon.wire.lookup import PeerAddress

Words = tuple[str, ...]  # a command: REGISTER or UNREGISTER, a topic, perhaps a channel


class RegisteredTopic(Protocol):
    @property
    def channels(self) -> Mapping[str, object]: ...


class RegistrationRefused(Exception):
    """The peer does not want us, or is not an nsqlookupd."""


class RegistrationState:
    """The state of the registration with one nsqlookupd.

    `topics` is the broker's own mapping. Calls of `changed` between two connections have no effect.
    """

    def __init__(self, topics: Mapping[str, RegisteredTopic]) -> None:
        self._topics = topics
        self._told: dict[str, tuple[RegisteredTopic, dict[str, object]]] = {}
        self._in_doubt: OrderedDict[str, None] = OrderedDict()  # a dict's first key is slow to find after many pops
        self._commands: deque[Words] = deque()
        self._connected = False

    def connected(self) -> None:
        """Plan to register everything: a new connection knows nothing yet."""
        self._connected = True
        self._in_doubt = OrderedDict.fromkeys(self._topics)

    def disconnected(self) -> None:
        """Forget what was told, as every nsqlookupd does when a connection ends."""
        self._connected = False
        self._told.clear()
        self._in_doubt.clear()
        self._commands.clear()

    def changed(self, topic_name: str) -> None:
        """Note that this topic, or one of its channels, was created or deleted."""
        if self._connected:
            self._in_doubt[topic_name] = None

    def next_commands(self, limit: int) -> list[Words]:
        """Return up to `limit` commands that bring the peer up to date, and count them as told.

        Empty: it is up to date.
        """
        commands = self._commands
        while len(commands) < limit and self._in_doubt:
            name, _ = self._in_doubt.popitem(last=False)
            commands += self._differences(name)
        return [commands.popleft() for _ in range(min(limit, len(commands)))]

    def _differences(self, name: str) -> Iterator[Words]:
        topic = self._topics.get(name)
        told = self._told.get(name)
        if told is not None and told[0] is not topic:
            # Channels first, as in NSQ: an nsqlookupd told to UNREGISTER only the topic would keep its ephemeral
            # channels.
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
            yield "REGISTER", topic_name, name  # this registers the topic, too


def identified(reply: bytes) -> PeerAddress:
    """Return the addresses of the peer that answered IDENTIFY. Raises RegistrationRefused if the reply is not an nsqlookupd's."""
    address = decode_identify_reply(reply)
    if address is None:
        raise RegistrationRefused(f"answered IDENTIFY with {reply[:100]!r}")
    return address


def channels_in(answer: bytes) -> set[str]:
    """Return the channels listed by `/channels`, except those that must not be created.

    Raises RegistrationRefused if it is malformed.
    """
    try:
        names = Fields(read(answer)).items("channels")
    except JsonError as error:
        raise RegistrationRefused(f"answered with {answer[:100]!r}") from error
    return {name for name in names if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)}
