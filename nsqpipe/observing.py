"""Hands news of a job to all who want them: one that fails neither ends the job nor keeps the news from the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVarTuple

log = logging.getLogger(__name__)
News = TypeVarTuple("News")


def tell(observers: Iterable[Callable[[*News], object]], *news: *News) -> None:
    """Call all observers, in their order."""
    for observe in observers:
        _tell_one(observe, *news)


def _tell_one(observe: Callable[[*News], object], *news: *News) -> None:
    try:
        observe(*news)
    except (
        Exception
    ) as error:  # whatever it may be, such as a closed standard error: the next observer counts on being told
        log.warning("an observer failed, and the others are told: %r", error)
