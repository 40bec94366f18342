"""A topic as its channels see it: the log, and how far it belongs to them.

It stands apart from topic.py so that channel and ledger don't import the topic, which imports both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from nsqd.broker.store import TopicLog


@final
class TopicFeed:
    """Held by a channel and its ledger instead of the topic, because they only need these four fields.

    Everything before `high_watermark` belongs to the channels. Only the topic moves it.
    """

    def __init__(self, name: str, log: TopicLog, *, ephemeral: bool) -> None:
        self.name: Final = name
        self.log: Final = log
        self.ephemeral: Final = ephemeral
        self.high_watermark = log.tail  # "H" in the docs
