"""The endpoint that finds a message by its id, whatever its topic.

An id leads to its place in a log by bisection, because ids ascend. That takes a few small reads for each topic, in a
thread, and some topics at a time: nsqd may have thousands, and may stop meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import ClientGone, HttpError, Request, Response, json
from nsqd.http.history import MOST_READERS
from nsqd.http.names import check_lasting, find_topic, topic_argument

if TYPE_CHECKING:
    from nsqd.broker.broker import Broker
    from nsqd.http.history import HistoryReads
    from nsqd.http.history_source import TopicHistory

_TOPICS_AT_ONCE: Final = 20
_MOST_THOROUGH: Final = 2  # searches of whole logs: each may have a thread for minutes, and all readers share a few

_is_id: Final = re.compile(r"[0-9a-f]{16}", re.ASCII).fullmatch


class FindEndpoint:
    def __init__(self, broker: Broker, reading: HistoryReads) -> None:
        self._broker = broker
        self._reading = reading
        self._thorough = 0  # searches of whole logs that are running

    async def find(self, request: Request) -> Response:
        """Return where the history has the message with this id: in all topics, or thoroughly in the named one."""
        arguments = request.query()
        if "id" not in arguments:
            raise HttpError(400, "MISSING_ARG_ID")
        if _is_id(arguments["id"]) is None:
            raise HttpError(400, "INVALID_ARG_ID")
        message_id, is_thorough = int(arguments["id"], 16), "topic" in arguments
        topics = [self._named(request)] if is_thorough else list(self._broker.topics)
        reading = self._reading
        if reading.readers >= MOST_READERS or (is_thorough and self._thorough >= _MOST_THOROUGH):
            raise HttpError(503, "TOO_MANY_READERS")
        found: list[dict[str, object]] = []
        unread: list[str] = []
        reading.readers += 1
        self._thorough += is_thorough
        try:
            for at in range(0, len(topics), _TOPICS_AT_ONCE):
                if request.is_gone:
                    raise ClientGone
                if reading.stopping:
                    unread += topics[at:]
                    break
                logs = self._logs(topics[at : at + _TOPICS_AT_ONCE])
                places, refused = await reading.in_thread(partial(_look, logs, message_id, is_thorough))
                found += places
                unread += refused
        finally:
            reading.readers -= 1
            self._thorough -= is_thorough
        return json({"node": reading.history.node, "messages": found, "unread": unread})

    def _named(self, request: Request) -> str:
        name = topic_argument(request)
        check_lasting(name, "")
        return find_topic(self._broker, name).name

    def _logs(self, topics: Sequence[str]) -> list[tuple[str, TopicHistory]]:
        """Return the logs of these topics. Ephemeral ones have none."""
        found = ((topic, self._reading.history.find(topic)) for topic in topics)
        return [(topic, topic_log) for topic, topic_log in found if topic_log is not None]


def _look(
    logs: Sequence[tuple[str, TopicHistory]], message_id: int, is_thorough: bool
) -> tuple[list[dict[str, object]], list[str]]:
    """Return the places of the message, and the topics that the disk refuses to read. Runs in a thread."""
    found: list[dict[str, object]] = []
    refused: list[str] = []
    for topic, topic_log in logs:
        try:
            look = topic_log.sequence_of if is_thorough else topic_log.sequence_in_order
            sequence = look(message_id)
        except OSError:
            refused.append(topic)
            continue
        if sequence is not None and topic_log.first <= sequence < topic_log.next:
            found.append({"topic": topic, "log": topic_log.log_id, "sequence": sequence})
    return found, refused
