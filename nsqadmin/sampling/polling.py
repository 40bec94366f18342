"""Somebody who is asked again and again: how it answers, and what it said last."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVarTuple, Unpack

import trio

from nsqadmin.cluster.model import Health
from nsqadmin.cluster.node_stats import NotUnderstood, TooMuch
from nsqadmin.upstream.client import UpstreamError
from nsqadmin.upstream.discovery import Announced

if TYPE_CHECKING:
    from nsqadmin.cluster.node_stats import NodeAnswer

Ts = TypeVarTuple("Ts")

PATIENCE: Final = 1.0  # seconds that a sweep waits for the slower ones
_FIRST_PAUSE: Final = 15.0  # seconds before a node whose answer was too large is asked again; doubled each time
_LONGEST_PAUSE: Final = 600.0
# What reading an answer raises that is none: that is the trouble of one node.
NO_ANSWER: Final = (NotUnderstood, KeyError, TypeError, ValueError, AttributeError)


@dataclass(slots=True)
class Asked:
    health: Health = Health.NEVER
    since: float = 0.0
    error: UpstreamError | None = None
    answered_in: float | None = None
    busy_since: float | None = None  # by the monotonic clock: a question is under way
    not_before: float = 0.0  # by the monotonic clock: it is left alone until then
    withheld: str = ""  # why it is asked without the token
    _pause: float = 0.0  # seconds

    def succeeded(self, took: float, now: float) -> None:
        self.answered_in, self.error = took, None
        self.not_before = self._pause = 0.0
        self._is(Health.SLOW if took > PATIENCE else Health.OK, now)

    def failed(self, error: UpstreamError, now: float) -> None:
        self.error = error
        self.withheld = error.withheld or self.withheld
        if error.not_read:  # finding that out cost time and memory, and is likely to cost them again
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self.not_before = trio.current_time() + self._pause
        self._is(Health.NEVER if self.answered_in is None else Health.DOWN, now)

    def overdue(self, now: float) -> None:
        """No answer yet, and no failure: what it said last still counts."""
        if self.health is Health.OK:
            self._is(Health.SLOW, now)

    def _is(self, health: Health, now: float) -> None:
        if health is not self.health or not self.since:
            self.health, self.since = health, now

    @property
    def has_answered(self) -> bool:
        return self.health in (Health.OK, Health.SLOW)

    @contextmanager
    def question(self, address: str, wall: Callable[[], float]) -> Iterator[None]:
        """While one is under way. What goes wrong with it is noted, and raised no further."""
        self.busy_since = trio.current_time()
        try:
            yield
        except UpstreamError as error:
            self.failed(error, wall())
        except TooMuch as error:
            self.failed(UpstreamError(f"{address}: {error}", not_read=str(error)), wall())
        except NO_ANSWER as error:
            self.failed(UpstreamError(f"{address} {error!r}"), wall())
        finally:
            self.busy_since = None


@dataclass(slots=True)
class AskedNode(Asked):
    announced: Announced = field(default_factory=lambda: Announced("", "", 0, 0))
    answer: NodeAnswer | None = None
    has_history: bool | None = None  # None: not known yet
    clock_skew: float | None = None
    left_at: float | None = None  # it is in no directory any more
    restarted: bool = False


@dataclass(slots=True)
class AskedLookupd(Asked):
    producers: list[Announced] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    nodes_left_out: int = 0
    topics_left_out: int = 0
    version: str = ""


class Round:
    """Some questions at once, of which those are waited for that are answered quickly."""

    def __init__(self) -> None:
        self._left = 0
        self._all = trio.Event()

    def start(self, nursery: trio.Nursery, ask: Callable[[Unpack[Ts]], Awaitable[None]], *arguments: *Ts) -> None:
        self._left += 1

        async def asked() -> None:
            try:
                await ask(*arguments)
            finally:
                self._left -= 1
                if not self._left:
                    self._all.set()

        nursery.start_soon(asked)

    async def wait(self) -> None:
        if self._left:
            with trio.move_on_after(PATIENCE):
                await self._all.wait()
