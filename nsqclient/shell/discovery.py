"""Discovery: asks every nsqlookupd for nsqds, at intervals or with long polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsqclient.core.events import DiscoveryRound, Event, LookupFailed
from nsqclient.core.listings import (
    TRIES,
    WAIT,
    BadAnswer,
    LookupdAddress,
    LookupQuery,
    PollInterval,
    Silence,
    groups_of,
    headers_of,
)
from nsqclient.shell.runtime import Flag, RequestFailed
from nsqclient.shell.tls import context_of

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqclient.shell.runtime import CancelScope, Runtime


class Discovery:
    """Asks every nsqlookupd, and calls `apply` when the nsqds may have changed."""

    def __init__(
        self,
        runtime: Runtime,
        question: LookupQuery,
        lookupds: Sequence[LookupdAddress],
        config: Config,
        *,
        random: Random,
        emit: Callable[[Event], None],
        apply: Callable[[], None],
    ) -> None:
        self.question = question
        self.first_round = Flag(runtime)  # set once every nsqlookupd has answered or failed
        self.silence = Silence(lookupds)
        self._runtime = runtime
        self._emit = emit
        self._apply = apply
        self._timeout = config.lookupd_poll_timeout
        self._requests = runtime.requests(connect_timeout=self._timeout)
        self._headers = headers_of(config)
        groups = groups_of(lookupds, config)
        self._followers = [_Follower(self, runtime, group, config, random) for group in groups]
        wants_tls = any(place.scheme == "https" for group in groups for place in group)
        self._tls = context_of(config) if wants_tls else None

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            await self._runtime.together([follower.run for follower in self._followers])
        finally:
            await self._requests.close()

    def hurry(self) -> None:
        """Ask every nsqlookupd at once, because a connection was lost."""
        for follower in self._followers:
            follower.hurry()

    def round_done(self) -> None:
        """Record that a follower has finished a round."""
        if all(follower.rounds for follower in self._followers):
            self.first_round.set()

    async def ask(self, lookupd: LookupdAddress, *, index: str = "") -> str | None:
        """Query once and return the index of the answer ("" if there is none), or None if the query failed.

        With an `index` it is a long poll: nsqlookupd answers when it has another one.
        """
        wait = WAIT if index else 0
        target = self.question.target(lookupd, wait=wait, index=index)
        tls = self._tls if lookupd.scheme == "https" else None
        try:
            answer = await self._requests.get(
                lookupd.host, lookupd.port, target, tls=tls, headers=self._headers, timeout=self._timeout + wait
            )
            self.silence.record(lookupd, has_answered=True)
            is_news = self.question.take(lookupd, answer.status, answer.body)
        except (RequestFailed, BadAnswer) as error:
            if self.silence.record(lookupd, has_answered=isinstance(error, BadAnswer)) and len(self._followers) > 1:
                self.hurry()  # the others may be in a long pause that began while an nsqlookupd still answered
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

    def __init__(
        self, discovery: Discovery, runtime: Runtime, lookupds: Sequence[LookupdAddress], config: Config, random: Random
    ) -> None:
        self.rounds = 0
        self._discovery = discovery
        self._runtime = runtime
        self._lookupds = lookupds
        self._config = config
        self._pace = PollInterval(config, random)
        self._at = 0
        self._nap: CancelScope | None = None
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
            self._nap = nap = self._runtime.scope()
            await nap.run(partial(self._rest, index), None)
            self._nap = None

    async def _rest(self, index: str | None) -> None:
        clock, sleep = self._runtime.clock, self._runtime.sleep
        # While nsqlookupd supports it, a long poll replaces the pause.
        while index and self._config.lookupd_wait and len(self._lookupds) == 1:
            began = clock()
            index = await self._ask(index)
            await sleep(self._pace.rest(clock() - began))
        await sleep(self._pace.pause(is_blind=self._discovery.silence.is_total))

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
