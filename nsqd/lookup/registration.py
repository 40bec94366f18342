"""The topics and channels registered with one nsqlookupd, and the commands that bring it up to date.

This is not a queue of events. For each topic that may have changed, we compare the registered state with the current
state. So a burst of changes costs one comparison per topic, and no queue can overflow. After a reconnect, the same
comparison against an empty state yields the complete registration.

We compare the broker's objects, not their names. For example, a topic that was deleted and created again is a
different object, so we send UNREGISTER and REGISTER. Otherwise nsqlookupd may keep a tombstone that hides the new
topic.
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
    """The peer rejected us, is too slow, or isn't an nsqlookupd."""


class RegistrationState:
    """The state of the registration with one nsqlookupd. `topics` is the broker's live mapping."""

    def __init__(self, topics: Mapping[str, RegisteredTopic]) -> None:
        self._topics = topics
        self._registered: dict[str, tuple[RegisteredTopic, dict[str, object]]] = {}
        # Topics to compare. Not a plain dict: after many pops from its front, finding its first key is slow.
        self._pending: OrderedDict[str, None] = OrderedDict()
        self._commands: deque[Words] = deque()
        self._connected = False

    def connected(self) -> None:
        """Plan to register everything, because nsqlookupd keeps nothing between two connections."""
        self._connected = True
        self._pending = OrderedDict.fromkeys(self._topics)

    def disconnected(self) -> None:
        """Reset to the empty state. nsqlookupd forgets our registrations when the connection ends."""
        self._connected = False
        self._registered.clear()
        self._pending.clear()
        self._commands.clear()

    def changed(self, topic_name: str) -> None:
        """Mark a topic for comparison: it or one of its channels was created or deleted. No-op if disconnected."""
        if self._connected:
            self._pending[topic_name] = None

    def next_commands(self, limit: int) -> list[Words]:
        """Return up to `limit` commands that bring the peer up to date, or an empty list if it already is.

        You must send them, because we count them as sent.
        """
        commands = self._commands
        while len(commands) < limit and self._pending:
            name, _ = self._pending.popitem(last=False)
            commands += self._differences(name)
        return [commands.popleft() for _ in range(min(limit, len(commands)))]

    def _differences(self, name: str) -> Iterator[Words]:
        topic = self._topics.get(name)
        registered = self._registered.get(name)
        if registered is not None and registered[0] is not topic:
            # Channels first, as in NSQ. If we only unregister the topic, nsqlookupd keeps its ephemeral channels.
            for channel in registered[1]:
                yield "UNREGISTER", name, channel
            yield "UNREGISTER", name
            del self._registered[name]
            registered = None
        if topic is not None:
            if registered is None:
                registered = self._registered[name] = (topic, {})
                if not topic.channels:
                    yield "REGISTER", name
            yield from _channel_differences(name, registered[1], topic.channels)


def _channel_differences(
    topic_name: str, registered: dict[str, object], channels: Mapping[str, object]
) -> Iterator[Words]:
    for name in [name for name, channel in registered.items() if channels.get(name) is not channel]:
        del registered[name]
        yield "UNREGISTER", topic_name, name
    for name, channel in channels.items():
        if name not in registered:
            registered[name] = channel
            yield "REGISTER", topic_name, name  # also registers the topic


def address_in(reply: bytes) -> PeerAddress:
    """Return the addresses in a reply to IDENTIFY. Raises RegistrationRefused if it isn't from an nsqlookupd."""
    address = decode_identify_reply(reply)
    if address is None:
        raise RegistrationRefused(f"answered IDENTIFY with {reply[:100]!r}")
    return address


def channels_in(answer: bytes) -> set[str]:
    """Return the valid channels in a response of `/channels`, except ephemeral ones. Raises RegistrationRefused."""
    try:
        names = Fields(read(answer)).items("channels")
    except JsonError as error:
        raise RegistrationRefused(f"answered with {answer[:100]!r}") from error
    return {name for name in names if isinstance(name, str) and is_valid_name(name) and not is_ephemeral(name)}
