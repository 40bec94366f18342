"""The endpoints of a topic.

As in NSQ, some of them don't check the name, and return 404 for an invalid one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.http_api import EMPTY, HttpError, Request, Response
from nsqd.http.names import check_name, find_topic, topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsqd.broker.topic import Topic
    from nsqd.http.calls import Calls


class TopicEndpoints:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._broker = calls.broker

    async def create(self, request: Request) -> Response:
        name = topic_name(request)
        check_name(name, "INVALID_TOPIC")
        with self._calls.journaled_turn():
            self._broker.topic(name)
        return EMPTY

    async def delete(self, request: Request) -> Response:
        name = topic_name(request)
        with self._calls.journaled_turn():
            found = self._broker.delete_topic(name)
        if not found:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        await self._calls.durable()
        return EMPTY

    async def empty(self, request: Request) -> Response:
        name = topic_name(request)
        check_name(name, "INVALID_TOPIC")
        return await self._do(name, lambda topic: topic.empty())

    async def pause(self, request: Request) -> Response:
        return await self._do(topic_name(request), lambda topic: topic.pause())

    async def unpause(self, request: Request) -> Response:
        return await self._do(topic_name(request), lambda topic: topic.unpause())

    async def _do(self, name: str, action: Callable[[Topic], None]) -> Response:
        with self._calls.journaled_turn():
            action(find_topic(self._broker, name))
        await self._calls.durable()
        return EMPTY
