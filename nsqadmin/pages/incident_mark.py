"""The form for acknowledging or muting one or several incidents, and its result."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsqadmin.access import Right
from nsqadmin.diagnosis.incident import Mark, Open
from nsqadmin.diagnosis.marks import CHOICES, MOST_NOTE, clean_note, muted_until
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, identity_of, lists_of, require
from nsqadmin.pages.incident import find, missing
from nsqadmin.parts.painter import word_of
from nsqadmin.parts.rights import why_not_marked
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

MOST_CHOSEN: Final = 500  # incidents at once
_DONE: Final = {
    "acknowledge": ("acknowledge_incident", "acknowledge", "You acknowledged it", "acknowledged"),
    "unacknowledge": (
        "unacknowledge_incident",
        "unacknowledge",
        "It is no longer acknowledged",
        "no longer acknowledged",
    ),
    "mute": ("mute_incident", "mute", "You muted it", "muted"),
    "unmute": ("unmute_incident", "unmute", "It is no longer muted", "no longer muted"),
}


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _IncidentMarkPages(services, painter)
    return [
        Route("GET", "/incidents/{key}/mark", pages.ask),
        Route("POST", "/incidents/{key}/mark", pages.mark),
        Route("GET", "/incidents/mark", pages.ask),
        Route("POST", "/incidents/mark", pages.mark),
    ]


@dataclass(frozen=True, slots=True)
class _Chosen:
    """An incident to mark, or why the user cannot."""

    key: str
    open: Open | None
    why_not: str


class _IncidentMarkPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def ask(self, request: Request) -> Response:
        """Show the form for acknowledging or muting one incident, or each `pick=`."""
        snapshot = await self._painter.picture(request)
        keys, is_one = _keys_of(request, request.query_params.getlist("pick"))
        chosen = [self._chosen(request, key) for key in keys]
        if is_one and chosen[0].open is None:
            return missing(self._services, self._painter, request, snapshot, keys[0])
        return self._painter.page(
            request,
            "incident_mark.html",
            snapshot,
            chosen=chosen,
            is_one=is_one,
            do=word_of(request, "do", tuple(_DONE)),
            choices=CHOICES,
            most_note=MOST_NOTE,
            refusal=_why_none(chosen),
        )

    async def mark(self, request: Request) -> Response:
        """Acknowledge or mute incidents, or undo that. It is in the audit log before the user gets an answer."""
        snapshot = await self._painter.picture(request)
        form = await lists_of(request)
        keys, is_one = _keys_of(request, form.get("pick", ()))
        if is_one and find(self._services, request, keys[0]) is None:
            require(request, Right.OPERATE)
            return missing(self._services, self._painter, request, snapshot, keys[0])
        do, span, note = (next(iter(form.get(name, ())), "") for name in ("do", "for", "note"))
        if do not in _DONE:
            raise HttpError(400, "INVALID_ACTION", details={"reason": f"do: one of {', '.join(_DONE)}"})
        if not keys:
            raise HttpError(400, "INVALID_ACTION", details={"reason": "select incidents first"})
        now = time.time()
        until = muted_until(span, now) if do == "mute" else None
        chosen = [self._chosen(request, key) for key in keys]
        allowed = [it.open for it in chosen if it.open is not None and not it.why_not]
        for it in chosen:
            if it.open is not None and it.why_not:
                self._note(request, it.open, do, "", result="refused")
        if not allowed:
            raise HttpError(403, "FORBIDDEN", details={"reason": _why_none(chosen)})
        if do == "mute" and until is None:
            raise HttpError(400, "INVALID_ARG_FOR", details={"reason": f"for: one of {', '.join(CHOICES)}"})
        given = Mark(by=_name_of(request), at=now, note=clean_note(note), until=until)
        done = {it.key for it in allowed if self._put(do, it.key, given, identity_of(request))}
        for open in allowed:
            self._note(request, open, do, given.note, result="ok" if open.key in done else "failed")
        return self._painter.page(
            request,
            "incident_mark.html",
            snapshot,
            chosen=chosen,
            is_one=is_one,
            done=done,
            said=_DONE[do][2 if is_one else 3],
            until=until,
        )

    def _chosen(self, request: Request, key: str) -> _Chosen:
        it = find(self._services, request, key)
        return _Chosen(key, it, "it is over" if it is None else why_not_marked(identity_of(request), it))

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
        what, verb, *_ = _DONE[do]
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


def _keys_of(request: Request, picks: Sequence[str]) -> tuple[list[str], bool]:
    """Return the keys of the incidents, and True if the address names the only one. Raise 400 for too many."""
    if "key" in request.path_params:
        return [str(request.path_params["key"])], True
    keys = list(dict.fromkeys(picks))
    if len(keys) > MOST_CHOSEN:
        reason = f"{len(keys):,} incidents are selected; at most {MOST_CHOSEN:,} at once"
        raise HttpError(400, "INVALID_ACTION", details={"reason": reason})
    return keys, False


def _why_none(chosen: Sequence[_Chosen]) -> str:
    """Return why none of them can be marked, or ""."""
    if not chosen:
        return "select incidents first"
    reasons = dict.fromkeys(it.why_not for it in chosen)
    return "" if "" in reasons else "; ".join(reasons)


def _name_of(request: Request) -> str:
    caller = caller_of(request)
    return caller.identity.user or caller.remote.rpartition(":")[0] or "anonymous"
