"""The tab with a channel's deferred messages, and a search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.http.responses import identity_of, number_argument
from nsqadmin.messages.endpoints import filter_of
from nsqadmin.messages.jobs import hint_for
from nsqadmin.messages.lists import Look, parse_places
from nsqadmin.parts.bodies import marks_of
from nsqadmin.parts.messages import NO_CLUSTER
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.selection_tab import SelectionShown, rows_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.cluster.model import Channel
    from nsqadmin.parts.links import Links
    from nsqadmin.services import Services

_LIMITS: Final = ("50", "20", "100", "500")  # the first is the default
_HIGHEST: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredShown(SelectionShown):
    """The content of the tab."""

    wanted: str = ""  # the search as typed
    hits: int = 0  # found by earlier steps
    looked: int = 0  # messages examined in all steps
    no_payload: str = ""  # why only a part of each message is shown and searched

    @property
    def job_hint(self) -> str:
        """An example of a search for jobs, if there are some among these messages."""
        return hint_for(self.jobs)

    @property
    def shows_tasks(self) -> bool:
        """Whether there is a column of tasks. A search always has it: its later steps add rows to the same table."""
        return bool(self.wanted or self.job_hint)


async def deferred_of(services: Services, links: Links, request: Request, channel: Channel) -> DeferredShown:
    if services.messages is None:
        return DeferredShown(not_possible=NO_CLUSTER)
    deferred, arguments, identity = services.messages.deferred, request.query_params, identity_of(request)
    known = DeferredShown(
        node=arguments.get("node", ""),
        limit=int(word_of(request, "limit", _LIMITS)),
        wanted=arguments.get("filter", "").strip(),
        hits=number_argument(request, "hits", 0, least=0, most=_HIGHEST),
        looked=number_argument(request, "looked", 0, least=0, most=_HIGHEST),
        no_payload=identity.why_not(Right.PAYLOAD, channel.topic),
    )
    try:
        after, wanted = parse_places(arguments.get("after", "")), filter_of(known.wanted)
    except (ValueError, HttpError) as error:
        why = (error.details or {}).get("reason", error.code) if isinstance(error, HttpError) else error
        return replace(known, summary=await deferred.summary(channel, identity), wrong=str(why))
    look = Look(after=after, limit=known.limit, node=known.node, wanted=wanted)
    summary, page = await deferred.read(channel, identity, look)
    known = replace(
        known,
        summary=summary,
        page=page,
        rows=rows_of("deferred", links, channel, page, marks_of(wanted)),
        looked=known.looked + page.looked,
        is_first=not after,
    )
    return replace(known, go_on=_go_on(links, channel, known, page.after)) if page.after else known


def _go_on(links: Links, channel: Channel, known: DeferredShown, after: str) -> str:
    kept = {"tab": "deferred", "filter": known.wanted, "node": known.node, "limit": known.limit}
    hits = known.hits + len(known.rows)
    return links.channel(channel.topic, channel.name, **kept, hits=hits, looked=known.looked, after=after)
