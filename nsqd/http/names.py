"""Reads the names of topics and channels in a request, and finds the broker's objects for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.http_api import HttpError
from nsqcommon.wire.names import is_ephemeral, is_valid_name

if TYPE_CHECKING:
    from nsqcommon.http_api import Request
    from nsqd.broker.broker import Broker
    from nsqd.broker.channel import Channel
    from nsqd.broker.topic import Topic


def topic_argument(request: Request) -> str:
    """Return the argument `topic`. Raises a 400 if it is missing or not a valid name."""
    topic = topic_name(request)
    check_name(topic, "INVALID_ARG_TOPIC")
    return topic


def topic_name(request: Request) -> str:
    """Return the argument `topic`, valid or not. Raises a 400 if it is missing."""
    name = request.query().get("topic")
    if name is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    return name


def channel_argument(request: Request) -> tuple[str, str]:
    """Return the arguments `topic` and `channel`. Raises a 400 if one is missing or not a valid name."""
    topic = topic_argument(request)
    channel = request.query().get("channel")
    if channel is None:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    check_name(channel, "INVALID_ARG_CHANNEL")
    return topic, channel


def check_name(name: str, code: str) -> None:
    if not is_valid_name(name):
        raise HttpError(400, code)


def find_topic(broker: Broker, name: str) -> Topic:
    topic = broker.find(name)
    if topic is None:
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return topic


def find_channel(broker: Broker, topic: str, name: str) -> Channel:
    channel = find_topic(broker, topic).channels.get(name)
    if channel is None:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    return channel


def check_lasting(topic: str, channel: str) -> None:
    """Raise a 400 if the channel or its topic is ephemeral."""
    if is_ephemeral(topic):
        raise HttpError(
            400, "EPHEMERAL_TOPIC", details={"reason": "an ephemeral topic is not on disk and has no history"}
        )
    if is_ephemeral(channel):
        raise HttpError(400, "EPHEMERAL_CHANNEL", details={"reason": "an ephemeral channel keeps no place in history"})
