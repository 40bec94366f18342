"""The endpoints for readers of a log without a channel, such as Spark. They report positions, and we show their lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import EMPTY, HttpError, Request, Response
from nsqd.http.names import topic_argument
from nsqd.readers import LONGEST_REPORT, BadReport, LogConsumer, Readers, described, parse_report

if TYPE_CHECKING:
    from nsqd.http.history_source import HistorySource, TopicHistory

_FEWEST_POINTS: Final = 6
_NANOSECONDS: Final = 1e9


class ReaderEndpoints:
    def __init__(self, readers: Readers, find: Callable[[str, str], TopicHistory], wall: Callable[[], int]) -> None:
        """`find(topic, log)` returns the log or raises HttpError. `wall` returns nanoseconds since 1970."""
        self._readers = readers
        self._find = find
        self._wall = wall

    async def report(self, request: Request) -> Response:
        topic = topic_argument(request)
        body = await request.read(LONGEST_REPORT)
        try:
            if len(body) > LONGEST_REPORT:
                raise BadReport(f"more than {LONGEST_REPORT} bytes")
            report = parse_report(body)
        except BadReport as error:
            raise HttpError(400, "INVALID_BODY", details={"reason": str(error)}) from None
        topic_log = self._find(topic, report.log)
        if report.sequence > topic_log.next:
            raise HttpError(
                400, "BEYOND_END", details={"log": topic_log.log_id, "first": topic_log.first, "next": topic_log.next}
            )
        self._readers.heard(topic, report, self._wall())
        return EMPTY

    async def forget(self, request: Request) -> Response:
        topic, arguments = topic_argument(request), request.query()
        if "name" not in arguments:
            raise HttpError(400, "MISSING_ARG_NAME")
        if not self._readers.forget(topic, arguments["name"], arguments.get("into", "")):
            raise HttpError(404, "READER_NOT_FOUND")
        return EMPTY


def lag(reader: LogConsumer, topic_log: TopicHistory) -> int:
    """Return the number of messages in the log that the reader hasn't committed."""
    return max(0, topic_log.next - reader.place(topic_log.first, topic_log.log_id))


def describe_lags(readers: Iterable[LogConsumer], topic_log: TopicHistory) -> list[dict[str, object]]:
    """Return each reader's lag in messages, time and bytes, for `/topic/log`. Blocks on the disk."""
    surveyed: dict[int, tuple[int, int] | None] = {}  # by sequence, because many readers share one near the end
    found: list[dict[str, object]] = []
    for reader in readers:
        count, place = lag(reader, topic_log), reader.place(topic_log.first, topic_log.log_id)
        if count and place not in surveyed:
            surveyed[place] = _survey(topic_log, place)
        since, size = (surveyed[place] or (None, None)) if count else (None, 0)
        found.append(
            {
                **described(reader),
                "behind": count,
                "behind_bytes": size,
                "behind_since": since,
                "missed": reader.missed(topic_log.first, topic_log.log_id),
            }
        )
    return found


def _survey(topic_log: TopicHistory, place: int) -> tuple[int, int] | None:
    """Return the publish time of the message at `place`, and the number of bytes from there to the end.

    Returns None if the disk can't be read.
    """
    try:
        points = topic_log.points(place, topic_log.next, _FEWEST_POINTS)
    except OSError:
        return None
    return (points[0][1], points[-1][2]) if points else None


def lags(readers: Readers, history: HistorySource) -> Iterator[tuple[str, LogConsumer, int]]:
    """Yield (topic, reader, lag in messages) for each reader whose log still exists."""
    for topic in readers.topics:
        topic_log = history.find(topic)
        if topic_log is not None:
            yield from ((topic, reader, lag(reader, topic_log)) for reader in readers.of(topic))
