"""Discovery on trio: ask every nsqlookupd for nsqds, at intervals or by queries that wait."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import trio

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
from nsqcommon.http_client import HttpClient, HttpFailed

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
        self._config = config
        self._emit = emit
        self._apply = apply
        self._first_round = trio.Event()
        limit = config.lookupd_poll_timeout
        self._asking = HttpClient(connect_timeout=limit, timeout=limit)
        self._waiting = HttpClient(connect_timeout=limit, timeout=limit + WAIT)
        self._headers = headers_of(config)
        self.silence = Silence(lookupds)
        groups = groups_of(lookupds, config)
        self._followers = [_Follower(self, group, config, random) for group in groups]
        wants_tls = any(place.scheme == "https" for group in groups for place in group)
        self._tls = config.ssl_context or ssl.create_default_context() if wants_tls else None

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                for follower in self._followers:
                    nursery.start_soon(follower.run)
        finally:
            await self._asking.close_idle()
            await self._waiting.close_idle()

    def hurry(self) -> None:
        """Ask every nsqlookupd at once, because a connection was lost."""
        for follower in self._followers:
            follower.hurry()

    async def wait_for_first_round(self) -> None:
        """Return when every nsqlookupd has answered or failed once."""
        await self._first_round.wait()

    def round_done(self) -> None:
        """Take note that a follower has finished a round."""
        if all(follower.rounds for follower in self._followers):
            self._first_round.set()

    async def ask(self, lookupd: Lookupd, *, index: str = "") -> str | None:
        """Query once and return the index of the answer ("" without one), or None if the query failed.

        With an `index` the query waits until nsqlookupd has another one.
        """
        client = self._waiting if index else self._asking
        target = self.question.target(lookupd, wait=WAIT if index else 0, index=index)
        tls = self._tls if lookupd.scheme == "https" else None
        try:
            answer = await client.get(lookupd.host, lookupd.port, target, tls=tls, headers=self._headers)
            self.silence.record(lookupd, has_answered=True)
            is_news = self.question.take(lookupd, answer.status, answer.body)
        except (HttpFailed, BadAnswer) as error:
            if self.silence.record(lookupd, has_answered=isinstance(error, BadAnswer)) and len(self._followers) > 1:
                self.hurry()  # the others may be in a long pause, which they began while somebody still answered
            if self.question.record_failure(lookupd, str(error)):
                self._emit(LookupFailed(str(lookupd), str(error)))
                self._emit(DiscoveryRound(self.question.found, self.question.failures))
            return None
        if is_news:
            self._emit(DiscoveryRound(self.question.found, self.question.failures))
        self._apply()
        return answer.index


class _Follower:
    """Asks one nsqlookupd, or several in turn, until cancelled."""

    def __init__(self, discovery: Discovery, lookupds: Sequence[Lookupd], config: Config, random: Random) -> None:
        self.rounds = 0
        self._discovery = discovery
        self._lookupds = lookupds
        self._config = config
        self._pace = Pace(config, random)
        self._at = 0
        self._nap: trio.CancelScope | None = None
        self._is_hurried = False

    def hurry(self) -> None:
        if self._nap is not None:
            self._nap.cancel()
        else:
            self._is_hurried = True

    async def run(self) -> None:
        while True:
            index = await self._round()
            if self._is_hurried:
                self._is_hurried = False
                continue
            with trio.CancelScope() as self._nap:
                # While nsqlookupd supports it, a query that waits for a change takes the place of the pause.
                while index and self._config.lookupd_wait and len(self._lookupds) == 1:
                    began = trio.current_time()
                    index = await self._ask(index)
                    await trio.sleep(self._pace.rest(trio.current_time() - began))
                await trio.sleep(self._pace.pause(is_blind=self._discovery.silence.is_total))
            self._nap = None

    async def _round(self) -> str | None:
        index = None
        for _ in range(min(TRIES, len(self._lookupds))):
            index = await self._ask()
            if index is not None:
                break
        self.rounds += 1
        self._discovery.round_done()
        return index

    async def _ask(self, index: str = "") -> str | None:
        found = await self._discovery.ask(self._lookupds[self._at], index=index)
        self._pace.record_query(has_answered=found is not None)
        self._at = (self._at + 1) % len(self._lookupds)
        return found
