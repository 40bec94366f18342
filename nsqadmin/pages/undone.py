"""The receipt of an undo, and the choice of Activity entries that offer one."""

from __future__ import annotations

from dataclasses import replace
from time import time
from typing import TYPE_CHECKING

from nsqadmin import numbers
from nsqadmin.actions.undo import result_of
from nsqadmin.http.app import Route
from nsqadmin.http.responses import identity_of, lists_of
from nsqadmin.http.undoing import undo
from nsqadmin.pages.error import Failure, error_page
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.actions.undo import Undone, UndoRecord
    from nsqadmin.cluster.model import Snapshot
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
        """Undo the action of each `record=`, and show what came back."""
        snapshot = await self._painter.picture(request)
        ids = list(dict.fromkeys((await lists_of(request)).get("record", ()))) or [""]
        rows: list[Undone] = []
        records: list[UndoRecord] = []
        retry: list[UndoRecord] = []
        refused: list[HttpError] = []
        for record_id in ids:
            try:
                record, undone = await undo(self._services, request, record_id)
            except HttpError as error:
                refused.append(error)
                continue
            records.append(record)
            rows += (
                [replace(row, node=f"{record.action.name} on {row.node}") for row in undone] if len(ids) > 1 else undone
            )
            if any(row.can_retry for row in undone):
                retry.append(record)
        if not records:
            return self._refusal(request, snapshot, refused[0])
        action = records[0].action
        restored = sum(row.restored for row in rows)
        text = f"{numbers.several(restored, 'message')} {'is' if restored == 1 else 'are'} back."
        reasons = dict.fromkeys(_reason_of(error) for error in refused)
        return self._painter.page(
            request,
            "undone.html",
            snapshot,
            headline=f"Undo: {records[0].words}" if len(records) == 1 else f"Undo {len(records):,} actions",
            result="partly" if refused else result_of(rows),
            text=" ".join((text, *(f"Not everything was undone: {reason}." for reason in reasons))),
            rows=rows,
            retry=retry,
            done=self._painter.links.about(action.topic, action.channel, "")
            if len(ids) == 1
            else self._painter.links.to("/topics"),
        )

    def _refusal(self, request: Request, snapshot: Snapshot, error: HttpError) -> Response:
        failure = Failure(
            title="Nothing was undone",
            text=_reason_of(error),
            raw=f"{error.status} {error.code}",
            links=(("Activity", self._painter.links.to("/activity")),),
        )
        return error_page(self._painter, request, snapshot, failure, status=error.status)


def _reason_of(error: HttpError) -> str:
    return str((error.details or {}).get("reason", error.code))


def undoable(services: Services, request: Request, record_id: str) -> UndoRecord | None:
    """Return the record if the user may undo it, and retention may still have the messages."""
    if not record_id or services.executor is None:
        return None
    record = services.executor.undoer.records.find(record_id)
    if record is None or not record.is_offered(time()):
        return None
    refusal = identity_of(request).why_not(record.action.right, record.action.topic)
    return None if refusal else record
