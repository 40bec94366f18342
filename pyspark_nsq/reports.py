"""Reads Spark's reports on micro-batches: a query's progress, lag, and skipped messages. Pure functions.

Messages are counted by offsets, because a query may have one row for a whole range of messages. For values without a
field in Spark, the source uses `latestOffset`, which Spark shows and never reads back: the nodes that are `missing`,
and the number of messages that were skipped (`gap`) because retention removed them or their lane is gone.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

_MOST_SEEN: Final = 1000  # ends of a lane to keep, with their times, beyond the query's position
_COMMITTING: Final = ("walCommit", "commitBatch", "commitOffsets")  # Spark's names for the parts of a batch

Report = Mapping[str, Any]


def lanes_of(offsets: object, which: str = "lanes") -> dict[str, int]:
    """Return the sequence of each lane in an offset, JSON text or parsed; empty if it isn't our offset."""
    return {str(lane): int(place) for lane, place in _offset(offsets).get(which, {}).items()}


def rows_of(report: Report) -> int:
    """Return the number of messages in the batch.

    If the start offset doesn't have a lane, the `begins` of the end offset say where the lane begins.
    """
    ranges = [it for source in report.get("sources", ()) for it in _ranges(source)]
    return sum(end - begin for begin, end in ranges) if ranges else int(report.get("numInputRows", 0))


def _ranges(source: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    begins = lanes_of(source.get("endOffset"), "begins") | lanes_of(source.get("startOffset"))
    for lane, end in lanes_of(source.get("endOffset")).items():
        if lane in begins:
            yield min(begins[lane], end), end


def reached_by(report: Report) -> dict[str, int]:
    """Return the next sequence of each lane after the batch."""
    return _of_all(report, "endOffset")


def ends_in(report: Report) -> dict[str, int]:
    """Return where each lane ended when the batch was planned."""
    return _of_all(report, "latestOffset")


def lag_of(report: Report) -> int:
    """Return how many messages the lanes have after the batch's end."""
    reached = reached_by(report)
    return sum(max(0, end - reached.get(lane, 0)) for lane, end in ends_in(report).items())


def late_rows_of(report: Report) -> int:
    """Return how many rows a watermark has dropped because their window was closed."""
    return sum(int(it.get("numRowsDroppedByWatermark", 0)) for it in report.get("stateOperators", ()))


def state_rows_of(report: Report) -> int:
    return sum(int(it.get("numRowsTotal", 0)) for it in report.get("stateOperators", ()))


def gap_of(report: Report) -> int:
    """Return how many messages the batch left out, as far as the source knew when it planned the batch."""
    return sum(int(_offset(it.get("latestOffset")).get("gap", 0)) for it in report.get("sources", ()))


def missing_in(report: Report) -> dict[str, str]:
    """Return the known nodes that don't answer, and why."""
    sources = [_offset(it.get("latestOffset")).get("missing", {}) for it in report.get("sources", ())]
    return {str(node): str(why) for missing in sources for node, why in missing.items()}


def seconds_of(report: Report) -> float:
    return float(report.get("durationMs", {}).get("triggerExecution", 0)) / 1000


def commit_seconds_of(report: Report) -> float:
    """Return how long Spark took to store its plan and its commit, without the sink's own commit."""
    return sum(float(report.get("durationMs", {}).get(part, 0)) for part in _COMMITTING) / 1000


def time_of(report: Report) -> float | None:
    """Return when the batch was planned, in seconds since 1970; None if the report doesn't say."""
    try:
        return datetime.fromisoformat(str(report.get("timestamp"))).timestamp()
    except ValueError:
        return None


class EndTimes:
    """Remembers when a lane had which end.

    This bounds the age of the first unread message, without a query to nsqd.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []
        self._reached = 0

    def note(self, now: float, end: int, reached: int) -> None:
        """Record that at the time `now` the lane ends at `end` and the query is at `reached`."""
        if self._ends and end == self._ends[-1]:
            self._times[-1] = now
        else:
            self._times.append(now)
            self._ends.append(end)
        self._reached = reached
        passed = bisect_right(self._ends, reached) - 1
        if passed > 0:
            del self._times[:passed], self._ends[:passed]
        if len(self._ends) > _MOST_SEEN:
            del self._times[1:-1:2], self._ends[1:-1:2]

    def lag(self, now: float) -> float | None:
        """Return how many seconds ago the lane was last seen to end at the query's position.

        The first unread message is no older than that.

        None: the lane was never seen to end there, for example after a start with much to read.
        """
        if not self._ends or self._reached >= self._ends[-1]:
            return 0.0
        return max(0.0, now - self._times[0]) if self._ends[0] <= self._reached else None


def longest(lags: Iterable[float | None]) -> float | None:
    """Return the longest lag, or None when one of them is unknown, because that one may be the longest."""
    found = list(lags)
    return None if any(it is None for it in found) else max((it for it in found if it is not None), default=0.0)


def _of_all(report: Report, which: str) -> dict[str, int]:
    return {lane: place for it in report.get("sources", ()) for lane, place in lanes_of(it.get(which)).items()}


def _offset(written: object) -> Mapping[str, Any]:
    """Return an offset as a dictionary. Spark's report has it as JSON text or, in some versions, as an object."""
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:  # another source's offset
            return {}
    return written if isinstance(written, dict) else {}
