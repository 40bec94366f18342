"""The tab with a channel's messages in flight: which consumer has which message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.http.responses import identity_of
from nsqadmin.messages.lists import Look, parse_places
from nsqadmin.parts.messages import NO_CLUSTER
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.selection_tab import SelectionRow, SelectionShown

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.in_flight import MessageInFlight
    from nsqadmin.parts.links import Links
    from nsqadmin.services import Services

_LIMITS: Final = ("50", "20", "100", "500")  # the first is the default
_MOST_SUGGESTED: Final = 100  # consumers
_LONGEST_NAME: Final = 256  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightRow(SelectionRow):
    consumer_link: str  # empty: it has disconnected


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightShown(SelectionShown):
    """The content of the tab."""

    client: str = ""  # only messages of this consumer
    suggested: tuple[str, ...] = ()  # consumers of this channel, and of no other: the user may not see those
    has_tasks: bool = False  # some messages are jobs
    is_withheld: bool = False  # keys, groups and headers are hidden


async def in_flight_of(services: Services, links: Links, request: Request, channel: Channel) -> InFlightShown:
    if services.messages is None:
        return InFlightShown(not_possible=NO_CLUSTER)
    in_flight, arguments, identity = services.messages.in_flight, request.query_params, identity_of(request)
    known = InFlightShown(
        node=arguments.get("node", ""),
        limit=int(word_of(request, "limit", _LIMITS)),
        client=arguments.get("client", "").strip()[:_LONGEST_NAME],
        suggested=tuple(sorted({it.client_id for it in channel.clients or () if it.client_id}))[:_MOST_SUGGESTED],
    )
    try:
        after = parse_places(arguments.get("after", ""))
    except ValueError as error:
        return replace(known, summary=await in_flight.summary(channel, identity), wrong=f"{error}.")
    look = Look(after=after, limit=known.limit, node=known.node, client=known.client)
    summary, page = await in_flight.read(channel, identity, look)
    kept = {"tab": "inflight", "client": known.client, "node": known.node, "limit": known.limit}
    return replace(
        known,
        summary=summary,
        page=page,
        rows=tuple(_row(links, channel, it) for it in page.lines),
        has_tasks=any(it.job is not None for it in page.lines),
        is_withheld=any(it.is_withheld for it in page.lines),
        go_on=links.channel(channel.topic, channel.name, **kept, after=page.after) if page.after else "",
        is_first=not after,
    )


def _row(links: Links, channel: Channel, one: MessageInFlight) -> InFlightRow:
    sequence, consumer = one.known_sequence, one.consumer
    message_link = consumer_link = key = ""
    if sequence is not None and one.log:
        named = {"topic": channel.topic, "node": one.node, "sequence": str(sequence), "log": one.log}
        key = f"{sequence}@{one.node}@{one.log}"
        message_link = links.to("/message", **named, channel=channel.name)
    if not consumer.is_gone:
        consumer_link = links.channel(channel.topic, channel.name, tab="consumers", client=consumer.name)
    return InFlightRow(one=one, body=None, link=message_link, key=key, consumer_link=consumer_link)
