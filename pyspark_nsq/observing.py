"""Passes reports of a job to its observers.

A failing observer neither ends the job nor keeps the report from the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVarTuple

log = logging.getLogger(__name__)
News = TypeVarTuple("News")


def tell(observers: Iterable[Callable[[*News], object]], *news: *News) -> None:
    """Call all observers in their order. Their errors are logged."""
    for observe in observers:
        _tell_one(observe, *news)


def _tell_one(observe: Callable[[*News], object], *news: *News) -> None:
    try:
        observe(*news)
    except Exception as error:  # of any kind, like a closed stderr: the other observers still need the report
        log.warning("an observer failed, and the others are called all the same: %r", error)
