"""The argument `topic` of a request about one topic's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.http_api import HttpError
from common.wire.names import is_valid_name

if TYPE_CHECKING:
    from common.http_api import Request


def topic_argument(request: Request) -> str:
    """Return the argument `topic` of a request. Raises a 400 if it is missing or not a valid name."""
    topic = request.query().get("topic")
    if topic is None:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    return topic
