"""What Spark's report on a micro-batch says about topics: how far, how late, what is left out. Pure, from JSON to numbers.

Rows are counted by offsets, as a query may have a row for a whole range of messages. What the source knows and Spark has no
place for stands in `latestOffset`, which is shown and never read back: nodes that are `missing`, and messages that are
skipped (`gap`) because retention removed them or their lane is gone.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

_MOST_SEEN: Final = 1000  # places of a lane's end that are kept, beyond where the query stands
_COMMITTING: Final = ("walCommit", "commitBatch", "commitOffsets")  # as Spark names the parts of a batch

Report = Mapping[str, Any]


def lanes_of(offsets: object, which: str = "lanes") -> dict[str, int]:
    """The sequence of each lane in an offset, as JSON or as its text; none where there is no offset of ours."""
    return {str(lane): int(place) for lane, place in _offset(offsets).get(which, {}).items()}


def rows_of(report: Report) -> int:
    """How many messages the batch took; where a lane begins that its start does not know, its end says."""
    ranges = [it for source in report.get("sources", ()) for it in _ranges(source)]
    return sum(end - begin for begin, end in ranges) if ranges else int(report.get("numInputRows", 0))


def _ranges(source: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    begins = lanes_of(source.get("endOffset"), "begins") | lanes_of(source.get("startOffset"))
    for lane, end in lanes_of(source.get("endOffset")).items():
        if lane in begins:
            yield min(begins[lane], end), end


def reached_by(report: Report) -> dict[str, int]:
    """The next sequence of each lane, after the batch."""
    return _of_all(report, "endOffset")


def ends_in(report: Report) -> dict[str, int]:
    """The end of each lane, when the batch was planned."""
    return _of_all(report, "latestOffset")


def lag_of(report: Report) -> int:
    """How many messages the lanes have beyond what the batch took."""
    reached = reached_by(report)
    return sum(max(0, end - reached.get(lane, 0)) for lane, end in ends_in(report).items())


def late_rows_of(report: Report) -> int:
    """Rows that a watermark has dropped, because their window was closed."""
    return sum(int(it.get("numRowsDroppedByWatermark", 0)) for it in report.get("stateOperators", ()))


def state_rows_of(report: Report) -> int:
    return sum(int(it.get("numRowsTotal", 0)) for it in report.get("stateOperators", ()))


def gap_of(report: Report) -> int:
    """Messages that the batch left out, as far as the source knew when it was planned."""
    return sum(int(_offset(it.get("latestOffset")).get("gap", 0)) for it in report.get("sources", ()))


def missing_in(report: Report) -> dict[str, str]:
    """Nodes that are known and do not answer, and why."""
    sources = [_offset(it.get("latestOffset")).get("missing", {}) for it in report.get("sources", ())]
    return {str(node): str(why) for missing in sources for node, why in missing.items()}


def seconds_of(report: Report) -> float:
    return float(report.get("durationMs", {}).get("triggerExecution", 0)) / 1000


def commit_seconds_of(report: Report) -> float:
    """How long writing down what was planned and what was done took; a sink's own commit is not in it."""
    return sum(float(report.get("durationMs", {}).get(part, 0)) for part in _COMMITTING) / 1000


def time_of(report: Report) -> float | None:
    """When the batch was planned, in seconds since 1970."""
    try:
        return datetime.fromisoformat(str(report.get("timestamp"))).timestamp()
    except ValueError:
        return None


class EndTimes:
    """When a lane ended where: from that follows how old the first unread message is, without asking anybody."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []
        self._reached = 0

    def note(self, now: float, end: int, reached: int) -> None:
        """`now` the lane ends at `end`, and the query has come to `reached`."""
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
        """Seconds since the lane was seen to end where the query stands: the first unread message is no older.

        None: it was never seen there, as after a start with much to read.
        """
        if not self._ends or self._reached >= self._ends[-1]:
            return 0.0
        return max(0.0, now - self._times[0]) if self._ends[0] <= self._reached else None


def longest(lags: Iterable[float | None]) -> float | None:
    """None when one of them is not known: that one may be the longest."""
    found = list(lags)
    return None if any(it is None for it in found) else max((it for it in found if it is not None), default=0.0)


def _of_all(report: Report, which: str) -> dict[str, int]:
    return {lane: place for it in report.get("sources", ()) for lane, place in lanes_of(it.get(which)).items()}


def _offset(written: object) -> Mapping[str, Any]:
    """Spark has an offset as a text or, in some versions, as what that text means."""
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except ValueError:  # of another source
            return {}
    return written if isinstance(written, dict) else {}
