"""Redelivering selected messages, to one channel or to all: the consequences, and the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin import numbers
from nsqadmin.access import Right
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of, require
from nsqadmin.jobs.instances import Finder
from nsqadmin.messages.endpoints import MOST_BODY, filter_of, selection_of
from nsqadmin.messages.redelivery import MOST_PIECES
from nsqadmin.messages.searching import NEWEST, OLDEST, Search
from nsqadmin.messages.selection import MOST, Selection, Source, selected
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.publish import REFUSED
from nsqadmin.parts.messages import messages_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel, Topic
    from nsqadmin.messages.model import SearchResult
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_LONGEST_SEARCH: Final = 20.0  # seconds, for all hits of a search
_TYPED_FROM: Final = 1000  # messages; to publish more again, the user has to type the topic's name
_ALL: Final = "all"
_CHANNEL: Final = "channel:"


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _RedeliverPages(services, painter)
    return [
        Route("GET", "/actions/redeliver", pages.run_again),
        Route("POST", "/actions/redeliver", pages.redeliver),
    ]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The messages to deliver once more, and remarks about the search."""

    selection: Selection
    remarks: tuple[str, ...] = ()
    searched: str = ""  # which search they are all matches of


class _RedeliverPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    async def run_again(self, request: Request) -> Response:
        """Show the consequences of running jobs of `task=` again that failed and aren't buried: each `job=`, or all."""
        try:
            asked = request.query_params
            topic, task = await self._topic(request, asked.get("topic", "")), asked.get("task", "")
            identity, ids = require(request, Right.PAYLOAD, topic.name), asked.getlist("job")
            if not ids and asked.get("on") == "selected" and "all" not in asked:
                raise HttpError(400, "NOTHING_SELECTED", details={"reason": "Select jobs first."})
            messages, jobs = messages_of(self._services), self._services.jobs
            assert jobs is not None, "there are messages, so this is no snapshot file"
            found, notes = await Finder(jobs, messages).raised(topic.name, task, identity, ids)
            chosen = selected((Source(it.node, it.log or ""), it.sequence or 0) for it in found)
            if not chosen.count:
                reason = " ".join(("No failed job of this task can be run again.", *notes))
                raise HttpError(404, "NOTHING_FOUND", details={"reason": reason})
            return await self._redeliver_page(request, topic, _Chosen(chosen, notes), asked.get("channel", ""), "")
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def redeliver(self, request: Request) -> Response:
        """Show the consequences of redelivering the selected messages; with `to=`, do it."""
        try:
            form = {name: values for name, values in (await lists_of(request, limit=MOST_BODY)).items() if values}
            values = {name: texts[0] for name, texts in form.items()}
            topic = await self._topic(request, values.get("topic", ""))
            chosen = await self._chosen(request, topic.name, form)
            to = values.get("to", "")
            problem = ""
            if to == _ALL and chosen.selection.count > _TYPED_FROM and values.get("typed") != topic.name:
                problem = f"Nothing was replayed: to publish this many again, type “{topic.name}”."
            elif to:
                return await self._redeliver(request, topic, chosen.selection, to)
            return await self._redeliver_page(request, topic, chosen, values.get("channel", ""), problem)
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def _topic(self, request: Request, name: str) -> Topic:
        require(request, Right.VIEW, name)
        topic = (await self._painter.picture(request)).topic(name)
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND", details={"reason": f"there is no topic {name}"})
        return topic

    async def _chosen(self, request: Request, topic: str, form: Mapping[str, Sequence[str]]) -> _Chosen:
        if "all" in form:
            return await self._all_hits(request, topic, {name: values[0] for name, values in form.items()})
        words = form.get("one") or form.get("messages") or form.get("pick", ())
        return _Chosen(selection_of(" ".join(words)))

    async def _all_hits(self, request: Request, topic: str, values: Mapping[str, str]) -> _Chosen:
        search = Search(
            topic=topic,
            wanted=filter_of(values.get("filter", "")),
            identity=identity_of(request),
            place=values.get("from", "") or NEWEST,
            node=values.get("node", ""),
            limit=MOST,
            seconds=_LONGEST_SEARCH,
            with_bodies=False,
        )
        found = await messages_of(self._services).search(search)
        chosen = selected((Source(it.node, it.log or ""), it.sequence or 0) for it in found.messages)
        if not chosen.count:
            raise HttpError(404, "NOTHING_FOUND", details={"reason": " ".join(_remarks(found)) or "nothing matches"})
        return _Chosen(chosen, _remarks(found), _searched(search, found, values.get("filter", "")))

    async def _redeliver_page(
        self, request: Request, topic: Topic, chosen: _Chosen, channel: str, problem: str
    ) -> Response:
        identity, count = identity_of(request), chosen.selection.count
        channels = [each for each in topic.channels if not each.is_ephemeral]
        no_all = identity.why_not(Right.PAYLOAD, topic.name) or identity.why_not(Right.PUBLISH, topic.name)
        if sum(len(runs) for runs in chosen.selection.runs.values()) > MOST_PIECES:
            no_all = no_all or "they lie too far apart: replay a range instead"
        default = channel or (channels[0].name if len(channels) == 1 else "")
        return self._painter.page(
            request,
            "redeliver.html",
            await self._painter.picture(request),
            status=400 if problem else 200,
            topic=topic.name,
            title=f"Replay {numbers.several(count, 'message')} of {topic.name}",
            problem=problem,
            messages=str(chosen.selection),
            nodes=", ".join(chosen.selection.nodes),
            remarks=chosen.remarks,
            searched=chosen.searched,
            channels=[(each, _lacking(each, chosen.selection)) for each in channels],
            chosen=default,
            no_channel=identity.why_not(Right.OPERATE, topic.name),
            no_all=no_all,
            must_type=topic.name if count > _TYPED_FROM and not no_all else "",
        )

    async def _redeliver(self, request: Request, topic: Topic, selection: Selection, to: str) -> Response:
        messages, caller = messages_of(self._services), caller_of(request)
        channel = to.removeprefix(_CHANNEL) if to.startswith(_CHANNEL) else ""
        if channel:
            rows = await messages.redeliver(topic.name, channel, selection, caller)
            place, where = self._links.channel(topic.name, channel, tab="messages"), f"to {channel}"
        elif to == _ALL:
            rows = await messages.publish_again(topic.name, selection, caller)
            place, where = self._links.topic(topic.name, tab="messages"), f"to all channels of {topic.name}"
        else:
            raise HttpError(400, "INVALID_TO", details={"reason": "choose a channel, or all of them"})
        done = sum(row.redelivered for row in rows)
        is_failed = any(row.error for row in rows)
        return self._painter.page(
            request,
            "redeliver.html",
            await self._painter.picture(request),
            headline=f"Replay {where}",
            result=("partly" if done else "failed") if is_failed else "ok",
            text=f"{numbers.several(done, 'message')} queued for redelivery {where}.",
            rows=rows,
            waiting=sum(row.waiting for row in rows),
            gone=sum(row.gone for row in rows),
            place=place,
            label=f"Messages of {channel or topic.name}",
            back=self._links.topic(topic.name, tab="messages", channel=channel),
        )


def _remarks(found: SearchResult) -> tuple[str, ...]:
    """Return warnings before replaying all hits: messages that weren't searched."""
    texts = [f"{log.node} was not fully searched: {log.reason}." for log in found.silent]
    if found.goes_on and len(found.messages) >= MOST:
        texts.insert(0, f"These are the first {MOST:,} matches; there may be more.")
    elif found.goes_on:
        texts.insert(0, f"Only {found.looked:,} of {found.total:,} messages were searched: there may be more matches.")
    return tuple(texts)


def _searched(search: Search, found: SearchResult, wanted: str) -> str:
    """Say which search the messages are all matches of; "" if some of it is left: `_remarks` says so."""
    if not found.is_whole or not wanted:
        return ""
    start = "" if search.place in (NEWEST, OLDEST) else f" from {search.place} on"
    where = f" on {search.node}" if search.node else ""
    return f"All messages that match “{wanted}”{where}: {found.total:,} were searched{start}."


def _lacking(channel: Channel, selection: Selection) -> str:
    """Return the nodes that have some of the messages but not the channel."""
    having = {row.node for row in channel.nodes}
    return ", ".join(node for node in selection.nodes if node not in having)
