"""The nsqds that a relay publishes to, with a producer for each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import trio

from nsqclient import Config, NSQError, Producer, open_producer
from nsqtools.nodes import NodeQueries, parse_server

log = logging.getLogger(__name__)

_REST: Final = 1.0  # pause in seconds after a failure; doubles with each further one
_LONGEST_REST: Final = 30.0
_HANDSHAKE: Final = 10.0  # timeout for connecting
_LIST_EVERY: Final = 15.0  # seconds between two queries to nsqlookupd


class Nodes:
    """Each producer runs in its own task until the nursery is cancelled."""

    def __init__(self, addresses: Sequence[str], lookupds: Sequence[str], config: Config, tasks: trio.Nursery) -> None:
        self._known = list(addresses)
        self._lookupds = [parse_server(address) for address in lookupds]
        self._queries = NodeQueries()
        self._listed_at = -_LIST_EVERY
        self._config = config
        self._tasks = tasks
        self._producers: dict[str, Producer] = {}
        self._rests: dict[str, tuple[float, float]] = {}  # the end and the length of the pause
        self._turn = 0

    async def next(self) -> str | None:
        """Return a reachable nsqd, taking turns. None if there is none now."""
        await self._list()
        for _ in range(len(self._known)):
            self._turn += 1
            address = self._known[self._turn % len(self._known)]
            if await self.producer(address) is not None:
                return address
        return None

    async def producer(self, address: str) -> Producer | None:
        """Return the producer for this nsqd. None if the nsqd is in a pause or unreachable."""
        if trio.current_time() < self._rests.get(address, (0.0, 0.0))[0]:
            return None
        if address not in self._producers:
            try:
                with trio.fail_after(_HANDSHAKE):
                    self._producers[address] = await self._tasks.start(self._open, address)
            except (NSQError, trio.TooSlowError) as error:
                self.failed(address, str(error) or "does not answer")
                return None
        return self._producers[address]

    async def _open(self, address: str, *, task_status: trio.TaskStatus[Producer]) -> None:
        # The relay repeats by itself, because it has to after a crash anyway.
        async with open_producer(address, config=self._config, retry="never", connect="require") as producer:
            task_status.started(producer)
            await trio.sleep_forever()

    def failed(self, address: str, reason: str) -> None:
        """Stop using this nsqd for a while."""
        rest = min(2 * self._rests.get(address, (0.0, _REST / 2))[1], _LONGEST_REST)
        self._rests[address] = (trio.current_time() + rest, rest)
        log.warning("nsqd %s: %s; next try in %g s", address, reason, rest)

    def succeeded(self, address: str) -> None:
        self._rests.pop(address, None)

    async def _list(self) -> None:
        is_fresh = trio.current_time() < self._listed_at + _LIST_EVERY
        if not self._lookupds or (is_fresh and self._known):
            return
        self._listed_at = trio.current_time()
        found, failures = await self._queries.nodes(self._lookupds)
        for failure in failures:
            log.warning("%s", failure)
        listed = [node.tcp_address for node in found]
        # Only a complete, non-empty answer may remove a node: a silent or empty nsqlookupd says nothing.
        kept = self._known if failures or not listed else []
        self._known = list(dict.fromkeys((*listed, *kept)))
