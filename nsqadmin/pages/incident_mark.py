"""The form for acknowledging or muting an incident, and its result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.diagnosis.incident import Mark, Open
from nsqadmin.diagnosis.marks import CHOICES, MOST_NOTE, clean_note, muted_until
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, identity_of, require
from nsqadmin.pages.incident import find, missing
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.rights import why_not_marked
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

_DONE: Final = {
    "acknowledge": ("acknowledge_incident", "acknowledge", "You acknowledged it"),
    "unacknowledge": ("unacknowledge_incident", "unacknowledge", "It is no longer acknowledged"),
    "mute": ("mute_incident", "mute", "You muted it"),
    "unmute": ("unmute_incident", "unmute", "It is no longer muted"),
}


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _IncidentMarkPages(services, painter)
    return [
        Route("GET", "/incidents/{key}/mark", pages.ask),
        Route("POST", "/incidents/{key}/mark", pages.mark),
    ]


class _IncidentMarkPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def ask(self, request: Request) -> Response:
        """Show the form for acknowledging or muting."""
        it = find(self._services, request, str(request.path_params["key"]))
        snapshot = await self._painter.picture(request)
        if it is None:
            return missing(self._services, self._painter, request, snapshot, str(request.path_params["key"]))
        return self._painter.page(
            request,
            "incident_mark.html",
            snapshot,
            it=it,
            do=word_of(request, "do", tuple(_DONE)),
            choices=CHOICES,
            most_note=MOST_NOTE,
            refusal=why_not_marked(identity_of(request), it),
        )

    async def mark(self, request: Request) -> Response:
        """Acknowledge or mute an incident, or undo that. It is in the audit log before the user gets an answer."""
        snapshot = await self._painter.picture(request)
        form = await form_of(request)
        it = find(self._services, request, str(request.path_params["key"]))
        if it is None:
            require(request, Right.OPERATE)
            return missing(self._services, self._painter, request, snapshot, str(request.path_params["key"]))
        do = form.get("do", "")
        if do not in _DONE:
            raise HttpError(400, "INVALID_ACTION", details={"reason": f"do: one of {', '.join(_DONE)}"})
        if reason := why_not_marked(identity_of(request), it):
            self._note(request, it, do, "", result="refused")
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        now = time.time()
        until = muted_until(form.get("for", ""), now) if do == "mute" else None
        if do == "mute" and until is None:
            raise HttpError(400, "INVALID_ARG_FOR", details={"reason": f"for: one of {', '.join(CHOICES)}"})
        note = clean_note(form.get("note", ""))
        given = Mark(by=_name_of(request), at=now, note=note, until=until)
        done = self._put(do, it.key, given, identity_of(request))
        self._note(request, it, do, note, result="ok" if done else "failed")
        return self._painter.page(
            request,
            "incident_mark.html",
            snapshot,
            it=it,
            done=done,
            said=_DONE[do][2],
            until=until,
        )

    def _put(self, do: str, key: str, mark: Mark, user: Identity) -> bool:
        book = self._services.incidents
        match do:
            case "acknowledge":
                return book.acknowledge(key, mark, user)
            case "unacknowledge":
                return book.acknowledge(key, None, user)
            case "mute":
                return book.mute(key, mark, user)
            case _:
                return book.mute(key, None, user)

    def _note(self, request: Request, it: Open, do: str, note: str, *, result: str) -> None:
        """Add an action of a user to the activity."""
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


def _name_of(request: Request) -> str:
    caller = caller_of(request)
    return caller.identity.user or caller.remote.rpartition(":")[0] or "anonymous"
