"""What a channel has deferred: its tab, with a search, and the page of one message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.access.policy import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, number_argument, require
from nsqadmin.messages.deferred import DeferredLook, place_before
from nsqadmin.messages.endpoints import filter_of
from nsqadmin.messages.filters import Filter
from nsqadmin.messages.jobs import hint_for
from nsqadmin.messages.lists import parse_places
from nsqadmin.pages.bodies import FORMS, Marks, ShownMessage, marks_of, shown
from nsqadmin.pages.messages import NO_CLUSTER
from nsqadmin.pages.painter import Failure, word_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel, Snapshot
    from nsqadmin.messages.deferred import Deferral, DeferredPage, DeferredSummary
    from nsqadmin.messages.jobs import QueuedJob
    from nsqadmin.pages.painter import Painter
    from nsqadmin.services import Services

_LIMITS: Final = ("50", "20", "100", "500")  # the first is the default
_HIGHEST: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDeferral:
    deferral: Deferral
    body: ShownMessage | None  # None: it cannot be had
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredShown:
    """What the tab shows."""

    not_possible: str = ""  # why nothing can be shown; empty if something can
    summary: DeferredSummary | None = None
    rows: tuple[ShownDeferral, ...] = ()
    page: DeferredPage | None = None
    wanted: str = ""  # the search as typed
    node: str = ""
    limit: int = int(_LIMITS[0])
    wrong: str = ""  # why the address of the page is not understood
    go_on: str = ""
    hits: int = 0  # that the steps before this one have found
    looked: int = 0  # messages that all steps have looked at
    is_masked: bool = False
    no_payload: str = ""  # why only a part of each message is shown and searched
    is_first: bool = True

    @property
    def job_hint(self) -> str:
        """A search for jobs, if there are some among these messages."""
        return hint_for(_jobs(self.rows))


def _jobs(rows: Iterable[ShownDeferral]) -> Iterator[QueuedJob | None]:
    return (it.deferral.message.job for it in rows if it.deferral.message is not None)


class DeferredPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self) -> list[Route]:
        return [Route("GET", "/deferred", self.message)]

    async def of_channel(self, request: Request, channel: Channel) -> DeferredShown:
        messages, arguments = self._services.messages, request.query_params
        if messages is None:
            return DeferredShown(not_possible=NO_CLUSTER)
        summary = await messages.deferred.summary(channel)
        known = DeferredShown(
            summary=summary,
            wanted=arguments.get("filter", "").strip(),
            node=arguments.get("node", ""),
            limit=int(word_of(request, "limit", _LIMITS)),
            hits=number_argument(request, "hits", 0, least=0, most=_HIGHEST),
            looked=number_argument(request, "looked", 0, least=0, most=_HIGHEST),
            no_payload=identity_of(request).why_not(Right.PAYLOAD, channel.topic),
        )
        try:
            after, wanted = parse_places(arguments.get("after", "")), filter_of(known.wanted)
        except ValueError as error:
            return replace(known, wrong=str(error))
        except HttpError as error:
            return replace(known, wrong=str((error.details or {}).get("reason", error.code)))
        look = DeferredLook(wanted=wanted, limit=known.limit, after=after, node=known.node)
        page = await messages.deferred.page(channel, summary, identity_of(request), look)
        marks = marks_of(wanted)
        known = replace(
            known,
            page=page,
            rows=tuple(self._row(channel, it, marks) for it in page.deferrals),
            looked=known.looked + page.looked,
            is_masked=any(it.message is not None and it.message.is_masked for it in page.deferrals),
            is_first=not after,
        )
        return replace(known, go_on=self._go_on(channel, known, page.after)) if page.after else known

    def _go_on(self, channel: Channel, known: DeferredShown, after: str) -> str:
        kept = {"tab": "deferred", "filter": known.wanted, "node": known.node, "limit": known.limit}
        hits = known.hits + len(known.rows)
        return self._links.channel(channel.topic, channel.name, **kept, hits=hits, looked=known.looked, after=after)

    def _row(self, channel: Channel, deferral: Deferral, marks: Marks | None) -> ShownDeferral:
        link = self._links.to(
            "/deferred", topic=channel.topic, channel=channel.name, node=deferral.node, place=deferral.place
        )
        body = shown(deferral.message, marks=marks) if deferral.message is not None else None
        return ShownDeferral(deferral=deferral, body=body, link=link)

    async def message(self, request: Request) -> Response:
        """Show one deferred message, named by `topic=`, `channel=`, `node=` and `place=`."""
        arguments = request.query_params
        topic, name, node, place = (arguments.get(it, "") for it in ("topic", "channel", "node", "place"))
        identity = require(request, Right.VIEW, topic)
        snapshot = await self._painter.picture(request)
        channel, messages = snapshot.channel(topic, name), self._services.messages
        if channel is None or messages is None:
            return self._no_message(request, snapshot, "There is no such channel.")
        try:
            before = place_before(place)
        except ValueError:
            return self._no_message(request, snapshot, "This address names no message.")
        summary = await messages.deferred.summary(channel)
        look = DeferredLook(wanted=Filter(), limit=1, after={node: before}, node=node)
        page = await messages.deferred.page(channel, summary, identity, look)
        found = next((it for it in page.deferrals if it.place == place), None)
        if found is None:
            gone = "It is not deferred any more, or is due at another time now."
            problem = next((f"{at}: {why}." for at, why in page.missing), gone)
            return self._no_message(request, snapshot, problem)
        form = word_of(request, "as", FORMS)
        return self._painter.page(
            request,
            "selected_message.html",
            snapshot,
            current="Topics",
            channel=channel,
            deferral=found,
            shown=shown(found.message, form) if found.message is not None else None,
            form=form,
            forms=tuple((it, str(request.url.include_query_params(**{"as": it}).query)) for it in FORMS),
        )

    def _no_message(self, request: Request, snapshot: Snapshot, why: str) -> Response:
        links = (("Overview", self._links.to("/")),)
        return self._painter.failure(
            request, snapshot, Failure(title="This message cannot be shown", text=why, links=links)
        )
