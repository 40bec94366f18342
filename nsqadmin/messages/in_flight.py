"""Messages in flight, one of the kinds of lists: who has which message, since when and until when.

A node's times are by its clock. With their number it says what that clock shows, so we know all times by ours, to a few
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import TYPE_CHECKING, Any, Final

from nsqadmin.messages.jobs import QueuedJob, job_in, without_job
from nsqadmin.messages.lists import NANOSECOND, Look, Sight, text_in, whole_in
from nsqadmin.messages.lists_by_time import ListByTime, LoggedCount, TimedMessage, words_about
from nsqadmin.messages.reading import headers_in

if TYPE_CHECKING:
    from nsqadmin.cluster.model import ChannelNode
    from nsqadmin.messages.model import Message

_NO_SEQUENCE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInFlight(LoggedCount):
    """The number of messages in flight of the channel on one node."""

    clock_ahead: float = 0.0  # seconds that its clock is ahead of ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The consumer that has a message."""

    client_id: str
    hostname: str
    remote_address: str
    user_agent: str
    version: str  # HTTP: the message is leased
    is_gone: bool = False  # it has disconnected, and the message waits until it times out

    @property
    def name(self) -> str:
        """Its name in addresses; see `name_of_consumer`."""
        return name_of_consumer(self.version, self.client_id, self.remote_address)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInFlight(TimedMessage):
    """One message in flight."""

    consumer: Holder
    since: float  # when it was delivered, by our clock, like all times here
    age: float  # seconds since then
    deadline: float  # when it times out
    last_touch: float | None = None  # when the consumer last asked for more time; None: never
    published: float
    size: int | None = None  # None: it can't be read
    key: str = ""
    group: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_withheld: bool = False  # the user may not see its key, group and headers

    @property
    def at(self) -> float:
        return self.since

    @property
    def pick(self) -> str:
        """No name: what a consumer has can't be selected for an action."""
        return ""

    @property
    def known_sequence(self) -> int | None:
        """Its sequence in the history; None: its topic has none."""
        return self.sequence if self.sequence != _NO_SEQUENCE else None

    @property
    def left(self) -> float:
        """Seconds until it times out; below 0 if it should have already."""
        return self.deadline - self.since - self.age

    @property
    def since_touch(self) -> float | None:
        """Seconds since its last touch; None: it was never touched."""
        return None if self.last_touch is None else max(0.0, self.since + self.age - self.last_touch)

    @property
    def job(self) -> QueuedJob | None:
        return job_in(self.headers)

    @property
    def other_headers(self) -> Mapping[str, str]:
        return without_job(self.headers)

    def seen(self, sight: Sight) -> MessageInFlight:
        """Hide what only users who may see messages see, as `Looking` does."""
        if sight.is_whole:
            return self
        return replace(self, key="", group="", headers={}, is_withheld=bool(self.key or self.group or self.headers))


class InFlight(ListByTime[NodeInFlight, MessageInFlight]):
    """The kind of messages that the consumers of a channel have."""

    path = "/channel/inflight"
    words = words_about("messages in flight")

    def __init__(self, wall: Callable[[], float] = time) -> None:
        """`wall` returns seconds since 1970."""
        self._wall = wall

    def last_known(self, row: ChannelNode, error: str) -> NodeInFlight:
        return NodeInFlight(node=row.node, count=row.in_flight_count, error=error)

    def count_in(self, node: str, answers: Sequence[Any]) -> NodeInFlight:
        (raw,) = answers
        ahead = whole_in(raw["now"]) * NANOSECOND - self._wall()
        return NodeInFlight(node=node, count=whole_in(raw["count"]), log=text_in(raw["log"] or ""), clock_ahead=ahead)

    def arguments(self, look: Look) -> dict[str, str]:
        return {"client": look.client}

    def line_in(
        self, node: NodeInFlight, line: Mapping[str, Any], message: Message | None, *, is_wanted: bool
    ) -> MessageInFlight:
        def ours(timestamp: Any) -> float:
            return whole_in(timestamp) * NANOSECOND - node.clock_ahead

        since = ours(line["since"])
        return MessageInFlight(
            node=node.node,
            log=node.log,
            sequence=whole_in(line["sequence"]) if "sequence" in line else _NO_SEQUENCE,
            id=text_in(line["id"]),
            attempts=whole_in(line["attempts"]),
            consumer=_holder_in(line["consumer"]),
            since=since,
            age=max(0.0, self._wall() - since),
            deadline=ours(line["deadline"]),
            last_touch=ours(line["last_touch"]) if "last_touch" in line else None,
            published=ours(line["timestamp"]),
            after=text_in(line["after"]),
            size=whole_in(line["size"]) if "size" in line else None,
            key=text_in(line.get("key", "")),
            group=text_in(line.get("group", "")),
            headers=headers_in(line.get("headers", {})),
            unread=text_in(line.get("unread", "")),
            is_wanted=is_wanted,
        )


IN_FLIGHT: Final = InFlight()


def name_of_consumer(version: str, client_id: str, remote_address: str) -> str:
    """Return the name by which nodes find the messages of one consumer: its address, or over HTTP its client id.

    A consumer over HTTP has another address with each request.
    """
    return client_id if version == "HTTP" else remote_address


def _holder_in(raw: Mapping[str, Any]) -> Holder:
    """Parse a consumer. Raise KeyError, TypeError, AttributeError."""
    return Holder(
        client_id=text_in(raw["client_id"]),
        hostname=text_in(raw["hostname"]),
        remote_address=text_in(raw["remote_address"]),
        user_agent=text_in(raw["user_agent"]),
        version=text_in(raw["version"]),
        is_gone=raw.get("gone") is True,
    )
