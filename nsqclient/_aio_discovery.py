"""Discovery on asyncio: ask nsqlookupd for nsqds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any

from nsqclient._aio_http import exchange
from nsqclient.core.events import DiscoveryRound, Event, LookupFailed
from nsqclient.core.listings import (
    TRIES,
    WAIT,
    BadAnswer,
    Lookupd,
    Pace,
    Question,
    Silence,
    groups_of,
    headers_of,
)
from nsqcommon.wire.http_exchange import BadResponse

if TYPE_CHECKING:
    from nsqclient.core.config import Config


class Discovery:
    """Asks every nsqlookupd, and calls `apply` whenever the nsqds may have changed."""

    def __init__(
        self,
        question: Question,
        lookupds: Sequence[Lookupd],
        config: Config,
        *,
        random: Random,
        emit: Callable[[Event], None],
        apply: Callable[[], None],
    ) -> None:
        self.question = question
        self.first_round = asyncio.Event()
        self._config = config
        self._random = random
        self._emit = emit
        self._apply = apply
        self._silence = Silence(lookupds)
        self._groups = groups_of(lookupds, config)
        self._missing = len(self._groups)  # groups that have not finished their first round
        self._hurry = asyncio.Event()
        wants_tls = any(place.scheme == "https" for group in self._groups for place in group)
        self._tls = config.ssl_context or ssl.create_default_context() if wants_tls else None

    def hurry(self) -> None:
        """Ask every nsqlookupd at once, because a connection was lost."""
        hurry, self._hurry = self._hurry, asyncio.Event()
        hurry.set()

    def start(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Start a task for each nsqlookupd, or one for all of them with the strategy "rotate"."""
        for group in self._groups:
            spawn(self._follow(group))

    async def _follow(self, lookupds: Sequence[Lookupd]) -> None:
        """Ask one nsqlookupd, or several in turn, until cancelled."""
        pace, at, is_first = Pace(self._config, self._random), 0, True
        while True:
            hurry = self._hurry
            for _ in range(min(TRIES, len(lookupds))):
                index = await self._ask(lookupds[at], pace)
                at = (at + 1) % len(lookupds)
                if index is not None:
                    break
            self._missing -= is_first
            is_first = False
            if not self._missing:
                self.first_round.set()
            waiting = asyncio.ensure_future(self._wait(lookupds, pace, index))
            hurried = asyncio.ensure_future(hurry.wait())
            try:
                await asyncio.wait((waiting, hurried), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
                hurried.cancel()
                await asyncio.gather(waiting, hurried, return_exceptions=True)

    async def _wait(self, lookupds: Sequence[Lookupd], pace: Pace, index: str | None) -> None:
        # While nsqlookupd supports it, a query that waits for a change takes the place of the pause.
        while index and self._config.lookupd_wait and len(lookupds) == 1:
            began = monotonic()
            index = await self._ask(lookupds[0], pace, index)
            await asyncio.sleep(pace.rest(monotonic() - began))
        await asyncio.sleep(pace.pause(is_blind=self._silence.is_total))

    async def _ask(self, lookupd: Lookupd, pace: Pace, index: str = "") -> str | None:
        """Query once and return the index of the answer ("" without one), or None if the query failed.

        With an `index` the query waits until nsqlookupd has another one.
        """
        target = self.question.target(lookupd, wait=WAIT if index else 0, index=index)
        limit = self._config.lookupd_poll_timeout + (WAIT if index else 0)
        try:
            async with asyncio.timeout(limit):
                answer = await exchange(
                    "GET",
                    lookupd.host,
                    lookupd.port,
                    target,
                    headers=headers_of(self._config),
                    tls=self._tls if lookupd.scheme == "https" else None,
                )
            self._silence.record(lookupd, has_answered=True)
            is_news = self.question.take(lookupd, answer.status, answer.body)
        except (OSError, ValueError, BadResponse, BadAnswer) as error:
            pace.record_query(has_answered=False)
            if self._silence.record(lookupd, has_answered=isinstance(error, BadAnswer)) and len(self._groups) > 1:
                self.hurry()  # the others may be in a long pause, which they began while somebody still answered
            reason = str(error) or "timeout"
            if self.question.record_failure(lookupd, reason):
                self._emit(LookupFailed(str(lookupd), reason))
                self._emit(DiscoveryRound(self.question.found, self.question.failures))
            return None
        pace.record_query(has_answered=True)
        if is_news:
            self._emit(DiscoveryRound(self.question.found, self.question.failures))
        self._apply()
        return answer.index
