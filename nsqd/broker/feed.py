"""A topic as its channels see it."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqd.broker.store import TopicLog


# Not a subclass of `ABC`: that is a class of Python, and mypyc gives each object of its subclasses a `__dict__`.
class Feed(metaclass=ABCMeta):
    """A log, and how much of it belongs to the channels. A channel knows no more of its `Topic` than this."""

    def __init__(self, name: str, log: TopicLog, *, ephemeral: bool) -> None:
        self.name = name
        self.log = log
        self.ephemeral = ephemeral
        self.high_watermark = log.tail  # H: what lies before belongs to the channels

    @abstractmethod
    def let_go(self) -> None:
        """Tell the log what no channel needs any more."""

    @abstractmethod
    def rewind_to(self, sequence: int) -> None:
        """Tell the log, before it removes anything else, that a channel needs messages from here on once more."""

    @abstractmethod
    def drop_beyond_limits(self, arrived: int | None = None) -> None:
        """Drop the oldest messages of channels that have too many by their own bounds or by the topic's.

        `arrived`: where the messages begin that were just handed over.
        """

    @abstractmethod
    def delete_channel(self, name: str) -> bool:
        """Delete a channel; an ephemeral one asks for it when its last consumer leaves. Return False if unknown."""
