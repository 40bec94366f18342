"""The state of polling one node or nsqlookupd: its health, and its last answer.

`sampler` decides how often to poll.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVarTuple, Unpack

import trio

from nsqadmin.cluster.model import Health
from nsqadmin.cluster.node_stats import silenced
from nsqadmin.cluster.sane import NotUnderstood, TooMuch
from nsqadmin.upstream.client import UpstreamError, explain, in_words
from nsqadmin.upstream.discovery import Announced

if TYPE_CHECKING:
    from nsqadmin.cluster.node_stats import NodeAnswer

log = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")

PATIENCE: Final = 1.0  # seconds that a sweep waits for slow nodes
_SELDOM: Final = 15.0  # seconds before we poll a silent node again that no directory lists
_FIRST_PAUSE: Final = 15.0  # seconds before we poll a node again whose answer was too large; doubled each time
_LONGEST_PAUSE: Final = 600.0
# An invalid answer raises one of these, which fails only its own node.
NO_ANSWER: Final = (NotUnderstood, KeyError, TypeError, ValueError, AttributeError)


@dataclass(slots=True)
class Asked:
    health: Health = Health.NEVER
    since: float = 0.0
    error: UpstreamError | None = None
    answered_in: float | None = None
    answered_at: float | None = None  # when its last answer came
    busy_since: float | None = None  # start of the running request, on the monotonic clock
    not_before: float = 0.0  # earliest time of the next request, on the monotonic clock
    withheld: str = ""  # why we don't send it the token
    _pause: float = 0.0  # seconds until the next request after an answer that was too large

    def succeeded(self, took: float, now: float) -> None:
        self.answered_in, self.answered_at, self.error = took, now, None
        self.not_before = self._pause = 0.0
        self._is(Health.SLOW if took > PATIENCE else Health.OK, now)

    def failed(self, error: UpstreamError, now: float) -> None:
        self.error = error
        self.withheld = error.withheld or self.withheld
        if error.not_read:  # such an answer has cost time and memory, and the next one probably will, too
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
            self.not_before = trio.current_time() + self._pause
        self._is(Health.NEVER if self.answered_in is None else Health.DOWN, now)

    def overdue(self, now: float) -> None:
        """Record that the running request has no answer yet. It hasn't failed, so the last answer still counts."""
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
        """Mark a request as running during the block. An error in the block is recorded, not raised."""
        self.busy_since = trio.current_time()
        before = self.error
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
            self._log(address, before)

    def _log(self, address: str, before: UpstreamError | None) -> None:
        """Log a failure once, until its reason changes or the process answers again."""
        if self.error is not None and (before is None or in_words(before) != in_words(self.error)):
            log.warning("%s does not answer: %s (%s)", address, explain(address, self.error), self.error)
        elif before is not None and self.error is None:
            log.info("%s answers again", address)


@dataclass(slots=True)
class AskedNode(Asked):
    announced: Announced = field(default_factory=lambda: Announced("", "", 0, 0))
    answer: NodeAnswer | None = None
    has_history: bool | None = None  # None: unknown so far
    clock_skew: float | None = None
    left_at: float | None = None  # when we found that no directory lists it any more
    restarted: bool = False  # since the last call of `Census.take_restarted`

    def failed(self, error: UpstreamError, now: float) -> None:
        Asked.failed(self, error, now)
        if self.left_at is not None:  # there may be many dead nodes, and each request may wait for its timeout
            self.not_before = max(self.not_before, trio.current_time() + _SELDOM)

    def announce(self, announced: Announced) -> None:
        """Record that a directory lists the node."""
        if self.left_at is not None and not self._pause:
            self.not_before = 0.0
        self.announced, self.left_at = announced, None

    def last_answer(self) -> NodeAnswer | None:
        """Return the node's last answer, marked as old if the node doesn't answer now."""
        if self.answer is not None and not self.has_answered:
            self.answer = silenced(self.answer)
        return self.answer


@dataclass(slots=True)
class AskedLookupd(Asked):
    producers: list[Announced] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    channels: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of its topics that no node has
    retired: frozenset[str] = frozenset()  # nodes that have left for good
    nodes_left_out: int = 0
    topics_left_out: int = 0
    version: str = ""
    index: str = ""  # of its list of nodes; NSQ's has none
    is_watched: bool = False


class Round:
    """Some requests at the same time. `wait` waits for all of them, but not longer than PATIENCE."""

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
