"""Finds messages by id or key. A thread searches the topic's log for those that aren't in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from nsqcommon.wire.log_record import KeyPlace
    from nsqd.broker.broker import Broker
    from nsqd.broker.topic import Topic
    from nsqd.http.history import HistoryReads
    from nsqd.http.history_source import TopicHistory

T = TypeVar("T")

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch


def parse_id(text: str) -> int:
    """Return the id of a message. Raises a 400."""
    if _is_id(text) is None:
        raise HttpError(400, "INVALID_ARG_ID")
    return int(text, 16)


class MessageSearch:
    """The searches. They raise a 503 if the disk can't be read."""

    def __init__(self, broker: Broker, reading: HistoryReads) -> None:
        self._broker = broker
        self._reading = reading

    async def sequence_of(self, topic: Topic, message_id: int) -> int | None:
        sequence = topic.deferred_sequence(message_id)
        if sequence is None:
            sequence = await self.in_log(topic, lambda topic_log: topic_log.sequence_of(message_id))
        return sequence

    async def newest_with(self, topic: Topic, key: bytes) -> tuple[int, int] | None:
        """Return the range [start, end) of the newest publish with this key, while nsqd remembers keys so long."""
        since = self._broker.turn.timestamp - self._broker.turn.keys.longest
        newest = await self.in_log(topic, lambda topic_log: _first_of(key, topic_log, since))
        return (newest[1], newest[1] + newest[2]) if newest is not None else None

    async def in_log(self, topic: Topic, look: Callable[[TopicHistory], T]) -> T | None:
        """Return the result of `look`, which runs in a thread. None: the topic has no log."""
        topic_log = self._reading.history.find(topic.name, synced=False)
        if topic_log is None:
            return None
        try:
            return await self._reading.in_thread(lambda: look(topic_log))
        except OSError as error:
            raise HttpError(503, "CANNOT_READ") from error


def _first_of(key: bytes, topic_log: TopicHistory, since: int) -> KeyPlace | None:
    return next((it for it in topic_log.keys(since=since) if it[0] == key), None)
