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
    from collections.abc import Sequence

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
        undone, refused = await self._undone(request, ids)
        if not undone:
            return self._refusal(request, snapshot, refused[0])
        is_one, links, action = len(ids) == 1, self._painter.links, undone[0][0].action
        rows = [row if is_one else _named(record, row) for record, of_one in undone for row in of_one]
        restored = sum(row.restored for row in rows)
        text = f"{numbers.several(restored, 'message')} {'is' if restored == 1 else 'are'} back."
        reasons = dict.fromkeys(map(_reason_of, refused))
        return self._painter.page(
            request,
            "undone.html",
            snapshot,
            headline=f"Undo: {undone[0][0].words}" if is_one else f"Undo {len(ids):,} actions",
            result="partly" if refused else result_of(rows),
            text=" ".join((text, *(f"Not everything was undone: {reason}." for reason in reasons))),
            rows=rows,
            retry=[record for record, of_one in undone if any(row.can_retry for row in of_one)],
            done=links.about(action.topic, action.channel, "") if is_one else links.to("/topics"),
        )

    async def _undone(
        self, request: Request, ids: Sequence[str]
    ) -> tuple[list[tuple[UndoRecord, tuple[Undone, ...]]], list[HttpError]]:
        """Return each record that could be undone, with the nodes' results, and why the others could not."""
        undone: list[tuple[UndoRecord, tuple[Undone, ...]]] = []
        refused: list[HttpError] = []
        for record_id in ids:
            try:
                undone.append(await undo(self._services, request, record_id))
            except HttpError as error:
                refused.append(error)
        return undone, refused

    def _refusal(self, request: Request, snapshot: Snapshot, error: HttpError) -> Response:
        failure = Failure(
            title="Nothing was undone",
            text=_reason_of(error),
            raw=f"{error.status} {error.code}",
            links=(("Activity", self._painter.links.to("/activity")),),
        )
        return error_page(self._painter, request, snapshot, failure, status=error.status)


def _named(record: UndoRecord, row: Undone) -> Undone:
    return replace(row, node=f"{record.action.name} on {row.node}")


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
