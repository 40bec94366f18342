"""The pages of incidents: all of them, one with its time line, and the form with which people acknowledge or mute it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.cluster.model import Metric, Severity, Snapshot, Span, channel_series
from nsqadmin.diagnosis.incident import Mark, Open
from nsqadmin.diagnosis.marks import CHOICES, MOST_NOTE, clean_note, muted_until
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of, require, text_answer
from nsqadmin.parts import charts
from nsqadmin.parts.charts import Line
from nsqadmin.parts.incident_cards import Filter, as_text, card_of, listing, time_line
from nsqadmin.parts.painter import Failure, span_of, word_of
from nsqadmin.parts.tables import page_number
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.parts.page_cache import PageCache
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_MOST: Final = 100  # incidents or findings on a page
_MOST_CHARTS: Final = 3
_TEXT: Final = ".txt"
_DONE: Final = {
    "acknowledge": ("acknowledge_incident", "acknowledge", "You acknowledged it"),
    "unacknowledge": ("unacknowledge_incident", "take back the acknowledgement of", "It is no longer acknowledged"),
    "mute": ("mute_incident", "mute", "You muted it"),
    "unmute": ("unmute_incident", "unmute", "It is no longer muted"),
}


class IncidentPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter
        self._links = painter.links

    def routes(self, cached: PageCache) -> list[Route]:
        return [
            Route("GET", "/incidents", cached(self.all)),
            Route("GET", "/incidents/{key}", self.one),
            Route("GET", "/incidents/{key}/mark", self.ask),
            Route("POST", "/incidents/{key}/mark", self.mark),
        ]

    async def all(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        chosen = Filter(
            severity=word_of(request, "severity", ("", *Severity)),
            rule=request.query_params.get("rule", "")[:8],
            words=request.query_params.get("filter", "").strip(),
        )
        page = listing(self._seen(request), self._links, most=_MOST, chosen=chosen)
        return self._painter.page(
            request,
            "incidents.html",
            snapshot,
            current="Overview",
            scope="overview",
            page=page,
            chosen=chosen,
        )

    async def one(self, request: Request) -> Response:
        """Show one incident; with `.txt` after the key as plain text, which a browser without a script can copy."""
        key = str(request.path_params["key"])
        snapshot = await self._painter.picture(request)
        it = self._find(request, key.removesuffix(_TEXT))
        if it is None:
            return self._missing(request, snapshot, key.removesuffix(_TEXT))
        text = as_text(it, now=time.time(), url=_url(request, self._links.incident(it.key)))
        if key.endswith(_TEXT):
            return text_answer(text, v1=False)
        number = max(1, page_number(request))
        findings = it.incident.findings
        return self._painter.page(
            request,
            "incident.html",
            snapshot,
            current="Overview",
            scope="overview",
            card=card_of(it, self._links),
            it=it,
            line=time_line(it),
            findings=findings[(number - 1) * _MOST : number * _MOST],
            number=number,
            pages=-(-len(findings) // _MOST),
            charts=self._charts(request, it),
            text=text,
        )

    async def ask(self, request: Request) -> Response:
        """Show the form that acknowledges or mutes."""
        it = self._find(request, str(request.path_params["key"]))
        snapshot = await self._painter.picture(request)
        if it is None:
            return self._missing(request, snapshot, str(request.path_params["key"]))
        return self._painter.page(
            request,
            "incident_mark.html",
            snapshot,
            it=it,
            do=word_of(request, "do", tuple(_DONE)),
            choices=CHOICES,
            most_note=MOST_NOTE,
            refusal=self._why_not(request, it),
        )

    async def mark(self, request: Request) -> Response:
        """Acknowledge or mute an incident, or take that back. It is in the audit log before the user gets an answer."""
        snapshot = await self._painter.picture(request)
        form = await form_of(request)
        it = self._find(request, str(request.path_params["key"]))
        if it is None:
            require(request, Right.OPERATE)
            return self._missing(request, snapshot, str(request.path_params["key"]))
        do = form.get("do", "")
        if do not in _DONE:
            raise HttpError(400, "INVALID_ACTION", details={"reason": f"do: one of {', '.join(_DONE)}"})
        if reason := self._why_not(request, it):
            self._note(request, it, do, "", result="refused")
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        now = time.time()
        until = muted_until(form.get("for", ""), now) if do == "mute" else None
        if do == "mute" and until is None:
            raise HttpError(400, "INVALID_ARG_FOR", details={"reason": f"for: one of {', '.join(CHOICES)}"})
        note = clean_note(form.get("note", ""))
        given = Mark(by=_name_of(request), at=now, note=note, until=until)
        done = self._put(do, it.key, given)
        self._note(request, it, do, note, result="ok" if done else "failed")
        return self._painter.page(
            request,
            "incident_marked.html",
            snapshot,
            it=it,
            done=done,
            said=_DONE[do][2],
            until=until,
        )

    def _put(self, do: str, key: str, mark: Mark) -> bool:
        book = self._services.incidents
        match do:
            case "acknowledge":
                return book.acknowledge(key, mark)
            case "unacknowledge":
                return book.acknowledge(key, None)
            case "mute":
                return book.mute(key, mark)
            case _:
                return book.mute(key, None)

    def _note(self, request: Request, it: Open, do: str, note: str, *, result: str) -> None:
        """Write what a user did into the activity."""
        what, verb, _ = _DONE[do]
        findings = it.incident.findings
        self._services.activity.note(
            caller_of(request),
            what,
            f"{verb} “{it.incident.title}”{f': {note}' if note else ''}",
            result,
            topic=findings[0].topic,
            channel=findings[0].channel if len(findings) == 1 else "",
            nodes=tuple({finding.node: None for finding in findings if finding.node}),
            also=it.incident.topics[1:] if findings[0].topic else it.incident.topics,
        )

    # Incidents

    def _seen(self, request: Request) -> tuple[Open, ...]:
        return self._services.incidents.seen_by(identity_of(request))

    def _find(self, request: Request, key: str) -> Open | None:
        return next((it for it in self._seen(request) if it.key == key), None)

    def _missing(self, request: Request, snapshot: Snapshot, key: str) -> Response:
        record = self._services.incidents.record(key)
        failure = Failure(
            title="This incident is over" if record else "No such incident",
            text="Nothing that belongs to it is found any more."
            if record
            else "No incident has this address now. It may be over, or some of its topics may not be for you.",
            advice="If it comes back within ten minutes, it has the same address and keeps its begin."
            if record
            else "",
            links=(("All incidents", self._links.to("/incidents")), ("Activity", self._links.to("/activity"))),
        )
        return self._painter.failure(request, snapshot, failure)

    def _why_not(self, request: Request, it: Open) -> str:
        """Return why the user may not mark the incident, or "".

        That needs the right to all of its topics, also to those that the user does not see.
        """
        identity = identity_of(request)
        if reason := identity.why_not(Right.OPERATE):
            return reason
        whole = next(each for each in self._services.incidents.open() if each.key == it.key)
        if all(identity.may(Right.OPERATE, topic) for topic in whole.incident.topics):
            return ""
        return f"you do not have the right '{Right.OPERATE}' for all topics of this incident"

    def _charts(self, request: Request, it: Open) -> Sequence[charts.Chart]:
        """Draw the depth of the channels that weigh most."""
        channels = dict.fromkeys((each.topic, each.channel) for each in it.incident.findings if each.channel)
        return [
            charts.chart(
                f"{topic}/{channel}",
                self._services.view.series(channel_series(topic, channel), Span(span_of(request))),
                [
                    Line(
                        metric=Metric.DEPTH,
                        label="waiting",
                        colour="c1",
                        key=f"topics/{topic}/{channel}/depth",
                        filled=True,
                    )
                ],
            )
            for topic, channel in list(channels)[:_MOST_CHARTS]
        ]


def _name_of(request: Request) -> str:
    caller = caller_of(request)
    return caller.identity.user or caller.remote.rpartition(":")[0] or "anybody"


def _url(request: Request, path: str) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{path}"
