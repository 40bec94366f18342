"""Takes messages back or moves them as a request does, slice by slice, without others in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsqd.broker.cancel_and_reschedule import Recall
from nsqd.broker.operator_actions import CancelOutcome, least_finished

if TYPE_CHECKING:
    from nsqd.broker.topic import Topic

TAKE_BACK: Final = -1  # instead of a delay


def recalled(
    topic: Topic, start: int, end: int, *, key: bytes = b"", channel: str = "", delay_ms: int = TAKE_BACK
) -> dict[str, CancelOutcome]:
    """Return how each channel had the messages of [start, end), which are the whole publish with this key, if any."""
    recall = Recall(topic, range(start, end), key=key, channel=channel, delay_ms=delay_ms, who="", started_at=0)
    while not recall.is_over:
        recall.step()
    recall.end()
    return {name: least_finished(counts) for name, counts in recall.found.items()}
