"""A topic as its channels see it: a log, and how much of it belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from nsqd.broker.store import TopicLog


@final
class TopicFeed:
    """Only the topic moves `high_watermark`. Everything before it belongs to the channels.

    A channel and its ledger hold this object, and not the topic: what the topic does is none of their business.
    """

    def __init__(self, name: str, log: TopicLog, *, ephemeral: bool) -> None:
        self.name: Final = name
        self.log: Final = log
        self.ephemeral: Final = ephemeral
        self.high_watermark = log.tail  # H in the documents
