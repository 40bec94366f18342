"""The endpoints about the groups of a channel (nsqd/broker/groups.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Request, Response, handler_slices, json
from nsqd.broker.batch import Batch
from nsqd.http.bodies import BodyReader
from nsqd.http.names import channel_argument, find_channel
from nsqd.http.numbers import number_argument

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.groups import Groups, GroupSnapshot
    from nsqd.http.calls import Calls
    from nsqd.http.history import HistoryReads

MOST_ROWS: Final = 1_000
_ROWS: Final = 100  # the default `limit`
_LONGEST_READING: Final = 2.0  # seconds for the times of all rows, if they have to be read from disk


class GroupEndpoints:
    def __init__(self, calls: Calls, reading: HistoryReads, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._broker = calls.broker
        self._reading = reading
        self._clock = clock

    async def show(self, request: Request) -> Response:
        channel, groups = self._find(request)
        arguments = request.query()
        limit = number_argument(arguments, "limit", _ROWS)
        if limit > MOST_ROWS:
            raise HttpError(400, "INVALID_ARG_LIMIT", details={"reason": f"at most {MOST_ROWS}"})
        found: tuple[GroupSnapshot, ...] = ()
        for some in groups.largest(limit, arguments.get("name", "").encode("utf-8", "replace")):
            if some is not None:
                found = some
            await asyncio.sleep(0)
        ledger = channel.ledger
        totals = {
            "held": ledger.held.total,
            "groups": len(groups),
            "unsorted": len(groups.unsorted),
            "ahead": ledger.ahead - ledger.held.total,
            "max_held": groups.most_held,
            "held_full_since": groups.full_since,
        }
        return json({**totals, "largest": await self._rows(channel, found)})

    async def _rows(self, channel: Channel, found: tuple[GroupSnapshot, ...]) -> list[dict[str, object]]:
        bodies, slices = BodyReader(self._reading, self._clock), handler_slices()
        end, rows = self._clock() + _LONGEST_READING, []
        for it in found:
            timestamp = None
            if it.oldest >= 0:
                timestamp = await self._timestamp(channel, it.oldest, bodies, end)
            rows.append(_row(it, timestamp))
            await slices.rest()
        return rows

    async def _timestamp(self, channel: Channel, sequence: int, bodies: BodyReader, end: float) -> int | None:
        """Return the publish time of a held message. None: the disk can't be read now, or not before `end`."""
        batch: Batch | str | None = channel.ledger.batch_of(sequence)
        if batch is None and self._clock() < end and channel.ledger.ephemeral_batches is None:
            held = channel.ledger.held
            batch = await bodies.batch(channel, sequence, lambda: sequence in held and self._clock() < end)
        return batch.timestamp if isinstance(batch, Batch) else None

    def _find(self, request: Request) -> tuple[Channel, Groups]:
        """Return the request's channel and its groups. Raises a 400 or 404."""
        channel = find_channel(self._broker, *channel_argument(request))
        if channel.groups is None:
            raise HttpError(
                404, "NO_GROUPS", details={"reason": "the policy has no rules about groups for this channel"}
            )
        return channel, channel.groups


def _row(it: GroupSnapshot, timestamp: int | None) -> dict[str, object]:
    return {
        "group": it.name.decode("utf-8", "replace"),
        "held": it.held,
        "again": it.retries,
        "in_flight": it.in_flight,
        "oldest": it.oldest if it.oldest >= 0 else None,
        "oldest_timestamp": timestamp,
        "weight": it.weight,
    }
