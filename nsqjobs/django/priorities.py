"""Priorities as topics: where a task goes, and which waiting task comes next.

Django's priorities are -100 to 100, and nsqd has no priorities within a topic. So a queue has a topic for each of three
bands:

    band      priorities   topic        weight
    high      above 0      mails.high   16
    normal    0            mails        4
    low       below 0      mails.low    1

The normal topic is the same as without priorities. While all three have tasks waiting, 16 of 21 tasks that a worker
starts are high, 4 normal and 1 low. So a high task hardly waits for others, and low ones never starve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from nsqjobs.names import topic_name


class Band(StrEnum):
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


WEIGHTS: Final[Mapping[Band, int]] = {Band.HIGH: 16, Band.NORMAL: 4, Band.LOW: 1}


def band_of(priority: int) -> Band:
    if priority == 0:
        return Band.NORMAL
    return Band.HIGH if priority > 0 else Band.LOW


def band_topic(queue: str, band: Band) -> str:
    return topic_name(queue if band is Band.NORMAL else f"{queue}.{band}")


class Turns:
    """Smooth weighted round robin, as in nginx: a band's turns are spread evenly between the others'.

    At each turn every waiting band gets its weight as credit. The band with the most credit is chosen, and pays the sum
    of these weights. So a band that waits alone gains as much as it pays, and has no debt when others arrive.
    """

    def __init__(self) -> None:
        self._credit = dict.fromkeys(Band, 0)

    def choose(self, waiting: Collection[Band]) -> Band:
        """Return the next band. `waiting` has at least one."""
        for band in waiting:
            self._credit[band] += WEIGHTS[band]
        chosen = max(waiting, key=lambda band: self._credit[band])
        self._credit[chosen] -= sum(WEIGHTS[band] for band in waiting)
        return chosen


def prefetches(running: Mapping[Band, int], concurrency: int) -> dict[Band, int]:
    """Return how many messages of each band a worker may have, given how many it is running.

    While threads are free, each band may use all of them. If none is, we keep one message of each band at hand, so that
    there is a choice when a task ends.
    """
    free = max(concurrency - sum(running.values()), 1)
    return {band: count + free for band, count in running.items()}
