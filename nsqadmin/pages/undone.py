"""The receipt of an undo, and the choice of Activity entries that offer one."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.actions.undo import result_of
from nsqadmin.http.app import Route
from nsqadmin.http.responses import form_of, identity_of
from nsqadmin.http.undoing import undo
from nsqadmin.pages.error import Failure, error_page
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.undo import UndoRecord
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services


def routes(services: Services, painter: Painter) -> list[Route]:
    pages = _UndonePages(services, painter)
    return [Route("POST", "/actions/undo", pages.undo)]


class _UndonePages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def undo(self, request: Request) -> Response:
        snapshot = await self._painter.picture(request)
        try:
            record, rows = await undo(self._services, request, (await form_of(request)).get("record", ""))
        except HttpError as error:
            failure = Failure(
                title="Nothing was undone",
                text=str((error.details or {}).get("reason", error.code)),
                raw=f"{error.status} {error.code}",
                links=(("Activity", self._painter.links.to("/activity")),),
            )
            return error_page(self._painter, request, snapshot, failure, status=error.status)
        action = record.action
        restored = sum(row.restored for row in rows)
        return self._painter.page(
            request,
            "undone.html",
            snapshot,
            headline=f"Undo: {record.words}",
            result=result_of(rows),
            text=f"{numbers.several(restored, 'message')} {'is' if restored == 1 else 'are'} back.",
            rows=rows,
            retry=record if any(row.can_retry for row in rows) else None,
            done=self._painter.links.about(action.topic, action.channel, ""),
        )


def undoable(services: Services, request: Request, record_id: str) -> UndoRecord | None:
    """Return the record if the user may undo it, and retention may still have the messages."""
    if not record_id or services.executor is None:
        return None
    record = services.executor.undoer.records.find(record_id)
    if record is None or not record.is_offered(time()):
        return None
    refusal = identity_of(request).why_not(record.action.right, record.action.topic)
    return None if refusal else record
