"""The pages of a list of messages that is ordered by time: a channel's deferred messages, and those in flight.

A line names its place in `after`, so that the next request can continue behind it. In a place are the id of this run, a
time and a sequence, for example `9f1c03aa,1500000,42`. The time is monotonic, and so means nothing after a restart.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError
from nsqd.http.lines import LINES, MOST_LINES
from nsqd.http.numbers import limit_argument

if TYPE_CHECKING:
    from nsqd.http.history import HistoryReads

_is_place: Final = re.compile(r"[0-9a-f]{8},[0-9]{1,18},[0-9]{1,19}", re.ASCII).fullmatch


class Listing:
    def __init__(self, reading: HistoryReads, find_log: Callable[[str, Mapping[str, str]], object]) -> None:
        """`find_log` raises HttpError if the argument `log` has another log's id."""
        self._reading = reading
        self._find_log = find_log
        self._run_id = secrets.token_hex(4)

    def summary(self, topic: str, count: int) -> dict[str, object]:
        """Return how many messages the list has, and the id of the log that their sequences refer to."""
        topic_log = self._reading.history.find(topic)
        return {"count": count, "log": topic_log.log_id if topic_log is not None else None}

    def page(self, topic: str, arguments: Mapping[str, str]) -> tuple[int, tuple[int, int]]:
        """Return the number of lines, and the (time, sequence) after which they begin.

        Raises a 400, or a 409 if the request refers to another log, or to a place from before a restart.
        """
        if "log" in arguments:
            self._find_log(topic, arguments)
        after = self._after(arguments.get("after", ""))
        return limit_argument(arguments, LINES, most=MOST_LINES), after

    def place(self, time: int, sequence: int) -> str:
        return f"{self._run_id},{time},{sequence}"

    def _after(self, text: str) -> tuple[int, int]:
        if not text:
            return -1, -1
        if _is_place(text) is None:
            raise HttpError(400, "INVALID_ARG_AFTER")
        run, time, sequence = text.split(",")
        if run != self._run_id:
            reason = "nsqd was restarted, so this place is no longer valid: list again from the beginning"
            raise HttpError(409, "STARTED_ANEW", details={"reason": reason})
        return int(time), int(sequence)
