"""A client's publish commands: checks the parameters of PUB, MPUB and DPUB, publishes, and owes the client the OK.

outbox.py holds the OK until the log settles the receipt. With --ack=synced, that's after a sync, in
log/writing/unsynced.py. With --ack=written, the default, it's after the write, in log/topic_log.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqcommon.wire.commands import (
    HeadedPublication,
    HeadedPublications,
    Publications,
    PublishCommand,
    parse_decimal,
    to_signed64,
)
from nsqcommon.wire.extensions import is_valid_key
from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.names import decode_name
from nsqcommon.wire.quoting import quote
from nsqd.broker.topic import PublishRefused
from nsqd.client.work_budget import COST_OF_DEFERRAL, COST_OF_LOG, COST_OF_TOPIC, WorkBudget

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.broker.topic import Topic
    from nsqd.client.outbox import Outbox

_NANOSECONDS_PER_MS: Final = 1_000_000
_UINT64: Final = (1 << 64) - 1


class ClientPublisher:
    """Finds or creates topics, publishes to them, and queues the OKs in the outbox.

    A command takes two steps: `admit` checks the parameters before the body is read, and `publish` or `publish_many`
    carries out the command. We keep the topic for the next command, because most clients publish to a single topic.
    protocol.py checks the authorization.
    """

    __slots__ = (
        "_broker",
        "_delay_ms",
        "_max_defer_ms",
        "_outbox",
        "_topic",
        "_topic_raw",
        "_work_budget",
        "counts",
        "takes_keys",
    )

    def __init__(self, broker: Broker, outbox: Outbox, budget: WorkBudget, *, max_defer_ms: int) -> None:
        self._broker = broker
        self._outbox = outbox
        self._work_budget = budget
        self._max_defer_ms = max_defer_ms
        self.counts: dict[str, int] = {}  # messages published, by topic
        self._topic: Topic | None = None  # the topic of the last command; it may have been deleted
        self._topic_raw = b""  # its name, as received
        self._delay_ms = 0  # of the last DPUB
        self.takes_keys = False  # whether the client was granted the extension for keys

    @property
    def topic_name(self) -> str:
        return self._topic_raw.decode()

    def is_as_before(self, params: list[bytes]) -> bool:
        """Return whether this PUB or MPUB is sure to be valid: it has the last command's topic, and no invalid key."""
        topic = self._topic
        if len(params) < 2 or params[1] != self._topic_raw or topic is None or topic.closing:
            return False
        return len(params) == 2 or not self.takes_keys or is_valid_key(params[2])

    def admit(self, word: bytes, params: list[bytes]) -> None:
        """Check the parameters of PUB, MPUB or DPUB, and look up the topic."""
        if len(params) < (3 if word == b"DPUB" else 2):
            raise ProtocolError(Fault.INVALID, word + b" insufficient number of parameters")
        raw = params[1]
        if raw != self._topic_raw or self._topic is None or self._topic.closing:
            name = decode_name(raw)
            if name is None:
                # NSQ sends this code twice for MPUB, and clients may compare the text.
                prefix = b"E_BAD_TOPIC " if word == b"MPUB" else b""
                detail = prefix + word + b" topic name " + quote(raw) + b" is not valid"
                raise ProtocolError(Fault.BAD_TOPIC, detail)
            topic = self._broker.find(name)
            if topic is not None and topic not in self._broker.turn.unsealed:
                self._work_budget.spend(COST_OF_LOG)
            self._topic, self._topic_raw = topic, raw
        if word == b"DPUB":
            self._delay_ms = self._parse_delay(params[2])
        if self.takes_keys and (key := _key_of(word, params)) is not None and not is_valid_key(key):
            raise ProtocolError(Fault.INVALID, word + b" key " + quote(key) + b" is not valid")

    def make_topic(self) -> Topic:
        """Return the last command's topic. Create it if necessary."""
        topic = self._topic
        if topic is None or topic.closing:  # it may have been deleted before the body arrived
            topic = self._topic = self._broker.topic(self.topic_name)
            self._work_budget.spend(COST_OF_TOPIC)
        return topic

    def publish(self, command: PublishCommand) -> None:
        """Carry out PUB or DPUB."""
        word = command.params[0]
        delay_ms = 0
        if word == b"DPUB":
            delay_ms = self._delay_ms
            self._work_budget.spend(COST_OF_DEFERRAL)
        topic = self._topic
        if topic is None or topic.closing:
            topic = self.make_topic()
        try:
            key = (_key_of(word, command.params) or b"") if self.takes_keys else b""
            headers = command.headers if isinstance(command, HeadedPublication) else b""
            receipt = topic.publish_one(command.payload, delay_ms, key, headers)
        except PublishRefused as refused:
            raise _failed(word, refused.cause) from refused
        counts, name = self.counts, topic.name
        counts[name] = counts.get(name, 0) + 1
        self._outbox.owe(receipt, word, topic.feed)

    def publish_many(self, command: Publications) -> None:
        """Carry out MPUB. Its topic was created before the body was read."""
        topic = self._topic or self.make_topic()
        try:
            key = (_key_of(b"MPUB", command.params) or b"") if self.takes_keys else b""
            headers = command.headers if isinstance(command, HeadedPublications) else b""
            receipt = topic.publish(command.payload, command.offsets, key=key, headers=headers)
        except PublishRefused as refused:
            raise _failed(b"MPUB", refused.cause) from refused
        counts, name = self.counts, topic.name
        counts[name] = counts.get(name, 0) + len(command.offsets) - 1
        self._outbox.owe(receipt, b"MPUB", topic.feed)

    def _parse_delay(self, raw: bytes) -> int:
        delay_ms = parse_decimal(raw)
        if delay_ms is None:
            raise ProtocolError(Fault.INVALID, b"DPUB could not parse timeout " + raw)
        most = self._max_defer_ms
        duration = to_signed64(delay_ms * _NANOSECONDS_PER_MS & _UINT64)  # wraps around, like Go's time.Duration
        if not 0 <= duration <= most * _NANOSECONDS_PER_MS:
            raise ProtocolError(Fault.INVALID, f"DPUB timeout {delay_ms} out of range 0-{most}")
        return duration // _NANOSECONDS_PER_MS


def _key_of(word: bytes, params: list[bytes]) -> bytes | None:
    place = 3 if word == b"DPUB" else 2
    return params[place] if len(params) > place else None


def _failed(word: bytes, cause: str) -> ProtocolError:
    return ProtocolError(Fault(f"E_{word.decode()}_FAILED"), word + b" failed " + cause.encode())
