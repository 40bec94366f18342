"""What clients of a real nsqd know about messages that are edited, and what must therefore be true.

A message has versions: 0 is what was published, and each edit makes the next one. An edit was *answered*, was *refused*,
or is *open*, because a kill has come before the answer. An open one is sent again with the same token until it is
answered. The edited channel gets

- no version that an answered edit has replaced, nor one of which a later version has come that replaces it;
- no version of an edit that was refused;
- each version under one id only: an edit that was sent twice is done once;
- never two versions to the end, if the later one replaces the earlier one: a version that was finished for sure cannot be
  replaced.

Other channels get version 0 only.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Final, NamedTuple

from tests.simulation.promise import Violation

FIN_WINDOW: Final = 0.5  # seconds; the journal is written every tenth of a second


class Fate(Enum):
    """What is known about the edit that makes a version."""

    OPEN = auto()
    DONE = auto()
    REFUSED = auto()


@dataclass(slots=True)
class Version:
    fate: Fate
    is_again: bool = False  # it may run although the earlier one was finished
    is_instead: bool = False  # the answer has said that it replaces the earlier one
    token: str = ""
    target: str = ""  # the arguments that name the message, as they were sent
    message_id: str = ""
    has_come: bool = False
    may_be_finished: bool = False  # a FIN was sent since it has come
    finished_at: float = inf  # when nsqd has certainly carried out its FIN


class Pending(NamedTuple):
    number: int
    version: int
    token: str
    target: str
    is_again: bool


@dataclass(slots=True)
class Known:
    versions: list[Version] = field(default_factory=lambda: [Version(Fate.DONE)])
    is_acknowledged: bool = False
    is_busy: bool = False  # an edit of it is being sent


class EditLedger:
    """The channel `work`, whose messages are edited."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}
        self.counts: Counter[str] = Counter()
        self._tokens = 0
        self._acknowledged = 0
        self._open: dict[tuple[int, int], Version] = {}  # (number, version) -> the version, while its edit is open
        self._lock = threading.Lock()

    # Publishing

    def sending(self, numbers: Iterable[int]) -> None:
        with self._lock:
            self.known.update((number, Known()) for number in numbers)

    def acknowledged(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                self.known[number].is_acknowledged = True
                self._acknowledged += 1

    @property
    def bounds(self) -> tuple[int, int]:
        """How many messages were published at least, and at most."""
        with self._lock:
            return self._acknowledged, len(self.known)

    # Consuming

    def arrived(self, number: int, version: int, message_id: str) -> None:
        with self._lock:
            known = self.known[number]
            if version >= len(known.versions):
                raise Violation(f"version {version} of message {number} came, and nobody has asked for it")
            it = known.versions[version]
            if it.fate is Fate.REFUSED:
                raise Violation(f"version {version} of message {number} came, although its edit was refused")
            if it.message_id and it.message_id != message_id:
                raise Violation(f"version {version} of message {number} was made twice: {it.message_id}, {message_id}")
            for later in known.versions[version + 1 :]:
                is_replaced = later.is_instead if later.fate is Fate.DONE else later.has_come and not later.is_again
                if is_replaced:
                    raise Violation(f"version {version} of message {number} came, although a later one replaces it")
            if it.finished_at < inf:
                raise Violation(f"version {version} of message {number} came again, although it was finished")
            self.counts["deliveries"] += 1
            self.counts["copies"] += bool(version)
            it.message_id, it.has_come, it.may_be_finished = message_id, True, False
            self._check_that_one_ran(number, known, version)

    def _check_that_one_ran(self, number: int, known: Known, version: int) -> None:
        it, earlier = known.versions[version], known.versions[version - 1]
        if version and not it.is_again and earlier.finished_at < inf:
            raise Violation(f"version {version} of message {number} came, although the earlier one was finished")

    def finishing(self, number: int, version: int) -> None:
        """Note that a FIN is about to be sent."""
        with self._lock:
            self.known[number].versions[version].may_be_finished = True

    def are_finished(self, finished: Iterable[tuple[int, int]]) -> None:
        """Note that nsqd has carried out the FINs of these versions by now."""
        with self._lock:
            for number, version in finished:
                self.known[number].versions[version].finished_at = time.monotonic()

    # Editing

    def edit(self, number: int, *, target: str, is_again: bool) -> Pending | None:
        """Note that an edit is about to be sent. Return None if one of this message is open, or being sent."""
        with self._lock:
            known = self.known[number]
            if known.is_busy or known.versions[-1].fate is Fate.OPEN:
                return None
            self._tokens += 1
            known.is_busy = True
            it = Version(Fate.OPEN, is_again, token=f"t{self._tokens}", target=target)
            self._open[number, len(known.versions)] = it
            known.versions.append(it)
            return Pending(number, len(known.versions) - 1, it.token, target, is_again)

    def target(self, number: int) -> str:
        """Return how to name the last version that exists. Empty: its id isn't known."""
        with self._lock:
            it = next(it for it in reversed(self.known[number].versions) if it.fate is not Fate.REFUSED)
            return f"id={it.message_id}" if it.message_id else ""

    def answered(self, edit: Pending, *, message_id: str, is_instead: bool, is_repeat: bool) -> None:
        with self._lock:
            known = self.known[edit.number]
            it = known.versions[edit.version]
            known.is_busy = False
            if it.message_id and it.message_id != message_id:
                raise Violation(f"{edit} was answered with {message_id}, and came as {it.message_id}")
            if not (is_instead or edit.is_again):
                raise Violation(f"{edit} runs beside what it was to replace")
            it.fate, it.message_id, it.is_instead = Fate.DONE, message_id, is_instead
            del self._open[edit.number, edit.version]
            self.counts["replaced" if is_instead else "run again"] += 1
            self.counts["answered at the second time"] += is_repeat
            earlier = self._earlier(known, edit.version)
            if is_instead and not is_repeat and earlier.finished_at < inf:
                raise Violation(f"{edit} has replaced a message that was finished")

    def _earlier(self, known: Known, version: int) -> Version:
        """Return the version that an edit was about."""
        return next(it for it in reversed(known.versions[:version]) if it.fate is not Fate.REFUSED)

    def refused(self, edit: Pending) -> None:
        with self._lock:
            known = self.known[edit.number]
            it = known.versions[edit.version]
            known.is_busy = False
            if it.has_come:
                raise Violation(f"{edit} was refused, and has come before")
            it.fate = Fate.REFUSED
            del self._open[edit.number, edit.version]
            self.counts["refused"] += 1

    def open_edits(self) -> list[Pending]:
        """Return the edits that have no answer, and that nobody is sending."""
        with self._lock:
            return [
                Pending(number, version, it.token, it.target, it.is_again)
                for (number, version), it in self._open.items()
                if not self.known[number].is_busy
            ]

    def resend(self, edit: Pending) -> bool:
        """Note that an open edit is about to be sent again. Return False if somebody else does that."""
        with self._lock:
            known = self.known[edit.number]
            if known.is_busy or known.versions[edit.version].fate is not Fate.OPEN:
                return False
            known.is_busy = True
            return True

    # Lives

    def ended(self, killed_at: float) -> None:
        """Note that nsqd was killed. The journal may have lost the last FINs."""
        with self._lock:
            for known in self.known.values():
                known.is_busy = False
                for version in known.versions:
                    if version.finished_at > killed_at - FIN_WINDOW:
                        version.finished_at = inf

    def left(self) -> list[tuple[int, int]]:
        """Return what was acknowledged, and whose last version nobody has finished."""
        with self._lock:
            return [
                (number, version)
                for number, known in self.known.items()
                if known.is_acknowledged
                for version, it in [self._last(known)]
                if not it.may_be_finished
            ]

    def _last(self, known: Known) -> tuple[int, Version]:
        return next((n, it) for n, it in reversed(list(enumerate(known.versions))) if it.fate is not Fate.REFUSED)
