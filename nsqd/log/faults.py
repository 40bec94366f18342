"""What is broken in the data path now: it decides the node's health and what the repairs try again.

This is only the list. What a failed write or sync leads to is in topic_log.py and log_fault.py, what follows from a
read that the disk refuses in reading/refusals.py, and the tries to mend it in upkeep/repairs.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.lookup import FULL, UNHEALTHY

if TYPE_CHECKING:
    from nsqcommon.wakeup import Wakeup

log = logging.getLogger(__name__)

_NO_ROOM: Final = ("no space left on device", "disk quota exceeded")


class StorageFault(Enum):
    """Faults that have no object of their own. A journal, a DiskLog or a Refusals is its own key instead."""

    PLACE = auto()  # the data path is not where it was
    IDS = auto()  # a reservation of ids was not written
    TOPOLOGY = auto()  # the names of topics and channels were not written
    DROPPING = auto()  # the folder of a deleted topic was not renamed
    REMOVAL = auto()  # a file was not removed
    RESERVE = auto()  # too little of the disk is free, and publishing stops


class Faults:
    """The present faults, in the order in which they came. May touch nothing but the wake-up of the repairs."""

    def __init__(self, wakeup: Wakeup) -> None:
        self.health = "OK"
        self.state = ""  # in which nsqlookupds list this node: `FULL`, `UNHEALTHY`, or nothing if all is well
        self.on_change: Callable[[], None] = lambda: None  # the health or the state has changed
        self._wakeup = wakeup
        self._texts: dict[object, str] = {}

    def __iter__(self) -> Iterator[object]:
        """Yield the sources that were broken when the iteration began."""
        return iter(tuple(self._texts))

    def __contains__(self, source: object) -> bool:
        return source in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    def text_of(self, source: object) -> str | None:
        """Return why this source is broken; None: it works."""
        return self._texts.get(source) if self._texts else None

    def texts(self) -> list[str]:
        return list(self._texts.values())

    def broken(self, source: object, text: str) -> None:
        if source not in self._texts:
            if source is StorageFault.RESERVE:
                log.warning("publishing stops until there is space error=%s", text)
            else:
                log.error("a fault began error=%s", text)
        self._texts[source] = text
        self._set_health()
        self._wakeup.set()

    def repaired(self, source: object) -> None:
        text = self._texts.pop(source, None)
        if text is None:
            return
        if source is StorageFault.RESERVE:
            log.info("publishing goes on")
        else:
            log.info("a fault has ended error=%s", text)
        self._set_health()

    def _set_health(self) -> None:
        texts = self._texts
        first = texts.get(StorageFault.PLACE) or next(
            iter(texts.values()), None
        )  # a lost place explains all the others
        health = f"NOK - {first}" if first is not None else "OK"
        state = self._state_now()  # depends on all faults, and may change while the first one stays
        if (health, state) != (self.health, self.state):
            self.health, self.state = health, state
            self.on_change()

    def _state_now(self) -> str:
        texts = self._texts
        if not texts:
            return ""
        is_full = StorageFault.RESERVE in texts or any(text.endswith(_NO_ROOM) for text in texts.values())
        return FULL if is_full and StorageFault.PLACE not in texts else UNHEALTHY
