"""The endpoints about the groups of a channel (nsqd/broker/groups.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsqcommon.http_api import HttpError, Request, Response, handler_slices, json
from nsqcommon.wire.groups import checked_group
from nsqcommon.wire.headers import BadHeaders
from nsqd.broker.batch import Batch
from nsqd.broker.group_actions import GroupAction
from nsqd.http.bodies import BodyReader
from nsqd.http.changes import STOPPED, who_asks
from nsqd.http.names import channel_argument, check_lasting, find_channel, find_topic
from nsqd.http.numbers import limit_argument

if TYPE_CHECKING:
    from nsqd.broker.channel import Channel
    from nsqd.broker.group_actions import GroupVerb
    from nsqd.broker.groups import Groups, GroupSnapshot
    from nsqd.http.calls import Calls
    from nsqd.http.history import HistoryReads

MOST_ROWS: Final = 1_000
_ROWS: Final = 100  # the default `limit`
_LONGEST_WAIT: Final = 1.0  # seconds; then we look again whether the disk refuses to read
_MILLISECOND: Final = 1_000_000  # nanoseconds
_LONGEST_READING: Final = 2.0  # seconds for the times of all rows, if they have to be read from disk


class GroupEndpoints:
    def __init__(
        self,
        calls: Calls,
        reading: HistoryReads,
        delay_ms: Callable[[dict[str, str]], int | None],
        clock: Callable[[], float],
    ) -> None:
        """`delay_ms` parses the argument `defer`; `clock` returns monotonic seconds."""
        self._calls = calls
        self._delay_ms = delay_ms
        self._broker = calls.broker
        self._reading = reading
        self._clock = clock

    async def show(self, request: Request) -> Response:
        channel, groups = self._find(request)
        arguments = request.query()
        limit = limit_argument(arguments, _ROWS, most=MOST_ROWS)
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

    async def bury(self, request: Request) -> Response:
        action = await self._do(request, "bury")
        return json(
            {"buried": action.acted, "reason": action.reason, "in_flight": action.in_flight, "unread": action.unread}
        )

    async def cancel(self, request: Request) -> Response:
        action = await self._do(request, "cancel")
        return json({"cancelled": action.acted, "in_flight": action.in_flight, "unread": action.unread})

    async def due(self, request: Request) -> Response:
        arguments = request.query()
        delay_ms = self._delay_ms(arguments) if "defer" in arguments else 0
        if delay_ms is None:
            raise HttpError(400, "INVALID_DEFER")
        action = await self._do(request, "due", delay_ms)
        return json({"moved": action.acted, "in_flight": action.in_flight, "unread": action.unread})

    async def _do(self, request: Request, verb: GroupVerb, delay_ms: int = 0) -> GroupAction:
        topic_name, name = channel_argument(request)
        check_lasting(topic_name, name)
        group = _group(request)
        channel, _ = self._find(request)
        action = GroupAction(
            find_topic(self._broker, topic_name),
            channel,
            group,
            verb,
            delay_ms=delay_ms,
            who=who_asks(request),
            started_at=self._broker.turn.timestamp // _MILLISECOND,
        )

        async def rest() -> None:
            if self._reading.stopping:
                action.stop()
            elif action.waits:
                await self._reading.loads.wait_for_change(topic_name, seconds=_LONGEST_WAIT)
            else:
                await asyncio.sleep(0)

        await self._calls.in_slices(request, action, rest)
        await self._calls.durable()
        if action.is_gone:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        if action.is_stopped:
            raise HttpError(409, STOPPED, details={"done": action.acted})
        return action

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


def _group(request: Request) -> bytes:
    """Return the argument `group`. Raises a 400 if it is no valid name of a group.

    An empty one would mean all messages without a group, and a script with an empty variable would lose them.
    """
    arguments = request.query()
    if "group" not in arguments:
        raise HttpError(400, "MISSING_ARG_GROUP")
    try:
        return checked_group(arguments["group"])
    except BadHeaders as error:
        raise HttpError(400, "INVALID_ARG_GROUP", details={"reason": str(error)}) from None


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
