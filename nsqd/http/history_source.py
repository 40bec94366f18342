"""The interface through which HTTP reads a topic's log. `nsqd.log.history` implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nsqcommon.wire.history import Gap, Records
    from nsqcommon.wire.log_record import KeyPlace


class LogRangeReader(Protocol):
    """Reads a range of a log. Its methods block, so they run in a thread."""

    next: int
    end: int

    def read(self) -> Records | Gap | None: ...

    def close(self) -> None: ...


class TopicHistory(Protocol):
    """A log at a point in time. The methods, except for `still_has`, block, so call them in a thread."""

    log_id: str
    first: int
    next: int
    retention_time: int
    retention_bytes: int

    @property
    def segments(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    def still_has(self, sequence: int) -> bool: ...

    def times(self) -> tuple[int, int] | None: ...

    def sequence_at(self, timestamp: int) -> int: ...

    def sequence_of(self, message_id: int) -> int | None: ...

    def sequence_in_order(self, message_id: int) -> int | None: ...

    def keys(self, *, since: int = 0, deferred: bool = False) -> Iterator[KeyPlace]: ...

    def points(self, start: int, end: int, most: int) -> Sequence[tuple[int, int, int]]: ...

    def open(self, start: int, end: int, chunk: int) -> LogRangeReader: ...


class HistorySource(Protocol):
    """Finds the logs of topics, for reading."""

    @property
    def node(self) -> str: ...

    def find(self, topic: str, *, synced: bool = True) -> TopicHistory | None: ...

    def follow(self, follower: Callable[[str], None]) -> None:
        """Call `follower` with a topic's name whenever its log grows or disappears."""
