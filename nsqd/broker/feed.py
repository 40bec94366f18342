"""A topic as its channels see it: the log, and the part of it that belongs to them.

It is separate from topic.py so that channel.py and ledger.py needn't import topic.py, which imports both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from nsqd.broker.store import TopicLog


@final
class TopicFeed:
    """The four fields of a topic that its channels and their ledgers read directly.

    Everything before `high_watermark` belongs to the channels. Only the topic moves it.
    """

    def __init__(self, name: str, log: TopicLog, *, ephemeral: bool) -> None:
        self.name: Final = name
        self.log: Final = log
        self.ephemeral: Final = ephemeral
        self.high_watermark = log.tail  # "H" in the docs
