"""What a channel has buried: its tab, with the reasons and the messages, and the page of one message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqadmin.access.policy import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, require
from nsqadmin.messages.buried import Look
from nsqadmin.messages.buried_actions import BadTaking
from nsqadmin.messages.jobs import tasks_of
from nsqadmin.messages.lists import parse_places
from nsqadmin.pages.bodies import FORMS, ShownMessage, shown
from nsqadmin.pages.messages import NO_CLUSTER
from nsqadmin.pages.painter import Failure, word_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel, Snapshot
    from nsqadmin.messages.buried import Burial, BuriedPage, Summary
    from nsqadmin.pages.painter import Painter
    from nsqadmin.services import Services

_LIMITS: Final = ("20", "50", "100", "500")  # the first is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBurial:
    burial: Burial
    body: ShownMessage | None  # None: it cannot be had
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuriedShown:
    """What the tab shows."""

    not_possible: str = ""  # why nothing can be shown; empty if something can
    summary: Summary | None = None
    rows: tuple[ShownBurial, ...] = ()
    page: BuriedPage | None = None
    reason: str = ""  # only messages with this text in their reason, as the address names it
    may_search: bool = True  # for any text; otherwise for a listed reason
    node: str = ""
    limit: int = int(_LIMITS[0])
    wrong: str = ""  # why the address of the page is not understood
    go_on: str = ""
    is_masked: bool = False
    is_first: bool = True

    @property
    def tasks(self) -> tuple[tuple[str, int], ...]:
        """The names of the jobs among these messages, each with how many of them there are."""
        return tasks_of(it.burial.message.job for it in self.rows if it.burial.message is not None)


class BuriedPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self) -> list[Route]:
        return [Route("GET", "/buried", self.message)]

    async def of_channel(self, request: Request, channel: Channel) -> BuriedShown:
        messages, arguments = self._services.messages, request.query_params
        if messages is None:
            return BuriedShown(not_possible=NO_CLUSTER)
        identity = identity_of(request)
        summary = await messages.buried.summary(channel, identity)
        reason, node = arguments.get("reason", ""), arguments.get("node", "")
        limit = int(word_of(request, "limit", _LIMITS))
        may_search = messages.buried.sees_reasons(channel, identity)
        known = BuriedShown(summary=summary, reason=reason, node=node, limit=limit, may_search=may_search)
        try:
            after = parse_places(arguments.get("after", ""))
            look = Look(after=after, limit=limit, reason=reason, node=node)
            page = await messages.buried.page(channel, identity, look)
        except (ValueError, BadTaking) as error:
            return replace(known, wrong=f"{error}.")
        kept = {"tab": "buried", "reason": reason, "node": node, "limit": limit}
        return replace(
            known,
            page=page,
            rows=tuple(self._row(channel, it) for it in page.burials),
            go_on=self._links.channel(channel.topic, channel.name, **kept, after=page.after) if page.after else "",
            is_masked=any(it.message is not None and it.message.is_masked for it in page.burials),
            is_first=not after,
        )

    def _row(self, channel: Channel, burial: Burial) -> ShownBurial:
        link = self._links.to(
            "/buried", topic=channel.topic, channel=channel.name, node=burial.node, sequence=str(burial.sequence)
        )
        body = shown(burial.message) if burial.message is not None else None
        return ShownBurial(burial=burial, body=body, link=link)

    async def message(self, request: Request) -> Response:
        """Show one buried message, named by `topic=`, `channel=`, `node=` and `sequence=`."""
        arguments = request.query_params
        topic, name, node, sequence = (arguments.get(it, "") for it in ("topic", "channel", "node", "sequence"))
        identity = require(request, Right.VIEW, topic)
        snapshot = await self._painter.picture(request)
        channel, messages = snapshot.channel(topic, name), self._services.messages
        if channel is None or messages is None or not (sequence.isascii() and sequence.isdecimal()):
            return self._no_message(request, snapshot, "There is no such channel.")
        look = Look(after={node: str(int(sequence[:19]) - 1)} if int(sequence) else {}, limit=1, node=node)
        page = await messages.buried.page(channel, identity, look)
        found = next((it for it in page.burials if it.sequence == int(sequence)), None)
        if found is None:
            problem = next((f"{at}: {why}." for at, why in page.missing), "It is not buried any more.")
            return self._no_message(request, snapshot, problem)
        form = word_of(request, "as", FORMS)
        return self._painter.page(
            request,
            "buried_message.html",
            snapshot,
            current="Topics",
            channel=channel,
            burial=found,
            shown=shown(found.message, form) if found.message is not None else None,
            form=form,
            forms=tuple((it, str(request.url.include_query_params(**{"as": it}).query)) for it in FORMS),
        )

    def _no_message(self, request: Request, snapshot: Snapshot, why: str) -> Response:
        links = (("Overview", self._links.to("/")),)
        return self._painter.failure(
            request, snapshot, Failure(title="This message cannot be shown", text=why, links=links)
        )
